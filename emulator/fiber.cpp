#include "emulator/fiber.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "core/error.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.type fw_switch_fiber, @function
fw_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size fw_switch_fiber, .-fw_switch_fiber
)");
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.type fw_switch_fiber, %function
fw_switch_fiber:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size fw_switch_fiber, .-fw_switch_fiber
)");
#else
#error "the emulator needs x86-64 or AArch64; configure with -DFLASHWRIGHT_EMULATOR=OFF"
#endif

extern "C" void fw_switch_fiber(void** from, void* to);

namespace flashwright::emulator {
namespace {

constexpr std::size_t kGuardBytes = 64 * 1024;  // a multiple of every page size
constexpr std::size_t kStackBytes = 256 * 1024;
constexpr std::size_t kStride = kGuardBytes + kStackBytes;

}  // namespace

void switch_fiber(Fiber* from, Fiber to) { fw_switch_fiber(from, to); }

Stacks::Stacks(int count) : bytes_(static_cast<std::size_t>(count) * kStride) {
  void* const memory = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error(Status::unavailable, "emulator: no memory for stacks");
  memory_ = static_cast<char*>(memory);
  for (int i = 0; i < count; ++i)
    if (mprotect(memory_ + static_cast<std::size_t>(i) * kStride + kGuardBytes, kStackBytes,
                 PROT_READ | PROT_WRITE) != 0) {
      munmap(memory_, bytes_);
      throw Error(Status::unavailable, "emulator: no memory for stacks");
    }
}

Stacks::~Stacks() { munmap(memory_, bytes_); }

Fiber Stacks::prepare(int index, void (*body)()) {
  char* const top = memory_ + static_cast<std::size_t>(index + 1) * kStride;
#if defined(__SANITIZE_ADDRESS__)
  // A fiber that was stopped has left the marks of its frames behind.
  __asan_unpoison_memory_region(top - kStackBytes, kStackBytes);
#endif
#if defined(__x86_64__)
  // Six registers, the address to return to, and one word so that the stack is as a call leaves it.
  void** const saved = reinterpret_cast<void**>(top) - 8;
  std::memset(saved, 0, 8 * sizeof(void*));
  saved[6] = reinterpret_cast<void*>(body);
#else
  void** const saved = reinterpret_cast<void**>(top - 160);
  std::memset(saved, 0, 160);
  saved[11] = reinterpret_cast<void*>(body);
#endif
  return saved;
}

}  // namespace flashwright::emulator
