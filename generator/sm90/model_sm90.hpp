// An analytic estimate of the time of one launch, to rank schedules before any is compiled. Its rates are
// those of one H200, measured with microbenchmarks; it is not yet fitted to kernels of this family.
#pragma once

#include "core/arguments.hpp"
#include "core/device.hpp"
#include "core/problem.hpp"
#include "core/schedule.hpp"

namespace flashwright::sm90 {

double model_time_us(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                     const Schedule& schedule);

}  // namespace flashwright::sm90
