// Emits the attention forward as LLVM IR: tiled with online softmax, or in three passes.
#pragma once

#include "core/source.hpp"
#include "generator/cpu/tiling.hpp"

namespace flashwright {

Source emit_tiled(const Problem& problem, const Schedule& schedule);
Source emit_unfused(const Problem& problem, const Schedule& schedule);

}  // namespace flashwright
