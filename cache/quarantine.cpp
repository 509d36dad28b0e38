#include "cache/quarantine.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <vector>

namespace flashwright {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKept = 2;
constexpr std::chrono::seconds kPatience{3};
constexpr const char* kCompanions[] = {"-journal", "-wal", "-shm"};

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

std::string rename_all(const std::string& path) {
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

}  // namespace

void FolderLock::open(const std::string& folder) {
  close();
  descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

void FolderLock::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

bool FolderLock::take(int how) {
  using namespace std::chrono_literals;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (descriptor_ >= 0) {
    if (flock(descriptor_, how | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(2ms);
  }
  return false;
}

void FolderLock::share() { take(LOCK_SH); }

bool FolderLock::exclude() { return take(LOCK_EX); }

void FolderLock::release() {
  if (descriptor_ >= 0) flock(descriptor_, LOCK_UN);
}

std::string move_aside(const std::string& path, FolderLock& lock,
                       const std::function<bool()>& still_bad) {
  lock.release();  // two that share and both want to exclude would wait for each other
  const std::string moved_to = lock.exclude() && still_bad() ? rename_all(path) : std::string();
  lock.share();
  return moved_to;
}

}  // namespace flashwright
