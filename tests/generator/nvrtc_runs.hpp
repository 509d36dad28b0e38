// Many compilations on all cores, and what they say about a family's estimates.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/support/emitted.hpp"

namespace flashwright::testing {

// True, and a skip of `name`, when there is no NVRTC.
bool lacks_nvrtc(const std::string& name);
bool nvrtc_knows(const Target& target);

// Runs body(i) for all i below count on as many threads as there are cores.
void on_all_cores(std::size_t count, const std::function<void(std::size_t)>& body);

// How far the compiler's registers may be from the family's law. Below: the law counts what is needed at least;
// above: what the compiler takes where there is room.
struct Margins {
  int below, above;
  int spill_bytes;  // allowed; every spill is counted
};

struct CompileSummary {
  std::vector<std::string> faults;  // one line each: the kernel and what is wrong
  int compiled = 0, spilled = 0;
  int least = 0, most = 0;        // registers beyond the estimate
  std::string least_of, most_of;  // and the kernels where
  double slowest_ms = 0;
  std::string text() const;  // for the log of the test
};

// Compiles every kernel; a fault is an error, a spill that is not allowed, shared memory other than planned, or
// registers beyond the margins.
CompileSummary compile_all(const std::vector<NamedKernel>& kernels, const Margins& margins);

// The faults as one text, the first forty of them.
std::string faults_of(const CompileSummary& summary);

}  // namespace flashwright::testing
