// What the tests of the stores share: folders and processes that are cleaned up, captured log lines,
// binaries with known content.
#pragma once

#include <sys/types.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/artifacts.hpp"
#include "core/log.hpp"

namespace flashwright::test {

// An empty folder, removed at the end with all it holds.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Variables of the environment; without a value: not set.
using Variables = std::vector<std::pair<std::string, std::optional<std::string>>>;

// Sets variables, and brings the old values back.
class Environment {
 public:
  explicit Environment(const Variables& variables);
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  Variables before_;
};

// Collects the log from here on.
class Log {
 public:
  Log();
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  std::vector<std::string> warnings() const;  // and errors
  std::string all() const;                    // the warnings as one text, for messages

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> warnings_;
};

// Runs `body` in a forked process that ends with what it returns.
pid_t start(const std::function<int()>& body);
int wait_for(pid_t child);  // exit status; 1000 + signal when it was killed
inline int in_child(const std::function<int()>& body) { return wait_for(start(body)); }

// The same under another user, or nothing when this process may not change its user.
std::optional<int> as_nobody(const std::function<int()>& body);

// The binary and the keys number i, always the same.
Binary binary_of_number(int i, std::size_t bytes = 2000);
Digest key_of_number(int i);
Digest base_of_number(int i);
void put_number(ArtifactStore& store, int i, std::size_t bytes = 2000);
bool has_number(ArtifactStore& store, int i, std::size_t bytes = 2000);  // and it is right

inline StoreOptions in_folder(const Folder& folder) {
  StoreOptions options;
  options.directory = folder.path();
  return options;
}

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& bytes);
std::string database_file(const Folder& folder);  // of the kernel store
std::vector<std::string> files_in(const Folder& folder);

// What `PRAGMA integrity_check` says of a file: "ok" when all is well.
std::string integrity(const std::string& path);

}  // namespace flashwright::test
