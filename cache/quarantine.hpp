// Moves a damaged database out of the way, together with its journals, so that a new one can be made
// under its name. Nothing is thrown away: the two latest damaged files are kept.
#pragma once

#include <functional>
#include <string>

namespace flashwright {

// Keeps the names in a folder as they are while anybody uses the files. SQLite finds a journal by the
// name of its database: a process that still reads a file after it was moved would take the journal
// of the new file for its own, and spoil it. So users share this lock, and the mover excludes them.
// The system releases it when its holder dies; where it does not work, things go on without.
class FolderLock {
 public:
  FolderLock() = default;
  ~FolderLock() { close(); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  void open(const std::string& folder);
  void close();
  void share();    // waits for a mover to finish
  bool exclude();  // waits for the users to finish; false when they do not
  void release();

 private:
  bool take(int how);
  int descriptor_ = -1;
};

// `still_bad` is asked while no other process can be doing the same. Returns the new name, or "" when
// the file was left in place. Afterwards the lock is shared.
std::string move_aside(const std::string& path, FolderLock& lock,
                       const std::function<bool()>& still_bad);

}  // namespace flashwright
