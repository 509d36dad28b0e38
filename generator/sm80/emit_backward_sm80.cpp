// The backward kernels: the statistics of each query, then dQ over the keys, then dK and dV over the queries.
#include <fmt/format.h>

#include "core/dtype.hpp"
#include "core/expr_parse.hpp"
#include "core/mask.hpp"
#include "generator/sm80/emit_sm80.hpp"
#include "generator/sm80/layout_sm80.hpp"

namespace flashwright::sm80 {
namespace {

std::vector<Line> tile_constants(const Problem& problem, const Schedule& s) {
  return print_constants({
      int_constant("kTileQ", s.tile_q, "queries per block of fw_dq"),
      int_constant("kTileKv", s.tile_kv, "keys per step of it"),
      int_constant("kKeysPerBlock", s.keys_per_block, "keys per block that sums over queries"),
      int_constant("kQueryStep", s.query_step, "queries per step of it"),
      int_constant("kHeadDim", problem.head_dim, "of queries and keys"),
      int_constant("kHeadDimV", problem.head_dim_v, "of values and outputs"),
      int_constant("kWarps", s.warps, "per block"),
      {"constexpr int kThreads = 32 * kWarps", ""},
      int_constant("kBlocksPerSm", s.blocks_per_sm, "resident together, asked of the compiler"),
      int_constant("kStages", s.stages, "tiles of a walk in flight"),
      {},
      int_constant("kElementBytes", info(problem.dtype).bytes, to_string(problem.dtype)),
      int_constant("kMmaK", mma_depth(problem.dtype), "depth of one tensor core step"),
      {"constexpr int kRowTiles = kTileQ / (16 * kWarps)", "tiles of 16 queries that a warp owns"},
      {"constexpr int kKeyTiles = kTileKv / 8", "accumulator tiles along the keys"},
      {"constexpr int kKeyRowTiles = kKeysPerBlock / (16 * kWarps)",
       "tiles of 16 keys that a warp owns"},
      {"constexpr int kQueryTiles = kQueryStep / 8", "accumulator tiles along the queries"},
      int_constant("kRowLanes", statistics_lanes(problem), "lanes for the statistics of a query"),
      int_constant("kStatisticsBytes", kStatisticsBytes, "of a query: any may start a copy"),
      {},
      {"constexpr float kLog2E = 1.4426950408889634f", ""},
  });
}

std::vector<Line> memory(const Problem& problem, const Schedule& schedule) {
  const BackwardLayout sizes = backward_layout(problem, schedule);
  std::vector<Line> lines = row_bytes_function();
  append(
      lines,
      print_constants({
          {"constexpr int kQueriesBytes = kTileQ * row_bytes(kHeadDim)", ""},
          {"constexpr int kOutputsBytes = kTileQ * row_bytes(kHeadDimV)", ""},
          {"constexpr int kStepKeysBytes = kTileKv * row_bytes(kHeadDim)", ""},
          {"constexpr int kKeyStageBytes = kStepKeysBytes + kTileKv * row_bytes(kHeadDimV)", ""},
          {"constexpr int kDqBytes = kQueriesBytes + kOutputsBytes + kStages * kKeyStageBytes", ""},
          {},
          {"constexpr int kKeysBytes = kKeysPerBlock * row_bytes(kHeadDim)", ""},
          {"constexpr int kValuesBytes = kKeysPerBlock * row_bytes(kHeadDimV)", ""},
          {"constexpr int kStepQueriesBytes = kQueryStep * row_bytes(kHeadDim)", ""},
          {"constexpr int kStepOutputsBytes = kQueryStep * row_bytes(kHeadDimV)", ""},
          {"constexpr int kStepBytes = kStepQueriesBytes + kStepOutputsBytes", ""},
          {"constexpr int kQueryStageBytes = kStepBytes + kQueryStep * kStatisticsBytes", ""},
          {"constexpr int kDkDvBytes = kKeysBytes + kValuesBytes + kStages * kQueryStageBytes", ""},
      }));
  append(lines, size_check("kDqBytes", sizes.dq_bytes));
  append(lines, size_check("kDkDvBytes", sizes.dk_dv_bytes));
  return lines;
}

ParamLayout params_for(const Problem& problem) {
  using enum Param;
  ParamLayout params;
  const auto add = [&params](std::initializer_list<Param> rows) {
    for (const Param row : rows) params.add(row);
  };
  add({q, k, v, o_given, lse_given, d_o, d_lse, dq, dk, dv, workspace});
  for (const Param first : {q_batch_stride, k_batch_stride, v_batch_stride, o_batch_stride,
                            d_o_batch_stride, dq_batch_stride, dk_batch_stride, dv_batch_stride})
    for (int i = 0; i < 3; ++i) params.add(static_cast<Param>(static_cast<int>(first) + i));
  add({lse_batch_stride, lse_head_stride, d_lse_batch_stride, d_lse_head_stride, batch, heads_q,
       heads_kv, group, seq_q, seq_kv, softmax_scale});
  if (!problem.softcap) add({scale_log2});
  add_score_params(problem, params);
  if (problem.mask == Mask::Kind::window) add({window_left, window_right});
  if (problem.mask == Mask::Kind::blocks)
    add({block_q, block_kv, query_blocks, mask_batch, mask_heads, full_offsets, full_columns,
         partial_offsets, partial_columns, partial_bits, full_query_offsets, full_query_rows,
         partial_query_offsets, partial_query_rows, partial_query_places});
  if (problem.dropout) add({drop_threshold, keep_scale, dropout_key, rng_state});
  add({aligned});
  return params;
}

LaunchPlan plan_for(const Problem& problem, const Schedule& s) {
  const BackwardLayout sizes = backward_layout(problem, s);
  const int threads = 32 * s.warps;
  const bool blocks = problem.mask == Mask::Kind::blocks;
  const std::string query_tiles =
      blocks ? fmt::format("query_blocks * ceil_div(block_q, {})", s.tile_q)
             : fmt::format("ceil_div(seq_q, {})", s.tile_q);
  const std::string key_tiles =
      blocks ? fmt::format("ceil_div(seq_kv, block_kv) * ceil_div(block_kv, {})", s.keys_per_block)
             : fmt::format("ceil_div(seq_kv, {})", s.keys_per_block);
  LaunchPlan plan;
  plan.params = params_for(problem);
  plan.workspace = parse_expr(fmt::format("batch * heads_q * seq_q * {}", kStatisticsBytes));
  plan.steps = {
      {"fw_statistics", threads, 0,
       parse_expr(fmt::format("ceil_div(batch * heads_q * seq_q, {})",
                              threads / statistics_lanes(problem)))},
      {"fw_dq", threads, sizes.dq_bytes, parse_expr(query_tiles + " * heads_q * batch * want_dq")}};
  const auto add = [&](const char* entry, const char* wanted) {
    plan.steps.push_back({entry, threads, sizes.dk_dv_bytes,
                          parse_expr(key_tiles + " * heads_kv * batch * " + wanted)});
  };
  if (s.split_keys != 0) {
    add("fw_dk", "want_dk");
    add("fw_dv", "want_dv");
  } else {
    add("fw_dk_dv", "max(want_dk, want_dv)");
  }
  return plan;
}

std::string about(const Problem& problem, const Schedule& s) {
  const BackwardLayout sizes = backward_layout(problem, s);
  return fmt::format(
      "dQ in tiles of {} queries by {} keys; dK and dV{} in tiles of {} keys by {} queries; {} "
      "stage{}, {} warp{}. {:.1f} and {:.1f} KiB of shared memory.",
      s.tile_q, s.tile_kv, s.split_keys != 0 ? ", each by a kernel of its own," : "",
      s.keys_per_block, s.query_step, s.stages, s.stages == 1 ? "" : "s", s.warps,
      s.warps == 1 ? "" : "s", sizes.dq_bytes / 1024.0, sizes.dk_dv_bytes / 1024.0);
}

}  // namespace

Emission backward_emission(const Problem& problem, const Schedule& schedule) {
  Emission out;
  out.path = "sm80/backward.cu";
  out.name = "fw_backward.cu";
  out.options = problem_options(problem);
  out.options["FW_ONE_STAGE"] = schedule.stages == 1;
  out.options["FW_SPLIT_KEYS"] = schedule.split_keys != 0;
  out.plan = plan_for(problem, schedule);
  std::vector<Line>& constants = out.printed["constants.h"];
  append(constants, tile_constants(problem, schedule));
  append(constants, memory(problem, schedule));
  append(constants, print_params(out.plan.params, problem.dtype));
  std::vector<Line>& mask = out.printed["mask.h"];
  if (problem.mask != Mask::Kind::blocks) {
    append(mask, print_mask(problem.mask));
    append(mask, print_query_ranges(problem.mask));
  }
  std::vector<Line>& score = out.printed["score.h"];
  append(score, print_score(problem));
  append(score, print_derivative(problem));
  out.banner = print_banner(problem, schedule, about(problem, schedule), out.plan);
  return out;
}

}  // namespace flashwright::sm80
