#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "core/dtype.hpp"
#include "core/expr_parse.hpp"
#include "core/mask.hpp"
#include "generator/sm90/backward_sm90.hpp"
#include "generator/sm90/print_wgmma.hpp"

namespace flashwright::sm90 {
namespace {

constexpr int kPrepareThreads = 256;
constexpr int kRows = 64;  // of a consumer

// Threads for a row of an output, eight elements for each.
int row_threads(const Problem& problem) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(problem.head_dim_v) / 8));
}

std::vector<Line> constants(const Problem& problem, const Schedule& schedule) {
  const Slabs keys = slabs(problem.head_dim), values = slabs(problem.head_dim_v);
  const int consumers = schedule.tile_q / kRows;
  const BackwardRegisters share = backward_registers(problem, schedule);
  const KernelLayout queries = queries_layout(problem, schedule);
  const bool adder = schedule.add_queries == kByAdder;
  std::vector<Constant> rows = {
      int_constant("kConsumers", consumers, "warpgroups of 64 rows; one more produces"),
      {"constexpr int kThreads = 128 * (kConsumers + 1)", ""},
      {adder ? "constexpr int kKeysThreads = kThreads + 128"
             : "constexpr int kKeysThreads = kThreads",
       adder ? "of fw_backward_keys: one adds gradients of queries" : "of fw_backward_keys"},
      int_constant("kBlocksPerSm", schedule.blocks_per_sm, "resident together"),
      int_constant("kStages", schedule.stages, "tiles in flight"),
      {"constexpr int kTileQ = 64 * kConsumers", "queries of a block of fw_backward_queries"},
      int_constant("kTileKv", schedule.tile_kv, "keys that they meet in a step"),
      int_constant("kKeyStages", queries.first_stages, "of these in flight"),
      int_constant("kValueStages", queries.second_stages, ""),
      {apart(problem) ? "constexpr int kKeysPerBlock = 64"
                      : "constexpr int kKeysPerBlock = 64 * kConsumers",
       "keys of a block of fw_backward_keys"},
      int_constant("kQueryStep", schedule.query_step, "queries that they meet in a step"),
      int_constant("kPartQueries", part_queries(problem, schedule),
                   "of these whose scores are computed at once"),
      int_constant("kHeadDim", problem.head_dim, "of queries and keys"),
      int_constant("kHeadDimV", problem.head_dim_v, "of values and outputs"),
      int_constant("kProducerRegisters", share.producer, "of each thread"),
      int_constant("kConsumerRegisters", share.consumer, ""),
      {},
      int_constant("kPrepareThreads", kPrepareThreads, "of a block of fw_backward_rows"),
      int_constant("kRowThreads", row_threads(problem), "of each row"),
      {"constexpr int kRowsPerBlock = kPrepareThreads / kRowThreads", ""},
      {},
      int_constant("kElementBytes", 2, to_string(problem.dtype)),
      int_constant("kPaddedDim", keys.columns, "whole slabs"),
      int_constant("kPaddedDimV", values.columns, ""),
      {"constexpr int kDepth = (kHeadDim + 15) / 16 * 16", "of products: whole tensor core steps"},
      {"constexpr int kDepthV = (kHeadDimV + 15) / 16 * 16", ""},
      int_constant("kSwizzle", keys.swizzle, "bytes of a slab of queries or keys"),
      int_constant("kSwizzleV", values.swizzle, "of values or gradients of outputs"),
      int_constant("kQueryBoxRows", std::gcd(kRows, schedule.query_step), "of a copy by TMA"),
      int_constant("kKeyBoxRows", std::gcd(kRows, schedule.tile_kv), ""),
      int_constant("kRowTiles", 1, "tiles of 16 rows that a warp owns"),
      {"constexpr int kKeyTiles = kTileKv / 8", "columns of accumulators along the keys"},
      {},
      {"constexpr float kLog2E = 1.4426950408889634f", ""},
  };
  if (adder) rows.push_back(int_constant("kAdderRegisters", share.adder, "of the one that adds"));
  return print_constants(rows);
}

std::vector<Constant> shared_constants(const KernelLayout& keys, bool adds, bool by_adder) {
  std::vector<Constant> rows = {
      int_constant("kSlots", keys.slots,
                   adds ? "of gradients of scores that consumers share"
                        : "of weights that one consumer hands to the other"),
      {adds && !by_adder ? "constexpr int kReaders = kConsumers" : "constexpr int kReaders = 1",
       "warpgroups that read tiles of others"},
      int_constant("kSharedOffset", keys.shared_offset, "the first of them"),
      int_constant("kSharedStride", keys.shared_stride, "")};
  if (adds) {
    rows.push_back(int_constant("kSumsOffset", keys.sums_offset, "what a consumer adds to sums"));
    rows.push_back(int_constant("kSumsStride", keys.sums_stride, ""));
  }
  rows.emplace_back();
  return rows;
}

// Of a consumer its two tiles, then the stages of those that it meets, then the barriers.
std::vector<Line> memory(const Problem& problem, const Schedule& schedule) {
  const KernelLayout keys = keys_layout(problem, schedule),
                     queries = queries_layout(problem, schedule);
  const bool adds = schedule.add_queries != 0;
  const bool shared = shares(problem, schedule);
  const char* const barriers = shared ? "(2 + 4 * kStages + 2 * kSlots)" : "(1 + 4 * kStages)";
  std::vector<Constant> rows = {
      {"constexpr int kOwnKeysBytes = 64 * kPaddedDim * kElementBytes", "of one consumer"},
      {"constexpr int kOwnValuesBytes = 64 * kPaddedDimV * kElementBytes", ""},
      {"constexpr int kStepQueriesBytes = kQueryStep * kPaddedDim * kElementBytes", "one stage"},
      {"constexpr int kStepOutputsBytes = kQueryStep * kPaddedDimV * kElementBytes", ""},
      int_constant("kOwnKeysStride", keys.own_first_stride, "multiples of 1024"),
      int_constant("kOwnValuesOffset", keys.own_second_offset, ""),
      int_constant("kOwnValuesStride", keys.own_second_stride, ""),
      int_constant("kStepQueriesOffset", keys.step_first_offset, ""),
      int_constant("kStepQueriesStride", keys.step_first_stride, ""),
      int_constant("kStepOutputsOffset", keys.step_second_offset, "gradients of outputs"),
      int_constant("kStepOutputsStride", keys.step_second_stride, ""),
      int_constant("kRowsOffset", keys.rows_offset, "numbers of query rows"),
      int_constant("kRowsStride", keys.rows_stride, ""),
      int_constant("kStepsOffset", keys.told_offset, "which queries those are"),
      int_constant("kKeysBarriersOffset", keys.barriers_offset, ""),
      {fmt::format("constexpr int kKeysSharedBytes = kKeysBarriersOffset + 8 * {}", barriers), ""},
      {},
      {"constexpr int kOwnQueriesBytes = 64 * kPaddedDim * kElementBytes", "of one consumer"},
      {"constexpr int kOwnOutputsBytes = 64 * kPaddedDimV * kElementBytes", ""},
      {"constexpr int kStepKeysBytes = kTileKv * kPaddedDim * kElementBytes", "one stage"},
      {"constexpr int kStepValuesBytes = kTileKv * kPaddedDimV * kElementBytes", ""},
      int_constant("kOwnQueriesStride", queries.own_first_stride, "multiples of 1024"),
      int_constant("kOwnOutputsOffset", queries.own_second_offset, ""),
      int_constant("kOwnOutputsStride", queries.own_second_stride, ""),
      int_constant("kStepKeysOffset", queries.step_first_offset, ""),
      int_constant("kStepKeysStride", queries.step_first_stride, ""),
      int_constant("kStepValuesOffset", queries.step_second_offset, ""),
      int_constant("kStepValuesStride", queries.step_second_stride, ""),
      int_constant("kQueriesBarriersOffset", queries.barriers_offset, ""),
      {fmt::format("constexpr int kQueriesSharedBytes = kQueriesBarriersOffset + 8 * {}", barriers),
       ""},
  };
  if (problem.mask == Mask::Kind::blocks) {
    rows.push_back(
        int_constant("kTilesOffset", queries.told_offset, "which tiles of keys the stages hold"));
    rows.push_back(int_constant("kHasKeysOffset", queries.flag_offset, "whether there are any"));
  }
  if (shared) {
    const std::vector<Constant> more =
        shared_constants(keys, adds, schedule.add_queries == kByAdder);
    rows.insert(rows.begin(), more.begin(), more.end());
  }
  std::vector<Line> lines = print_constants(rows);
  std::vector<std::pair<const char*, int>> sizes = {{"kKeysSharedBytes", keys.smem_bytes},
                                                    {"kQueriesSharedBytes", queries.smem_bytes}};
  if (adds) sizes.emplace_back("kOwnQueriesBytes", convert_bytes(problem));
  for (const auto& [name, bytes] : sizes)
    lines.push_back(
        {fmt::format("static_assert({} == {}, \"the launch plan says so\");", name, bytes), {}});
  return lines;
}

ParamLayout params_for(const Problem& problem) {
  using enum Param;
  ParamLayout params;
  // clang-format off
  for (const Param row : {
           q_map, k_map, v_map, d_o_map, dq_map, dk_map, dv_map,
           q, k, v, o_given, lse_given, d_o, d_lse, dq, dk, dv,
           q_batch_stride, q_row_stride, q_head_stride, k_batch_stride, k_row_stride, k_head_stride,
           v_batch_stride, v_row_stride, v_head_stride, o_batch_stride, o_row_stride, o_head_stride,
           lse_batch_stride, lse_head_stride, d_o_batch_stride, d_o_row_stride, d_o_head_stride,
           d_lse_batch_stride, d_lse_head_stride, dq_batch_stride, dq_row_stride, dq_head_stride,
           dk_batch_stride, dk_row_stride, dk_head_stride, dv_batch_stride, dv_row_stride, dv_head_stride,
           batch, heads_q, heads_kv, group, seq_q, seq_kv, softmax_scale})
    params.add(row);
  // clang-format on
  if (!problem.softcap) params.add(scale_log2);
  add_score_params(problem, params);
  if (problem.mask == Mask::Kind::window)
    for (const Param row : {window_left, window_right}) params.add(row);
  if (problem.mask == Mask::Kind::blocks)
    for (const Param row :
         {block_q, block_kv, query_blocks, mask_batch, mask_heads, full_offsets, full_columns,
          partial_offsets, partial_columns, partial_bits, full_query_offsets, full_query_rows,
          partial_query_offsets, partial_query_rows, partial_query_places})
      params.add(row);
  if (problem.dropout)
    for (const Param row : {drop_threshold, keep_scale, dropout_key, rng_state}) params.add(row);
  params.add(aligned);
  params.add(workspace);
  return params;
}

std::vector<BoxRule> boxes(const Problem& problem, const Schedule& schedule) {
  const Slabs keys = slabs(problem.head_dim), values = slabs(problem.head_dim_v);
  std::vector<BoxRule> out;
  const auto box = [&](Param map, int head_dim, int rows, const Slabs& slab) {
    out.push_back({map, problem.dtype, head_dim, rows, slab.swizzle / info(problem.dtype).bytes,
                   slab.swizzle});
  };
  const int query_rows = std::gcd(kRows, schedule.query_step),
            key_rows = std::gcd(kRows, schedule.tile_kv);
  box(Param::q_map, problem.head_dim, query_rows, keys);
  box(Param::k_map, problem.head_dim, key_rows, keys);
  box(Param::v_map, problem.head_dim_v, key_rows, values);
  box(Param::d_o_map, problem.head_dim_v, query_rows, values);
  box(Param::dq_map, problem.head_dim, kRows, keys);
  box(Param::dk_map, problem.head_dim, kRows, keys);
  box(Param::dv_map, problem.head_dim_v, kRows, values);
  return out;
}

LaunchPlan plan_for(const Problem& problem, const Schedule& schedule) {
  LaunchPlan plan;
  plan.params = params_for(problem);
  plan.boxes = boxes(problem, schedule);
  const bool blocks = problem.mask == Mask::Kind::blocks;
  const auto tiles = [&](int rows, const char* length, const char* block, const char* count) {
    return blocks ? fmt::format("{} * ceil_div({}, {})", count, block, rows)
                  : fmt::format("ceil_div({}, {})", length, rows);
  };
  const int threads = 32 * schedule.warps;
  const auto step = [&](const char* entry, int step_threads, int bytes, const std::string& grid) {
    plan.steps.push_back({entry, step_threads, bytes, parse_expr(grid), true});
  };
  const bool adds = schedule.add_queries != 0;
  const std::string padded =
      adds ? fmt::format("{0} * ceil_div(seq_q, {0})", schedule.query_step) : "seq_q";
  step("fw_backward_rows", kPrepareThreads, 0,
       fmt::format("ceil_div({} * heads_q * batch, {})", padded,
                   kPrepareThreads / row_threads(problem)));
  const std::string key_tiles = tiles(keys_per_block(problem, schedule), "seq_kv", "block_kv",
                                      "ceil_div(seq_kv, max(block_kv, 1))") +
                                " * heads_kv * batch";
  const int keys_threads = threads + (schedule.add_queries == kByAdder ? 128 : 0);
  const int keys_bytes = keys_layout(problem, schedule).smem_bytes;
  if (apart(problem)) {
    step("fw_backward_keys", keys_threads, keys_bytes, "max(want_dk, want_dv) * " + key_tiles);
  } else {
    step("fw_backward_keys", keys_threads, keys_bytes,
         (adds ? "max(want_dk, want_dv * want_dq) * " : "want_dk * ") + key_tiles);
    step("fw_backward_values", keys_threads, keys_bytes,
         (adds ? "want_dv * (1 - max(want_dk, want_dq)) * " : "want_dv * (1 - want_dk) * ") +
             key_tiles);
  }
  const std::string query_tiles =
      tiles(schedule.tile_q, "seq_q", "block_q", "query_blocks") + " * heads_q * batch";
  step("fw_backward_queries", threads, queries_layout(problem, schedule).smem_bytes,
       (adds ? "want_dq * (1 - max(want_dk, want_dv)) * " : "want_dq * ") + query_tiles);
  plan.workspace = parse_expr("8 * seq_q * heads_q * batch");
  if (adds) {
    step("fw_backward_convert", 128, convert_bytes(problem),
         fmt::format("want_dq * max(want_dk, want_dv) * ceil_div(seq_q, {}) * heads_q * batch",
                     kRows));
    // Sums begin at a multiple of 64 floats.
    plan.workspace = parse_expr(
        fmt::format("256 * ceil_div(8 * seq_q * heads_q * batch, 256) + want_dq * {} * {} * "
                    "heads_q * batch",
                    4 * problem.head_dim, padded));
  }
  return plan;
}

// The wrappers of wgmma for the shapes of these kernels, under the names of what they are for.
std::vector<Line> products(const Problem& problem, const Schedule& schedule) {
  std::vector<Line> lines;
  const auto add = [&](const ProductShape& shape, const std::string& role, const std::string& a) {
    append(lines, print_product(shape, problem.dtype));
    append(lines, {{fmt::format("__device__ __forceinline__ void {}(float (&d)[{}], {}, u64 b) {{",
                                role, shape.n / 2, a),
                    {}},
                   {fmt::format("  {}(d, a, b);", product_name(shape)), {}},
                   {"}", {}}});
  };
  std::vector<int> counts = {part_queries(problem, schedule), schedule.tile_kv};
  if (counts[0] == counts[1]) counts.pop_back();
  for (const int n : counts) {
    ProductShape scores;
    scores.n = n;
    ProductShape first = scores;
    first.first = true;
    add(first, "multiply_first_scores", "u64 a");
    add(scores, "multiply_scores", "u64 a");
  }
  if (schedule.add_queries != 0) {
    ProductShape queries;
    queries.n = problem.head_dim;
    queries.a_k_major = queries.b_k_major = false;
    ProductShape first = queries;
    first.first = true;
    add(first, "multiply_first_queries", "u64 a");
    add(queries, "multiply_queries", "u64 a");
  }
  counts = {problem.head_dim, problem.head_dim_v};
  if (counts[0] == counts[1]) counts.pop_back();
  for (const int n : counts) {
    ProductShape gradient;
    gradient.n = n;
    gradient.a_in_registers = true;
    gradient.b_k_major = false;
    add(gradient, "multiply_weights", "const u32 (&a)[4]");
  }
  return lines;
}

std::string about(const Problem& problem, const Schedule& s) {
  return fmt::format(
      "Gradients of {} keys at a time, which meet {} queries in a step, then of {} queries, which "
      "meet {} keys in a step; {} stages; a producer and {} consumer warpgroups{}. {:.1f} and "
      "{:.1f} KiB of shared memory.",
      keys_per_block(problem, s), s.query_step, s.tile_q, s.tile_kv, s.stages, s.tile_q / kRows,
      s.add_queries == kByAdder ? ", and one that adds gradients of queries" : "",
      keys_layout(problem, s).smem_bytes / 1024.0, queries_layout(problem, s).smem_bytes / 1024.0);
}

}  // namespace

Emission backward_emission(const Problem& problem, const Schedule& schedule) {
  Emission out;
  out.path = "sm90/backward.cu";
  out.name = "fw_backward.cu";
  for (const std::string& option : option_names()) out.options[option] = 0;
  out.options["FW_FP16"] = problem.dtype == DType::fp16;
  out.options["FW_BF16"] = problem.dtype == DType::bf16;
  out.options["FW_MASK"] = problem.mask == Mask::Kind::causal || problem.mask == Mask::Kind::window;
  out.options["FW_BLOCKS"] = problem.mask == Mask::Kind::blocks;
  out.options["FW_WINDOW"] = problem.mask == Mask::Kind::window;
  out.options["FW_DROPOUT"] = problem.dropout;
  out.options["FW_NEGATIVE_SCALE"] = problem.negative_scale;
  out.options["FW_SOFTCAP"] = problem.softcap;
  out.options["FW_ALIBI"] = problem.alibi;
  out.options["FW_SPLIT_KEYS"] = apart(problem);
  out.options["FW_TWO_PARTS"] = part_queries(problem, schedule) < schedule.query_step;
  out.options["FW_ADDER"] = schedule.add_queries == kByAdder;
  out.options["FW_ADD_QUERIES"] = schedule.add_queries != 0;
  out.plan = plan_for(problem, schedule);
  std::vector<Line>& printed = out.printed["constants.h"];
  append(printed, constants(problem, schedule));
  append(printed, memory(problem, schedule));
  append(printed, print_params(out.plan.params, problem.dtype));
  out.printed["products.h"] = products(problem, schedule);
  std::vector<Line>& mask = out.printed["mask.h"];
  if (problem.mask != Mask::Kind::blocks) {
    append(mask, print_mask(problem.mask));
    append(mask, print_query_ranges(problem.mask));
  }
  out.printed["score.h"] = print_score(problem);
  append(out.printed["score.h"], print_derivative(problem));
  out.banner = print_banner(problem, schedule, about(problem, schedule), out.plan);
  return out;
}

}  // namespace flashwright::sm90
