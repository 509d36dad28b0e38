// Which architecture to compile for, given a device and a compiler: a pure function over version
// numbers.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace flashwright::cuda {

struct ArchChoice {
  std::string arch;  // "sm_90a"; with `ptx`, "compute_86"
  bool ptx = false;  // the driver finishes the compilation
};

// Compute capability (9, 0) and NVRTC version (12, 3). Best first:
//   code that is specific to exactly this device ("a"), plain code for it, plain code for the
//   nearest lower minor of the same major, then PTX of the highest plain architecture that is not
//   above the device.
// Empty when the compiler knows nothing that such a device can run.
std::vector<ArchChoice> arch_choices(std::pair<int, int> capability, std::pair<int, int> nvrtc);

// The first NVRTC that compiles for a capability, e.g. {12, 0} for 9.0; {0, 0} for one that is not
// known.
std::pair<int, int> nvrtc_needed(std::pair<int, int> capability);

}  // namespace flashwright::cuda
