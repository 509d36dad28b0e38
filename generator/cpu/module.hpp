// What every module of the CPU family has around its kernels: target, banner, task rule.
#pragma once

#include <string>
#include <string_view>

#include "core/source.hpp"
#include "generator/cpu/ir.hpp"
#include "generator/cpu/tiling.hpp"

namespace flashwright {

Source new_source(const Problem& problem);
ir::ModuleTarget module_target(const Problem& problem);
std::string banner(const Problem& problem, const Schedule& schedule, const Tiling& tiling);
// One task for each tile of rows.
ExprPtr task_rule(const Problem& problem, const Tiling& tiling);
// The launch parameter of that name.
Param param_named(std::string_view name);

}  // namespace flashwright
