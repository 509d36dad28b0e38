// The kernels for the vector unit of a CPU.
#pragma once

#include "generator/cpu/tiling.hpp"
#include "generator/family.hpp"

namespace flashwright {

// Lives as long as the process.
const Family& cpu_family();

// Microseconds of one launch by the cost model of model_cpu.cpp.
double model_time_us(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                     const Tiling& tiling);

// Bytes of one launch, by traffic_cpu.cpp.
std::optional<double> traffic_of(const Problem& problem, const Shape& shape, const Tiling& tiling);

}  // namespace flashwright
