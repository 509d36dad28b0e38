// NVRTC, loaded at run time: CUDA text to a cubin, with what ptxas says about it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/source.hpp"

namespace flashwright::nvrtc {

// "" when NVRTC is there; otherwise what was looked for and how to get it.
std::string missing();

struct Identity {
  std::string path;                // of the library
  std::pair<int, int> version;     // (13, 0)
  std::vector<int> architectures;  // compute capabilities it compiles for: 80, 86, ...
};
// Throws Error(unavailable) when NVRTC is missing.
const Identity& identity();

// What identifies the compiler in a key: a digest of the library files, without loading them.
std::string fingerprint();

// PTX for a "compute_" target, otherwise a cubin.
Binary::Kind binary_kind(const Target& target);

struct Header {
  std::string name, text;
};

struct CompileOptions {
  std::vector<std::string> defines;  // "FW_BF16=1"
  std::vector<Header> headers;       // for #include by name
  bool line_info = false;
};

// Thread-safe. Throws Error(compile_failed) with the log, lines rewritten, in `detail`;
// Error(unavailable) when NVRTC is missing or too old for the target, naming both versions.
Binary compile(const Source& source, const CompileOptions& options = {});

// ptxas' report and warnings in a compiler log.
Resources parse_resources(const std::string& log);
// The lines that warn of spills or of serialised matrix instructions.
std::vector<std::string> parse_warnings(const std::string& log);

}  // namespace flashwright::nvrtc
