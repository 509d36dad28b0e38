// An analytic estimate of the time of one launch, to rank schedules before any is compiled.
// Constants were fitted to measured landscapes: docs/performance.md.
#pragma once

#include "core/arguments.hpp"
#include "core/device.hpp"
#include "core/problem.hpp"
#include "core/schedule.hpp"

namespace flashwright::sm80 {

double model_time_us(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                     const Schedule& schedule);

}  // namespace flashwright::sm80
