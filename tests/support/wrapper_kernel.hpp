// A kernel written for a test: its body, and the wrappers of templates/ptx/ that it uses.
#pragma once

#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "generator/sm90/print_wgmma.hpp"

namespace flashwright::testing {

// CUDA C++ with all wrappers that `body` names, as an emitted file has them; `using Element` of the
// dtype included. `body` holds `struct Params`, functions and one kernel, which takes
// `const __grid_constant__ Params params`.
std::string wrapper_kernel(const std::string& body, DType dtype,
                           const std::vector<sm90::ProductShape>& products = {});

}  // namespace flashwright::testing
