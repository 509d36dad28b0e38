#include <fmt/format.h>

#include "core/dtype.hpp"
#include "core/expr_parse.hpp"
#include "core/mask.hpp"
#include "generator/compose.hpp"
#include "generator/sm80/family_sm80.hpp"
#include "generator/sm80/layout_sm80.hpp"

namespace flashwright {
namespace {

using sm80::Layout;

Constant number(const char* name, int value, const char* comment) {
  return {fmt::format("constexpr int {} = {}", name, value), comment};
}

void append(std::vector<Line>& lines, const std::vector<Line>& more) {
  if (!lines.empty()) lines.push_back({});
  lines.insert(lines.end(), more.begin(), more.end());
}

std::vector<Line> tile_constants(const Problem& problem, const Schedule& schedule) {
  return print_constants({
      number("kTileQ", schedule.tile_q, "query rows per block"),
      number("kTileKv", schedule.tile_kv, "keys per step"),
      number("kHeadDim", problem.head_dim, "of queries and keys"),
      number("kHeadDimV", problem.head_dim_v, "of values and outputs"),
      number("kStages", schedule.stages, "key and value tiles in flight"),
      number("kWarps", schedule.warps, "per block; each owns kTileQ / kWarps rows"),
      {"constexpr int kThreads = 32 * kWarps", ""},
      number("kBlocksPerSm", schedule.blocks_per_sm, "resident together, asked of the compiler"),
      {},
      number("kElementBytes", info(problem.dtype).bytes, to_string(problem.dtype)),
      number("kMmaK", sm80::mma_depth(problem.dtype), "depth of one tensor core step"),
      {"constexpr int kRowTiles = kTileQ / (16 * kWarps)", "tiles of 16 rows that a warp owns"},
      {"constexpr int kKeyTiles = kTileKv / 8", "accumulator tiles along the keys"},
      {"constexpr int kKeySteps = kTileKv / kMmaK", "tensor core steps along the keys"},
      {"constexpr int kDimTiles = kHeadDimV / 8", "accumulator tiles along the head dim"},
      {"constexpr int kDimSteps = (kHeadDim + kMmaK - 1) / kMmaK", "tensor core steps along it"},
      {},
      {"constexpr float kLn2 = 0.6931471805599453f", ""},
      {"constexpr float kLargeExponent = 16384.0f", "from here on one rounding is a visible factor"},
  });
}

// Queries (later the output) come first, then the stages of keys, then those of values.
std::vector<Line> smem_constants(const Problem& problem, const Schedule& schedule, const Layout& layout) {
  const bool q_leaves = schedule.q_in_registers != 0;
  std::vector<Line> lines = {
      {"// Bytes of a row in shared memory: whole tensor core steps, and an odd number of 16-byte chunks, so", {}},
      {"// that the eight rows of a matrix start in different banks.", {}},
      {"__device__ constexpr int row_bytes(int columns) {", {}},
      {"  return ((columns + kMmaK - 1) / kMmaK * kMmaK * kElementBytes / 16 | 1) * 16;", {}},
      {"}", {}}};
  std::vector<Constant> rows = {
      {"constexpr int kQueriesBytes = kTileQ * row_bytes(kHeadDim)", ""},
      {"constexpr int kKeysBytes = kTileKv * row_bytes(kHeadDim)", "one stage"},
      {"constexpr int kValuesBytes = kTileKv * row_bytes(kHeadDimV)", "one stage"},
      {q_leaves ? "constexpr int kKeysOffset = 0" : "constexpr int kKeysOffset = kQueriesBytes",
       q_leaves ? "the queries have left by then" : ""},
      {"constexpr int kValuesOffset = kKeysOffset + kStages * kKeysBytes", ""},
      {"constexpr int kTilesBytes = kValuesOffset + kStages * kValuesBytes", ""},
  };
  const int tiles_bytes = layout.values_offset + schedule.stages * layout.values_bytes;
  if (layout.smem_bytes == tiles_bytes) {
    rows.push_back({"constexpr int kSharedBytes = kTilesBytes", "asked of the launch"});
  } else if (layout.smem_bytes == schedule.tile_q * sm80::row_bytes(problem.dtype, problem.head_dim)) {
    rows.push_back({"constexpr int kSharedBytes = kQueriesBytes", "asked of the launch"});
  } else {
    rows.push_back({"constexpr int kSharedBytes = kTileQ * row_bytes(kHeadDimV)", "for the output at the end"});
  }
  append(lines, print_constants(rows));
  append(lines, {{fmt::format("static_assert(kSharedBytes == {}, \"the launch plan says so\");",
                              layout.smem_bytes), {}}});
  return lines;
}

ParamLayout params_for(const Problem& problem) {
  ParamLayout params;
  const auto add = [&params](std::initializer_list<Param> rows) {
    for (const Param row : rows) params.add(row);
  };
  add({Param::q, Param::k, Param::v, Param::o, Param::lse,
       Param::q_batch_stride, Param::q_row_stride, Param::q_head_stride,
       Param::k_batch_stride, Param::k_row_stride, Param::k_head_stride,
       Param::v_batch_stride, Param::v_row_stride, Param::v_head_stride,
       Param::o_batch_stride, Param::o_row_stride, Param::o_head_stride,
       Param::lse_batch_stride, Param::lse_head_stride,
       Param::heads_q, Param::group, Param::seq_q, Param::seq_kv, Param::scale_log2});
  if (problem.mask == Mask::Kind::causal || problem.mask == Mask::Kind::window) add({Param::q_position});
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
  return {{"FW_FP16", problem.dtype == DType::fp16},
          {"FW_BF16", problem.dtype == DType::bf16},
          {"FW_FP32", problem.dtype == DType::fp32},
          {"FW_MASK", problem.mask == Mask::Kind::causal || problem.mask == Mask::Kind::window},
          {"FW_BLOCKS", problem.mask == Mask::Kind::blocks},
          {"FW_DROPOUT", problem.dropout},
          {"FW_Q_IN_REGISTERS", schedule.q_in_registers != 0},
          {"FW_ONE_STAGE", schedule.stages == 1}};
}

}  // namespace

Source FamilySm80::emit(const Problem& problem, const Schedule& schedule) const {
  const Layout layout = sm80::layout(problem, schedule);
  LaunchPlan plan;
  plan.params = params_for(problem);
  const std::string rows = problem.mask == Mask::Kind::blocks ? "query_blocks * ceil_div(block_q, {})"
                                                              : "ceil_div(seq_q, {})";
  plan.steps.push_back({"fw_forward", 32 * schedule.warps, layout.smem_bytes,
                        parse_expr(fmt::format(fmt::runtime(rows), schedule.tile_q) + " * heads_q * batch")});

  Printed printed;
  std::vector<Line>& constants = printed["constants.h"];
  append(constants, tile_constants(problem, schedule));
  append(constants, smem_constants(problem, schedule, layout));
  append(constants, print_params(plan.params, problem.dtype));
  printed["mask.h"] = problem.mask == Mask::Kind::blocks ? std::vector<Line>{} : print_mask(problem.mask);

  const std::string about = fmt::format(
      "Tiles of {} queries by {} keys, {} stage{}, {} warps{}. {:.1f} KiB of shared memory.", schedule.tile_q,
      schedule.tile_kv, schedule.stages, schedule.stages == 1 ? "" : "s", schedule.warps,
      schedule.q_in_registers != 0 ? ", queries in registers" : "", layout.smem_bytes / 1024.0);
  return emit_template("sm80/forward.cu", "fw_forward.cu", problem, options_for(problem, schedule), printed,
                       print_banner(problem, schedule, about, plan), plan);
}

}  // namespace flashwright
