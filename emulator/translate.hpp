// Emitted CUDA as host C++. The text stays as it stands, line by line, but for the wrappers of
// templates/ptx/ that hold instructions: each is found by its name, its instruction is compared with the
// one that the emulator implements, and a call into the emulator takes its place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/source.hpp"

namespace flashwright::emulator {

struct Translation {
  std::string text;                    // host C++; line i + offset is line i of the emitted file
  std::string name;                    // of the emitted file in reports
  std::vector<std::string> functions;  // by line of the emitted file: the function it belongs to
  LaunchPlan plan;                     // from the banner and `struct Params`
  std::vector<std::string> variables;  // in global memory, for as long as the module is loaded
  bool asynchronous = false;           // uses wrappers of sm_90
  bool swizzled = false;               // asks for shared memory that is aligned to 1024 bytes
  bool known_params = true;            // whether the plan says how to fill `struct Params`
};

// Throws Error(unsupported) with the line for an instruction outside of a known wrapper, a wrapper
// whose instruction is another one, or a file without launch lines.
Translation translate(std::string_view emitted, const std::string& name);

// A kernel that was written by hand over the same wrappers: one entry, no banner, and a `struct Params`
// of any layout. For tests.
Translation translate_entry(std::string_view text, const std::string& name,
                            const std::string& entry);

// A place in the emitted file: wrapper number and line.
constexpr std::uint32_t line_of(std::uint32_t site) { return site & 0xfffffu; }
std::string wrapper_of(std::uint32_t site);

// "copy_async_16 in load_tile, line 523"
std::string describe(const Translation& translation, std::uint32_t site);

}  // namespace flashwright::emulator
