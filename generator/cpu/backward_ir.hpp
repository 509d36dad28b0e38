// The gradients of q, k and v as one module: fw_backward_copy copies keys and values side by side, fw_backward computes
// the gradients tile by tile, and fw_backward_convert adds up what its tasks have gathered for keys and values.
#pragma once

#include "core/problem.hpp"
#include "core/schedule.hpp"
#include "core/source.hpp"
#include "generator/cpu/tiling.hpp"

namespace flashwright {

// Tasks that share the query tiles of a key head, as a rule over the sizes of a launch.
std::string backward_parts_rule(const Problem& problem, const Tiling& tiling);

Source emit_backward(const Problem& problem, const Schedule& schedule);

}  // namespace flashwright
