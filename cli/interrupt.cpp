#include "cli/interrupt.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "cli/error.hpp"

namespace cli {
namespace {

std::atomic<int> interrupts{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler changes it");

extern "C" void on_interrupt(int) {
  if (interrupts.fetch_add(1) > 0) _exit(static_cast<int>(Exit::interrupted));
}

constexpr std::array kSignals = {SIGINT, SIGTERM};
std::array<struct sigaction, 2> previous;

}  // namespace

InterruptGuard::InterruptGuard() {
  interrupts = 0;
  struct sigaction action {};
  action.sa_handler = &on_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &previous[i]);
    // A shell that starts us in the background, or nohup, has asked for it to be ignored.
    if (previous[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptGuard::~InterruptGuard() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous[i], nullptr);
}

bool InterruptGuard::requested() { return interrupts > 0; }

}  // namespace cli
