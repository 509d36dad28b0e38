// Traffic with a GPU's memory as Nsight Compute counts it. It runs a command of ours and looks at its kernels.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace cli {

using KernelBytes = std::map<std::string, double>;  // by the name of the kernel

// Bytes that were read and written by the first launch of every kernel fw_* of a `bench`. Throws
// Error(unavailable) when there is no ncu on PATH, or when it counted nothing.
KernelBytes profile_with_ncu(const std::vector<std::string>& command);

// The same of the first launch of every kernel in what `ncu --csv` printed, other lines in between allowed.
KernelBytes parse_ncu(std::string_view printed);

}  // namespace cli
