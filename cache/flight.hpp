// Keeps processes from compiling the same kernel at the same time. It only saves work: every failure
// of a lock means that somebody compiles twice, and nothing depends on it.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "core/sha256.hpp"

namespace flashwright {

class Flight {
 public:
  // Processes that name the same store take turns. Locks live in $XDG_RUNTIME_DIR/flashwright, else
  // in /dev/shm/flashwright-<uid>, else beside the store if its file system is local.
  explicit Flight(std::string store_path);

  // The right to compile one key, until it is destroyed. The kernel of the system takes it back from
  // a process that dies.
  class Turn {
   public:
    explicit Turn(int descriptor = -1) : descriptor_(descriptor) {}
    ~Turn();
    Turn(Turn&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
    Turn& operator=(Turn&&) = delete;
    bool exclusive() const { return descriptor_ >= 0; }

   private:
    int descriptor_;
  };

  // Returns when this process should look for the result again and, when there is none, make it:
  // because it has the turn, because `ready` says that the result is there, or because waiting any
  // longer makes no sense. A holder that shows nothing for `patience` is passed over, by one process
  // at a time. `what` is named in the log when the wait is long.
  Turn wait(const Digest& key, const std::string& what, const std::function<bool()>& ready,
            std::chrono::milliseconds patience = std::chrono::seconds(30)) const;

  const std::string& lock_file() const { return lock_file_; }  // "": there is none

 private:
  std::string store_path_;
  std::string lock_file_;
};

}  // namespace flashwright
