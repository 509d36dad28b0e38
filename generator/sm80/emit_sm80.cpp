#include "generator/sm80/emit_sm80.hpp"

#include <fmt/format.h>

#include "core/dtype.hpp"
#include "core/expr_parse.hpp"
#include "core/mask.hpp"
#include "generator/sm80/layout_sm80.hpp"

namespace flashwright::sm80 {
namespace {

std::vector<Line> tile_constants(const Problem& problem, const Schedule& schedule) {
  std::vector<Constant> rows = {
      int_constant("kTileQ", schedule.tile_q, "query rows per block"),
      int_constant("kTileKv", schedule.tile_kv, "keys per step"),
      int_constant("kHeadDim", problem.head_dim, "of queries and keys"),
      int_constant("kHeadDimV", problem.head_dim_v, "of values and outputs"),
      int_constant("kWarps", schedule.warps, "per block"),
      {"constexpr int kThreads = 32 * kWarps", ""},
  };
  if (problem.algorithm == Algorithm::tiled) {
    rows.push_back(int_constant("kBlocksPerSm", schedule.blocks_per_sm,
                                "resident together, asked of the compiler"));
    rows.push_back(int_constant("kStages", schedule.stages, "key and value tiles in flight"));
  }
  const std::vector<Constant> counts = {
      {},
      int_constant("kElementBytes", info(problem.dtype).bytes, to_string(problem.dtype)),
      int_constant("kMmaK", mma_depth(problem.dtype), "depth of one tensor core step"),
      {"constexpr int kRowTiles = kTileQ / (16 * kWarps)", "tiles of 16 rows that a warp owns"},
      {"constexpr int kKeyTiles = kTileKv / 8", "accumulator tiles along the keys"},
      {"constexpr int kKeySteps = kTileKv / kMmaK", "tensor core steps along the keys"},
      {"constexpr int kDimTiles = kHeadDimV / 8", "accumulator tiles along the head dim"},
      {"constexpr int kDimSteps = (kHeadDim + kMmaK - 1) / kMmaK", "tensor core steps along it"},
      {},
      {"constexpr float kLn2 = 0.6931471805599453f", ""},
      {"constexpr float kLog2E = 1.4426950408889634f", ""},
      {"constexpr float kLargeExponent = 256.0f", "from here on one rounding would show"},
  };
  rows.insert(rows.end(), counts.begin(), counts.end());
  return print_constants(rows);
}

}  // namespace

std::vector<Line> row_bytes_function() {
  return {{"// Bytes of a row in shared memory: whole tensor core steps, and an odd number of "
           "16-byte chunks,",
           {}},
          {"// so that the eight rows of a matrix start in different banks.", {}},
          {"__device__ constexpr int row_bytes(int columns) {", {}},
          {"  return ((columns + kMmaK - 1) / kMmaK * kMmaK * kElementBytes / 16 | 1) * 16;", {}},
          {"}", {}}};
}

std::vector<Line> size_check(const char* name, int bytes) {
  return {{fmt::format("static_assert({} == {}, \"the launch plan says so\");", name, bytes), {}}};
}

Options problem_options(const Problem& problem) {
  Options options;
  for (const std::string& name : option_names()) options[name] = 0;
  options["FW_FP16"] = problem.dtype == DType::fp16;
  options["FW_BF16"] = problem.dtype == DType::bf16;
  options["FW_FP32"] = problem.dtype == DType::fp32;
  options["FW_MASK"] = problem.mask == Mask::Kind::causal || problem.mask == Mask::Kind::window;
  options["FW_BLOCKS"] = problem.mask == Mask::Kind::blocks;
  options["FW_DROPOUT"] = problem.dropout;
  options["FW_SOFTCAP"] = problem.softcap;
  options["FW_ALIBI"] = problem.alibi;
  options["FW_NEGATIVE_SCALE"] = problem.negative_scale;
  return options;
}

namespace {

// Queries (later the output) come first, then the stages of keys, then those of values.
std::vector<Line> tiled_memory(const Problem& problem, const Schedule& schedule) {
  const Layout sizes = layout(problem, schedule);
  const bool q_leaves = schedule.q_in_registers != 0;
  std::vector<Constant> rows = {
      {"constexpr int kQueriesBytes = kTileQ * row_bytes(kHeadDim)", ""},
      {"constexpr int kKeysBytes = kTileKv * row_bytes(kHeadDim)", "one stage"},
      {"constexpr int kValuesBytes = kTileKv * row_bytes(kHeadDimV)", "one stage"},
      {q_leaves ? "constexpr int kKeysOffset = 0" : "constexpr int kKeysOffset = kQueriesBytes",
       q_leaves ? "the queries have left by then" : ""},
      {"constexpr int kValuesOffset = kKeysOffset + kStages * kKeysBytes", ""},
      {"constexpr int kTilesBytes = kValuesOffset + kStages * kValuesBytes", ""},
  };
  const int tiles_bytes = sizes.values_offset + schedule.stages * sizes.values_bytes;
  if (sizes.smem_bytes == tiles_bytes) {
    rows.push_back({"constexpr int kSharedBytes = kTilesBytes", ""});
  } else if (sizes.smem_bytes == schedule.tile_q * row_bytes(problem.dtype, problem.head_dim)) {
    rows.push_back({"constexpr int kSharedBytes = kQueriesBytes", ""});
  } else {
    rows.push_back({"constexpr int kSharedBytes = kTileQ * row_bytes(kHeadDimV)",
                    "for the output at the end"});
  }
  std::vector<Line> lines = row_bytes_function();
  append(lines, print_constants(rows));
  append(lines, size_check("kSharedBytes", sizes.smem_bytes));
  return lines;
}

std::vector<Line> unfused_memory(const Problem& problem, const Schedule& schedule) {
  const UnfusedLayout sizes = unfused_layout(problem, schedule);
  std::vector<Line> lines = row_bytes_function();
  append(lines,
         print_constants({
             {"constexpr int kKeysOffset = kTileQ * row_bytes(kHeadDim)", "behind the queries"},
             {"constexpr int kScoresBytes = kKeysOffset + kTileKv * row_bytes(kHeadDim)", ""},
             {"constexpr int kValuesOffset = kTileQ * row_bytes(kTileKv)", "behind the weights"},
             {"constexpr int kOutputBytes = kValuesOffset + kTileKv * row_bytes(kHeadDimV)", ""},
         }));
  append(lines, size_check("kScoresBytes", sizes.scores_bytes));
  append(lines, size_check("kOutputBytes", sizes.output_bytes));
  return lines;
}

ParamLayout params_for(const Problem& problem) {
  const bool unfused = problem.algorithm == Algorithm::unfused;
  ParamLayout params;
  const auto add = [&params](std::initializer_list<Param> rows) {
    for (const Param row : rows) params.add(row);
  };
  add({Param::q, Param::k, Param::v, Param::o, Param::lse});
  if (unfused) add({Param::workspace});
  add({Param::q_batch_stride, Param::q_row_stride, Param::q_head_stride, Param::k_batch_stride,
       Param::k_row_stride, Param::k_head_stride, Param::v_batch_stride, Param::v_row_stride,
       Param::v_head_stride, Param::o_batch_stride, Param::o_row_stride, Param::o_head_stride,
       Param::lse_batch_stride, Param::lse_head_stride});
  if (unfused) add({Param::batch});
  add({Param::heads_q, Param::group, Param::seq_q, Param::seq_kv});
  if (unfused || !problem.softcap) add({unfused ? Param::softmax_scale : Param::scale_log2});
  add_score_params(problem, params);
  if (problem.mask == Mask::Kind::window) add({Param::window_left, Param::window_right});
  if (problem.mask == Mask::Kind::blocks)
    add({Param::block_q, Param::block_kv, Param::query_blocks, Param::mask_batch, Param::mask_heads,
         Param::full_offsets, Param::full_columns, Param::partial_offsets, Param::partial_columns,
         Param::partial_bits});
  if (problem.dropout)
    add({Param::drop_threshold, Param::keep_scale, Param::dropout_key, Param::rng_state});
  add({Param::aligned});
  return params;
}

Options options_for(const Problem& problem, const Schedule& schedule) {
  Options options = problem_options(problem);
  options["FW_Q_IN_REGISTERS"] = schedule.q_in_registers != 0;
  options["FW_ONE_STAGE"] = schedule.stages == 1;
  options["FW_LAZY_RESCALE"] = schedule.lazy_rescale != 0;
  return options;
}

LaunchPlan tiled_plan(const Problem& problem, const Schedule& schedule) {
  LaunchPlan plan;
  plan.params = params_for(problem);
  const std::string tiles =
      problem.mask == Mask::Kind::blocks
          ? fmt::format("query_blocks * ceil_div(block_q, {})", schedule.tile_q)
          : fmt::format("ceil_div(seq_q, {})", schedule.tile_q);
  plan.steps.push_back({"fw_forward", 32 * schedule.warps, layout(problem, schedule).smem_bytes,
                        parse_expr(tiles + " * heads_q * batch")});
  return plan;
}

LaunchPlan unfused_plan(const Problem& problem, const Schedule& schedule) {
  const UnfusedLayout sizes = unfused_layout(problem, schedule);
  const int threads = 32 * schedule.warps;
  LaunchPlan plan;
  plan.params = params_for(problem);
  plan.steps = {
      {"fw_scores", threads, sizes.scores_bytes,
       parse_expr(fmt::format("ceil_div(seq_q, {}) * ceil_div(seq_kv, {}) * heads_q * batch",
                              schedule.tile_q, schedule.tile_kv))},
      {"fw_softmax", threads, 0,
       parse_expr(fmt::format("ceil_div(batch * heads_q * seq_q, {})", schedule.warps))},
      {"fw_output", threads, sizes.output_bytes,
       parse_expr(fmt::format("ceil_div(seq_q, {}) * heads_q * batch", schedule.tile_q))}};
  plan.workspace = parse_expr(fmt::format("batch * heads_q * seq_q * ceil_div(seq_kv, 8) * {}",
                                          8 * info(problem.dtype).bytes));
  return plan;
}

std::string about(const Problem& problem, const Schedule& s) {
  if (problem.algorithm == Algorithm::unfused)
    return fmt::format("Tiles of {} queries by {} keys, {} warps; all scores pass through memory.",
                       s.tile_q, s.tile_kv, s.warps);
  return fmt::format(
      "Tiles of {} queries by {} keys, {} stage{}, {} warp{}{}. {:.1f} KiB of shared memory.",
      s.tile_q, s.tile_kv, s.stages, s.stages == 1 ? "" : "s", s.warps, s.warps == 1 ? "" : "s",
      s.q_in_registers != 0 ? ", queries in registers" : "",
      layout(problem, s).smem_bytes / 1024.0);
}

}  // namespace

Emission emission(const Problem& problem, const Schedule& schedule) {
  if (problem.direction == Direction::backward) return backward_emission(problem, schedule);
  const bool unfused = problem.algorithm == Algorithm::unfused;
  Emission out;
  out.path = unfused ? "sm80/unfused.cu" : "sm80/forward.cu";
  out.name = unfused ? "fw_unfused.cu" : "fw_forward.cu";
  out.options = options_for(problem, schedule);
  out.plan = unfused ? unfused_plan(problem, schedule) : tiled_plan(problem, schedule);
  std::vector<Line>& constants = out.printed["constants.h"];
  append(constants, tile_constants(problem, schedule));
  append(constants, unfused ? unfused_memory(problem, schedule) : tiled_memory(problem, schedule));
  append(constants, print_params(out.plan.params, problem.dtype));
  out.printed["mask.h"] =
      problem.mask == Mask::Kind::blocks ? std::vector<Line>{} : print_mask(problem.mask);
  out.printed["score.h"] = print_score(problem);
  out.banner = print_banner(problem, schedule, about(problem, schedule), out.plan);
  return out;
}

}  // namespace flashwright::sm80
