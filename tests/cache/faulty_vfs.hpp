// A file system for SQLite whose n-th change fails. Looping over n until nothing fails any more visits
// every place where a disk can let a store down.
#pragma once

#include <functional>

namespace flashwright::test {

// While it exists, SQLite opens files through it. Only one at a time.
class FaultyVfs {
 public:
  FaultyVfs();
  ~FaultyVfs();
  FaultyVfs(const FaultyVfs&) = delete;
  FaultyVfs& operator=(const FaultyVfs&) = delete;

  // The n-th change from now on (a write, sync, truncation, deletion or a file made) gives `code`, and
  // with `lasting` all later ones do.
  void fail(int n, int code, bool lasting);
  // Calls `hook` before the n-th change instead.
  void before(int n, std::function<void()> hook);
  void relent();
  bool fired() const;  // the n-th change has been reached
};

}  // namespace flashwright::test
