#include "cache/flight.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include "cache/places.hpp"
#include "core/env.hpp"
#include "core/log.hpp"

namespace flashwright {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kTakeovers = 3;
constexpr milliseconds kFirstPause{2}, kLongestPause{100}, kSilence{5000};

std::string find_lock_file(const std::string& store_path) {
  std::vector<std::string> folders;
  if (const std::string run = env::get_foreign("XDG_RUNTIME_DIR"); run.starts_with('/'))
    folders.push_back(run + "/flashwright");
  folders.push_back(fmt::format("/dev/shm/flashwright-{}", geteuid()));
  if (!store_path.empty())
    folders.push_back(std::filesystem::path(store_path).parent_path().string());
  for (const std::string& path : folders) {
    // A home must not appear because of a lock.
    if (access(std::filesystem::path(path).parent_path().c_str(), W_OK) != 0) continue;
    const PrivateFolder folder = private_folder(path);
    if (folder.writable && is_local_file_system(folder.path)) return folder.path + "/compile.lock";
  }
  return {};
}

// Locks the byte if nobody has it. The lock belongs to the open file, not to the process, so other
// descriptors of the file may come and go.
bool try_lock(int descriptor, std::int64_t offset) {
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = offset;
  range.l_len = 1;
  return fcntl(descriptor, F_OFD_SETLK, &range) == 0;
}

// Each key has a byte of its own, and behind it one for each takeover.
std::int64_t byte_of(const Digest& key, const std::string& store_path) {
  const Digest digest =
      sha256_of({store_path, {reinterpret_cast<const char*>(key.data()), key.size()}});
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) value = value << 8 | digest[i];
  return static_cast<std::int64_t>(value >> 2 & ~std::uint64_t{kTakeovers});
}

milliseconds jittered(milliseconds pause) {
  thread_local std::minstd_rand random(std::random_device{}());
  return pause / 2 + milliseconds(random() % static_cast<unsigned>(pause.count() + 1));
}

}  // namespace

Flight::Turn::~Turn() {
  if (descriptor_ < 0) return;
  // Not by close alone: a forked child may still have the open file.
  struct flock all {};
  all.l_type = F_UNLCK;
  all.l_whence = SEEK_SET;
  fcntl(descriptor_, F_OFD_SETLK, &all);
  close(descriptor_);
}

Flight::Flight(std::string store_path)
    : store_path_(std::move(store_path)), lock_file_(find_lock_file(store_path_)) {}

Flight::Turn Flight::wait(const Digest& key, const std::string& what,
                          const std::function<bool()>& ready, milliseconds patience) const {
  if (lock_file_.empty()) return Turn();
  const int file = open(lock_file_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return Turn();
  Turn turn(file);

  const std::int64_t first = byte_of(key, store_path_);
  const auto start = steady_clock::now();
  auto since = start;
  bool told = false;
  milliseconds pause = kFirstPause;
  for (int takeover = 0; !try_lock(file, first + takeover);) {
    // Anything but "somebody has it" means that locks do not work here.
    if (errno != EAGAIN && errno != EACCES) return Turn();
    if (ready()) return Turn();
    const auto now = steady_clock::now();
    if (now - since > patience) {
      if (++takeover > kTakeovers) return Turn();
      since = now;
      continue;
    }
    if (!told && now - start > kSilence) {
      told = true;
      log(LogLevel::warn,
          fmt::format("waiting for another process that compiles {} (lock {}); it is passed over "
                      "after {} s",
                      what, lock_file_,
                      std::chrono::duration_cast<std::chrono::seconds>(patience).count()));
    }
    std::this_thread::sleep_for(jittered(pause));
    pause = std::min(kLongestPause, pause * 8 / 5);
  }
  return turn;
}

}  // namespace flashwright
