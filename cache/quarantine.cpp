#include "cache/quarantine.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <vector>

namespace flashwright {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKept = 2;
constexpr const char* kCompanions[] = {"-journal", "-wal", "-shm"};

// Held by whoever renames in a folder. The kernel releases it when its holder dies.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder)
      : descriptor_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    using namespace std::chrono_literals;
    for (int i = 0; descriptor_ >= 0 && i < 100 && !locked_; ++i) {
      locked_ = flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
      if (!locked_) std::this_thread::sleep_for(20ms);
    }
  }
  ~FolderLock() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  bool locked() const { return locked_; }

 private:
  int descriptor_;
  bool locked_ = false;
};

bool is_companion(const std::string& name) {
  return std::any_of(std::begin(kCompanions), std::end(kCompanions),
                     [&](const char* ending) { return name.ends_with(ending); });
}

void drop_old(const fs::path& path) {
  const std::string prefix = path.filename().string() + ".bad-";
  std::vector<fs::path> bad;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path.parent_path(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && !is_companion(name)) bad.push_back(entry.path());
  }
  std::sort(bad.begin(), bad.end());
  for (std::size_t i = 0; i + kKept < bad.size(); ++i) {
    fs::remove(bad[i], ignored);
    for (const char* ending : kCompanions) fs::remove(bad[i].string() + ending, ignored);
  }
}

}  // namespace

std::string move_aside(const std::string& path, const std::function<bool()>& still_bad) {
  const FolderLock lock(fs::path(path).parent_path().string());
  if (!lock.locked() || !still_bad()) return {};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string target = fmt::format(
      "{}.bad-{}", path, std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  // The journals first: one that was left behind would be taken for the new file's.
  for (const char* ending : kCompanions)
    std::rename((path + ending).c_str(), (target + ending).c_str());
  if (std::rename(path.c_str(), target.c_str()) != 0) return {};
  drop_old(path);
  return target;
}

}  // namespace flashwright
