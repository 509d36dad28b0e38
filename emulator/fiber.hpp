// Cooperative threads with stacks of their own. A switch saves the registers that a call preserves and
// nothing else; no system call is made.
#pragma once

#include <cstddef>

namespace flashwright::emulator {

// Where a fiber that is not running goes on.
using Fiber = void*;

// Goes on in `to`, and saves in `*from` where to come back.
void switch_fiber(Fiber* from, Fiber to);

// Stacks of equal size, each behind a page that cannot be touched: a kernel that overruns one ends the
// process instead of writing into its neighbour.
class Stacks {
 public:
  explicit Stacks(int count);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  // A fiber on stack `index` that begins with `body`, which must not return.
  Fiber prepare(int index, void (*body)());

 private:
  char* memory_;
  std::size_t bytes_;
};

}  // namespace flashwright::emulator
