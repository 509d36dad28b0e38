// The border between the library and libflashwright-cpu.so, the one shared object that links LLVM.
// It is opened on the first use of the CPU backend, so a process that never computes on the CPU
// never maps it.
#pragma once

#include "core/log.hpp"
#include "generator/family.hpp"
#include "runtime/backend.hpp"

namespace flashwright {

struct CpuPlugin {
  const char* build_id;  // must equal the library's: both come from one build
  const Family* family;
  Backend* backend;
  // The rate of multiply-adds on registers alone, in 10^9 floating-point operations a second, that
  // this many threads reach together: what a kernel's speed is a fraction of. Takes about
  // `milliseconds`.
  double (*fma_peak_gflops)(int threads, double milliseconds);
};

// What the plugin borrows from the library: its copy of the log does not know the user's callback.
struct CpuPluginHost {
  void (*log)(LogLevel level, const char* line);
  bool (*log_enabled)(LogLevel level);
};

// The symbol that the plugin exports.
constexpr const char* kCpuPluginEntry = "flashwright_cpu_plugin";
using CpuPluginEntry = const CpuPlugin* (*)(const CpuPluginHost* host);

// Opens the plugin once. On failure returns null and sets `reason` to what is missing and what to
// do.
const CpuPlugin* load_cpu_plugin(std::string& reason);

}  // namespace flashwright
