// Ctrl-C while something long runs: the first asks it to stop, the second ends the process.
#pragma once

namespace cli {

class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();  // ctrl-C ends the process again
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool requested();
};

}  // namespace cli
