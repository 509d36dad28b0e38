// What the compiler has made of a kernel, as the disassembler of the CUDA toolkit prints it.
#pragma once

#include <string>

namespace flashwright::testing {

// Whether cuobjdump is in PATH.
bool has_disassembler();
// The machine code of a cubin as text.
std::string disassembled(const std::string& cubin);

// "" or the first instruction that writes a register which a wgmma product under way still reads or writes.
// The compiler keeps these registers as long as it sees the wait; behind a branch it may not.
std::string early_write(const std::string& sass);

}  // namespace flashwright::testing
