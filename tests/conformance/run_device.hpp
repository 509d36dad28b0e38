// Cases on a GPU.
#pragma once

#include "core/source.hpp"
#include "runtime/backend.hpp"
#include "tests/conformance/golden.hpp"

namespace flashwright::conformance {

// The case as the text of a program for "sm_80" or "sm_90a".
Source source_of(const Case& c, const std::string& arch);

// Whether code for `arch` may hold what the case needs.
bool fits(const Case& c, const std::string& arch);

// A case as NVRTC compiles it, or its log.
struct DeviceCase {
  const Case* of = nullptr;
  Source source;
  Binary binary;
  std::string fault;
};
// On all cores.
std::vector<DeviceCase> compile_for_device(const std::vector<const Case*>& cases,
                                           const std::string& arch);

struct DeviceRun {
  std::size_t ran = 0;
  std::vector<std::string> faults;  // each with the name of its case
};

// Runs cases one after another, up to one that a device cannot run: it takes the context with it, so the
// fault says which cases were not run. Names go to stderr, so that a kernel that hangs is known by its
// own.
DeviceRun run_on_device(Backend& backend, const std::vector<DeviceCase>& cases, int device,
                        GoldenWriter& writer);

}  // namespace flashwright::conformance
