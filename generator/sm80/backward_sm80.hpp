// The knobs of the backward kernels: which are legal, which are worth a try, which are good without one.
#pragma once

#include "core/device.hpp"
#include "core/problem.hpp"
#include "core/schedule.hpp"
#include "generator/verdict.hpp"

namespace flashwright::sm80 {

void check_backward_knobs(Verdict& verdict, const Problem& problem, const Schedule& schedule);

// All knobs of the space, legal or not, without blocks_per_sm.
std::vector<Schedule> backward_schedules(const Problem& problem);

// Schedules to try in order until one is legal.
std::vector<Schedule> backward_seeds(const Problem& problem);

}  // namespace flashwright::sm80
