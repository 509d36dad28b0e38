// What the store of kernels and the store of tuning results have in common: how they are opened, what
// they say of themselves, and what an import reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flashwright {

struct StoreOptions {
  std::string directory;       // "": as cache/places says; ":memory:": no file
  std::int64_t max_bytes = 0;  // of the kernel store; 0: FLASHWRIGHT_MAX_BYTES, else 5 % of the
                               // file system, from 16 MiB to 4 GiB
  std::string journal;         // for tests: "wal" or "delete", whatever the version of SQLite
};

struct StoreStatus {
  std::string path;       // of the file; empty: in memory only
  bool writable = false;  // false: new entries stay in memory
  std::string trouble;    // why that is so; empty when it was asked for
  std::string variable;   // the environment variable that names another folder

  // For people; never empty.
  std::string place() const { return path.empty() ? ":memory:" : path; }
};

// A record is refused when its form, its size or its digest is wrong.
struct ImportReport {
  std::int64_t added = 0, known = 0, refused = 0;
  std::vector<std::string> problems;  // the first few, each with its line number
};

}  // namespace flashwright
