#include "generator/sm90/emit_sm90.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/dtype.hpp"
#include "core/expr_parse.hpp"
#include "core/mask.hpp"
#include "generator/sm90/backward_sm90.hpp"
#include "generator/sm90/layout_sm90.hpp"
#include "generator/sm90/print_wgmma.hpp"

namespace flashwright::sm90 {
namespace {

// Whether blocks take the numbers of query tiles from each other: where some tiles take longer than
// others.
bool takes_numbers(const Problem& problem, const Schedule& schedule) {
  return schedule.persistent != 0 && problem.mask != Mask::Kind::none;
}

std::vector<Line> constants(const Problem& problem, const Schedule& schedule) {
  const Slabs keys = slabs(problem.head_dim), values = slabs(problem.head_dim_v);
  const int consumers = schedule.tile_q / 64;
  const Registers share = registers(problem, consumers);
  std::vector<Constant> rows = {
      int_constant("kConsumers", consumers, "warpgroups of 64 query rows; one more produces"),
      {"constexpr int kTileQ = 64 * kConsumers", "query rows per block"},
      int_constant("kTileKv", schedule.tile_kv, "keys per step"),
      int_constant("kStages", schedule.stages, "key and value tiles in flight"),
      int_constant("kQueryStages", 1 + schedule.query_prefetch, "query tiles in flight"),
      int_constant("kHeadDim", problem.head_dim, "of queries and keys"),
      int_constant("kHeadDimV", problem.head_dim_v, "of values and outputs"),
      {"constexpr int kThreads = 128 * (kConsumers + 1)", ""},
      int_constant("kBlocksPerSm", schedule.blocks_per_sm, "resident together"),
      int_constant("kProducerRegisters", share.producer, "of each thread"),
      int_constant("kConsumerRegisters", share.consumer, ""),
      {},
      int_constant("kElementBytes", 2, to_string(problem.dtype)),
      int_constant("kPaddedDim", keys.columns, "whole slabs"),
      int_constant("kPaddedDimV", values.columns, ""),
      int_constant("kSwizzle", keys.swizzle, "bytes of a slab of queries or keys"),
      int_constant("kSwizzleV", values.swizzle, "of values or outputs"),
      int_constant("kRowTiles", 1, "tiles of 16 rows that a warp owns"),
      {"constexpr int kKeyTiles = kTileKv / 8", "columns of accumulators along the keys"},
      {"constexpr int kKeySteps = kTileKv / 16", "tensor core steps along the keys"},
      {"constexpr int kDimTiles = kHeadDimV / 8", "columns of accumulators along the head dim"},
      {"constexpr int kDimSteps = (kHeadDim + 15) / 16", "tensor core steps along it"},
      {},
      {"constexpr float kLn2 = 0.6931471805599453f", ""},
      {"constexpr float kLog2E = 1.4426950408889634f", ""},
      {"constexpr float kLargeExponent = 256.0f", "from here on one rounding would show"},
  };
  if (schedule.longest_first != 0) {
    rows.push_back({"constexpr u32 kSectionBytes = 8u << 20", "of keys and values, for L2"});
    rows.push_back({"constexpr u32 kLastSectionBytes = 32u << 20", ""});
  }
  if (schedule.lazy_rescale > 1)
    rows.push_back({fmt::format("constexpr float kRescaleThreshold = {}.0f", schedule.lazy_rescale),
                    "weights stay below 2^this"});
  if (schedule.emulated_exp2 != 0)
    rows.push_back(int_constant("kEmulatedExp2", schedule.emulated_exp2,
                                "of so many weights one is a polynomial"));
  if (schedule.cluster != 0)
    rows.insert(rows.begin() + 4, int_constant("kClusterBlocks", schedule.cluster,
                                               "that bring keys and values to each other"));
  if (takes_numbers(problem, schedule))
    rows.insert(rows.begin() + 2, int_constant("kPersistentBlocks", schedule.persistent,
                                               "that take query tiles in turn"));
  return print_constants(rows);
}

// Queries of each consumer (later its output) by stages, then the stages of keys, then those of values, then the
// barriers.
std::vector<Line> memory(const Problem& problem, const Schedule& schedule) {
  const Layout sizes = layout(problem, schedule);
  std::vector<Constant> rows = {
      {"constexpr int kQueriesBytes = 64 * kPaddedDim * kElementBytes", "of one consumer"},
      int_constant("kOwnBytes", sizes.own_bytes, "of them, or of its output"),
      {"constexpr int kKeysBytes = kTileKv * kPaddedDim * kElementBytes", "one stage"},
      {"constexpr int kValuesBytes = kTileKv * kPaddedDimV * kElementBytes", "one stage"},
      int_constant("kKeysOffset", sizes.keys_offset, "multiples of 1024"),
      int_constant("kKeysStride", (sizes.values_offset - sizes.keys_offset) / schedule.stages, ""),
      int_constant("kValuesOffset", sizes.values_offset, ""),
      int_constant("kValuesStride", (sizes.work_offset - sizes.values_offset) / schedule.stages,
                   ""),
      int_constant("kWorkOffset", sizes.work_offset, "which query tiles are at hand"),
      int_constant("kWorkBytes", sizes.work_bytes, ""),
      int_constant("kBarriersOffset", sizes.barriers_offset, ""),
      {"constexpr int kBarriers = 2 * kQueryStages * kConsumers + 4 * kStages", ""},
      {"constexpr int kSharedBytes = kBarriersOffset + 8 * kBarriers", ""},
  };
  if (problem.mask == Mask::Kind::blocks)
    rows.push_back(
        int_constant("kTilesOffset", sizes.tiles_offset, "which tiles of keys the stages hold"));
  std::vector<Line> lines = print_constants(rows);
  lines.push_back({fmt::format("static_assert(kSharedBytes == {}, \"the launch plan says so\");",
                               sizes.smem_bytes),
                   {}});
  return lines;
}

ParamLayout params_for(const Problem& problem, const Schedule& schedule) {
  ParamLayout params;
  const auto add = [&params](std::initializer_list<Param> rows) {
    for (const Param row : rows) params.add(row);
  };
  add({Param::q_map,
       Param::k_map,
       Param::v_map,
       Param::o_map,
       Param::q,
       Param::k,
       Param::v,
       Param::o,
       Param::lse,
       Param::q_batch_stride,
       Param::q_row_stride,
       Param::q_head_stride,
       Param::k_batch_stride,
       Param::k_row_stride,
       Param::k_head_stride,
       Param::v_batch_stride,
       Param::v_row_stride,
       Param::v_head_stride,
       Param::o_batch_stride,
       Param::o_row_stride,
       Param::o_head_stride,
       Param::lse_batch_stride,
       Param::lse_head_stride,
       Param::heads_q,
       Param::group,
       Param::seq_q,
       Param::seq_kv});
  if (schedule.pack_heads != 0) add({Param::pack_shift});
  if (!problem.softcap) add({Param::scale_log2});
  if (schedule.persistent != 0 || schedule.longest_first != 0) add({Param::batch});
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

LaunchPlan plan_for(const Problem& problem, const Schedule& schedule) {
  LaunchPlan plan;
  plan.params = params_for(problem, schedule);
  const Slabs keys = slabs(problem.head_dim), values = slabs(problem.head_dim_v);
  const bool packs = schedule.pack_heads != 0;
  const auto box = [&](Param map, int head_dim, int rows, const Slabs& slab) {
    plan.boxes.push_back({map, problem.dtype, head_dim, rows,
                          slab.swizzle / info(problem.dtype).bytes, slab.swizzle,
                          packs && (map == Param::q_map || map == Param::o_map)});
  };
  box(Param::q_map, problem.head_dim, 64, keys);
  const int cluster = std::max(1, schedule.cluster), step_rows = schedule.tile_kv / cluster;
  box(Param::k_map, problem.head_dim, step_rows, keys);
  box(Param::v_map, problem.head_dim_v, step_rows, values);
  box(Param::o_map, problem.head_dim_v, 64, values);
  const bool blocks = problem.mask == Mask::Kind::blocks;
  const std::string rows = packs ? "seq_q * packed" : "seq_q",
                    heads = packs ? "floor_div(heads_q, packed)" : "heads_q";
  const std::string tiles =
      blocks ? fmt::format("query_blocks * ceil_div(block_q, {})", schedule.tile_q)
             : fmt::format("ceil_div({}, {})", rows, schedule.tile_q * cluster);
  // In clusters. Fewer than 2^32 tiles: outputs for more do not fit any device.
  std::string grid = fmt::format("{} * {} * batch", tiles, heads);
  if (takes_numbers(problem, schedule)) {
    grid = fmt::format("min({}, {})", grid, schedule.persistent);
  } else if (schedule.persistent != 0) {
    // As many rounds as the rows need, and no more blocks than fill them: so the blocks of a round
    // read the keys of few heads. Rows are counted, since the last tile of a head may be short.
    grid = fmt::format("min({}, ceil_div({}, max(1, ceil_div(seq_q * heads_q * batch, {}))))",
                       schedule.persistent / cluster, grid, schedule.tile_q * schedule.persistent);
  }
  if (cluster > 1) grid = fmt::format("{} * {}", cluster, grid);
  plan.steps.push_back({"fw_forward", 32 * schedule.warps, layout(problem, schedule).smem_bytes,
                        parse_expr(grid), true});
  return plan;
}

// The wrappers of wgmma for the shapes of this kernel, under the names of what they are for.
std::vector<Line> products(const Problem& problem, const Schedule& schedule) {
  ProductShape scores;
  scores.n = schedule.tile_kv;
  scores.a_in_registers = schedule.q_in_registers != 0;
  ProductShape first = scores;
  first.first = true;
  ProductShape output;
  output.n = problem.head_dim_v;
  output.a_in_registers = true;
  output.b_k_major = false;
  std::vector<Line> lines;
  const auto add = [&](const ProductShape& shape, const std::string& role, const std::string& a) {
    append(lines, print_product(shape, problem.dtype));
    append(lines, {{fmt::format("__device__ __forceinline__ void {}(float (&d)[{}], {}, u64 b) {{",
                                role, shape.n / 2, a),
                    {}},
                   {fmt::format("  {}(d, a, b);", product_name(shape)), {}},
                   {"}", {}}});
  };
  const std::string in_registers = "const u32 (&a)[4]";
  const std::string queries = scores.a_in_registers ? in_registers : "u64 a";
  add(first, "multiply_first_scores", queries);
  add(scores, "multiply_scores", queries);
  add(output, "multiply_output", in_registers);
  if (schedule.half_tiles != 0) {
    scores.n /= 2;
    first.n /= 2;
    add(first, "multiply_first_half_scores", "u64 a");
    add(scores, "multiply_half_scores", "u64 a");
  }
  return lines;
}

std::string about(const Problem& problem, const Schedule& s) {
  return fmt::format(
      "Tiles of {} queries by {} keys, {} stages; a producer and {} consumer warpgroup{}. {:.1f} "
      "KiB "
      "of shared memory.",
      s.tile_q, s.tile_kv, s.stages, s.tile_q / 64, s.tile_q == 64 ? "" : "s",
      layout(problem, s).smem_bytes / 1024.0);
}

}  // namespace

Emission emission(const Problem& problem, const Schedule& schedule) {
  if (problem.direction == Direction::backward) return backward_emission(problem, schedule);
  Emission out;
  out.path = "sm90/forward.cu";
  out.name = "fw_forward.cu";
  for (const std::string& option : option_names()) out.options[option] = 0;
  out.options["FW_FP16"] = problem.dtype == DType::fp16;
  out.options["FW_BF16"] = problem.dtype == DType::bf16;
  out.options["FW_MASK"] = problem.mask == Mask::Kind::causal || problem.mask == Mask::Kind::window;
  out.options["FW_BLOCKS"] = problem.mask == Mask::Kind::blocks;
  out.options["FW_DROPOUT"] = problem.dropout;
  out.options["FW_NEGATIVE_SCALE"] = problem.negative_scale;
  out.options["FW_SOFTCAP"] = problem.softcap;
  out.options["FW_ALIBI"] = problem.alibi;
  out.options["FW_PERSISTENT"] = schedule.persistent != 0;
  out.options["FW_PING_PONG"] = schedule.ping_pong != 0;
  out.options["FW_LAZY_RESCALE"] = schedule.lazy_rescale != 0;
  out.options["FW_RESCALE_THRESHOLD"] = schedule.lazy_rescale > 1;
  out.options["FW_HALF_TILES"] = schedule.half_tiles != 0;
  out.options["FW_CLUSTER"] = schedule.cluster != 0;
  out.options["FW_LATE_LSE"] = schedule.late_lse != 0;
  out.options["FW_Q_IN_REGISTERS"] = schedule.q_in_registers != 0;
  out.options["FW_EMULATED_EXP2"] = schedule.emulated_exp2 != 0;
  out.options["FW_PACK_HEADS"] = schedule.pack_heads != 0;
  out.options["FW_WINDOW"] = problem.mask == Mask::Kind::window;
  out.options["FW_LONGEST_FIRST"] = schedule.longest_first != 0;
  out.options["FW_COUNTER"] = takes_numbers(problem, schedule);
  out.options["FW_SWAP_ROWS"] =
      problem.mask == Mask::Kind::causal && schedule.query_prefetch != 0 && schedule.tile_q == 128;
  out.plan = plan_for(problem, schedule);
  std::vector<Line>& printed = out.printed["constants.h"];
  append(printed, constants(problem, schedule));
  append(printed, memory(problem, schedule));
  append(printed, print_params(out.plan.params, problem.dtype));
  out.printed["products.h"] = products(problem, schedule);
  out.printed["mask.h"] =
      problem.mask == Mask::Kind::blocks ? std::vector<Line>{} : print_mask(problem.mask);
  out.printed["score.h"] = print_score(problem);
  out.banner = print_banner(problem, schedule, about(problem, schedule), out.plan);
  return out;
}

}  // namespace flashwright::sm90
