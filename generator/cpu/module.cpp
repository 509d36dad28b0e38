#include "generator/cpu/module.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "core/expr_parse.hpp"
#include "core/mask.hpp"

namespace flashwright {

Source new_source(const Problem& problem) {
  Source source;
  source.language = Language::llvm_ir;
  source.target = problem.target;
  source.name = problem.algorithm == Algorithm::unfused    ? "fw_unfused.ll"
                : problem.direction == Direction::backward ? "fw_backward.ll"
                                                           : "fw_forward.ll";
  return source;
}

ir::ModuleTarget module_target(const Problem& problem) {
  const std::string& rung = problem.target.arch;
  const int bits = arch_info(problem.target).vector_bytes * 8;
  if (rung == "avx512")
    return {"x86_64-unknown-linux-gnu",
            "+avx2,+avx512bw,+avx512dq,+avx512f,+avx512vl,+bmi,+bmi2,+f16c,+fma", bits};
  if (rung == "avx2") return {"x86_64-unknown-linux-gnu", "+avx2,+bmi,+bmi2,+f16c,+fma", bits};
  return {"aarch64-unknown-linux-gnu", "+neon", bits};
}

std::string banner(const Problem& problem, const Schedule& schedule, const Tiling& tiling) {
  std::string text = fmt::format("; flashwright: attention {}, schedule {}.\n", to_string(problem),
                                 to_string(schedule));
  text += fmt::format(
      "; A task computes {} query rows{} ({} vectors of {}) and steps over {} keys at a time.\n"
      "; Scratch of a worker: {} bytes. Parameters are described in core/params.\n\n",
      tiling.tile_q, problem.direction == Direction::backward ? " at a time" : "",
      tiling.query_vectors, tiling.lanes, tiling.tile_kv, tiling.scratch_bytes);
  return text;
}

ExprPtr task_rule(const Problem& problem, const Tiling& tiling) {
  if (info(problem.mask).lists)
    return parse_expr(
        fmt::format("ceil_div(block_q, {}) * query_blocks * heads_q * batch", tiling.tile_q));
  return parse_expr(fmt::format(
      "ceil_div(floor_div(heads_q, heads_kv) * seq_q, {}) * heads_kv * batch", tiling.tile_q));
}

Param param_named(std::string_view name) {
  for (int i = 0; i < kParamCount; ++i)
    if (info(static_cast<Param>(i)).name == name) return static_cast<Param>(i);
  throw Error(Status::internal, fmt::format("'{}' is no launch parameter", name));
}

}  // namespace flashwright
