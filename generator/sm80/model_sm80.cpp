#include "generator/sm80/model_sm80.hpp"

#include <algorithm>
#include <cmath>

#include "core/dtype.hpp"
#include "generator/sm80/layout_sm80.hpp"

namespace flashwright::sm80 {
namespace {

// Rates of one multiprocessor per cycle.
constexpr double kSmemBytes = 128;
constexpr double kExponentials = 16;
constexpr double kLanes = 128;  // four warp instructions

// Fitted to 972 measured schedules on an H200 (d 64, 128, 256; causal and full; dropout): the rank
// correlation is 0.83, and the best of the first four is within 1.2 % of the fastest on average.
constexpr double kSoftmaxInstructions = 0.83;  // per score, beside those that hide behind others
constexpr double kDropoutInstructions = 4.8;
constexpr double kGradientInstructions = 3;                           // per score, backward
constexpr double kRescaleInstructions = 0.36;                         // per output element and tile
constexpr double kBusyMma = 1.15, kBusySmem = 0.8, kBusyIssue = 1.9;  // when a unit is the limit
constexpr double kIdleSmem = 1.5, kIdleIssue = 0.45, kIdleExp = 0.5;  // when nothing overlaps
constexpr double kHalfOverlapWarps =
    0.8;                             // warps per scheduler at which half of the rest is hidden
constexpr double kLoneBlock = 0.19;  // share of the overlap lost when a block is alone
constexpr double kBarrierCycles = 475;
constexpr double kBlockCycles = 1000;  // start and end of a block
constexpr double kTailWaves = 1.35;    // when blocks differ in length

// Dense operations per cycle with mma.sync and fp32 accumulation; Hopper reaches about 62 % of its
// wgmma rate.
double mma_rate(const Problem& problem) {
  const ArchInfo& arch = arch_info(problem.target);
  const double half = arch.major == 9 || arch.major == 10                       ? 2560
                      : arch.major == 8 && (arch.minor == 0 || arch.minor == 7) ? 2048
                                                                                : 1024;
  return problem.dtype == DType::fp32 ? half / 6 : half;  // tf32: half the rate, three times
}

// Cycles of a multiprocessor for one tile of keys of one block, by the unit that spends them.
struct TileCost {
  double mma, smem, exponentials, issue;
  double busy() const {
    return std::max({mma * kBusyMma, smem * kBusySmem, exponentials, issue * kBusyIssue});
  }
  double serial() const {
    return mma + smem * kIdleSmem + issue * kIdleIssue + exponentials * kIdleExp;
  }
};

TileCost tile_cost(const Problem& problem, const Schedule& s) {
  const double bytes = info(problem.dtype).bytes;
  const double elements = static_cast<double>(s.tile_q) * s.tile_kv;
  const double dims = problem.head_dim + problem.head_dim_v;
  const double operations = 2 * elements * dims;
  // Every warp reads all keys and values; queries are read again for each tile unless they sit in
  // registers.
  double smem = (s.warps + 1) * s.tile_kv * dims * bytes;
  if (s.q_in_registers == 0) smem += s.tile_q * problem.head_dim * bytes;
  double instructions = elements * kSoftmaxInstructions + operations / 128 + smem / 16;
  if (problem.dropout) instructions += elements * kDropoutInstructions;
  if (problem.softcap) instructions += elements;
  if (problem.alibi) instructions += elements * (1 + 1.0 / (s.tile_q / (8.0 * s.warps)));
  if (s.lazy_rescale == 0) instructions += kRescaleInstructions * s.tile_q * problem.head_dim_v;
  return {operations / mma_rate(problem), smem / kSmemBytes,
          elements * (problem.softcap ? 2 : 1) / kExponentials, instructions / kLanes};
}

// Visible scores as a share of seq_q * seq_kv. Windows and block lists are values of the launch:
// half.
double visible_share(const Problem& problem, const Shape& shape) {
  if (problem.mask == Mask::Kind::none) return 1;
  if (problem.mask != Mask::Kind::causal || shape.seq_kv == 0) return 0.5;
  const double q = static_cast<double>(shape.seq_q), kv = static_cast<double>(shape.seq_kv);
  return q <= kv ? 1 - q / (2 * kv) : kv / (2 * q);
}

// One kernel of the backward pass: blocks that own rows and walk over columns.
struct Walk {
  double rows, columns;  // of a tile
  double all_rows, all_columns;
  double heads, walks;  // heads with blocks of their own, and walks of a block
  double dims;          // of all products
  int smem_bytes;
};

double walk_cycles(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                   const Schedule& s, const Walk& walk) {
  const double bytes = info(problem.dtype).bytes;
  const double elements = walk.rows * walk.columns, operations = 2 * elements * walk.dims;
  const double both = problem.head_dim + problem.head_dim_v;
  const double smem =
      (s.warps * walk.dims * walk.columns + both * (walk.rows + walk.columns)) * bytes;
  double instructions = elements * kGradientInstructions + operations / 128 + smem / 16;
  if (problem.dropout) instructions += elements * kDropoutInstructions;
  if (problem.softcap) instructions += 2 * elements;
  if (problem.alibi) instructions += elements;
  const TileCost cost = {operations / mma_rate(problem), smem / kSmemBytes,
                         elements * (problem.softcap ? 2 : 1) / kExponentials,
                         instructions / kLanes};

  const double share = visible_share(problem, shape);
  double tiles = std::ceil(walk.all_columns / walk.columns);
  if (share < 1)
    tiles = std::min(
        tiles, walk.all_columns * share / walk.columns + 0.5 + 0.5 * walk.rows / walk.columns);
  const double blocks = std::ceil(walk.all_rows / walk.rows) * walk.heads;
  const int resident = std::max(
      1, std::min({device.smem_per_sm / (walk.smem_bytes + 1024),
                   65536 / (std::clamp(estimate_registers(problem, s), 32, 255) * 32 * s.warps),
                   arch_info(problem.target).threads_per_sm / (32 * s.warps)}));
  const double at_hand =
      std::max(1.0, std::min<double>(resident, std::ceil(blocks / device.sm_count)));
  const double warps = at_hand * s.warps / 4;  // per scheduler
  double overlap = warps / (warps + kHalfOverlapWarps);
  if (at_hand == 1) overlap *= s.stages == 1 ? 1 - 2 * kLoneBlock : 1 - kLoneBlock;
  const double tile_cycles = cost.busy() +
                             std::max(0.0, cost.serial() - cost.busy()) * (1 - overlap) +
                             (s.stages == 1 ? 2 : 1) * kBarrierCycles / at_hand;
  const double block_cycles = tiles * walk.walks * tile_cycles + kBlockCycles / at_hand;
  const double slots = device.sm_count * at_hand;
  const double waves = share < 1 ? blocks / slots + kTailWaves : std::ceil(blocks / slots);
  return std::max(waves, 1.0) * block_cycles * at_hand;
}

// Not fitted to measurements yet: the constants are those of the forward pass.
double backward_time_us(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                        const Schedule& s) {
  const BackwardLayout sizes = backward_layout(problem, s);
  const double d = problem.head_dim, dv = problem.head_dim_v;
  const double batch = static_cast<double>(shape.batch);
  const double heads_q = static_cast<double>(shape.heads_q),
               heads_kv = static_cast<double>(std::max<std::int64_t>(shape.heads_kv, 1));
  const double seq_q = static_cast<double>(std::max<std::int64_t>(shape.seq_q, 1)),
               seq_kv = static_cast<double>(std::max<std::int64_t>(shape.seq_kv, 1));
  const Walk over_keys = {static_cast<double>(s.tile_q),
                          static_cast<double>(s.tile_kv),
                          seq_q,
                          seq_kv,
                          batch * heads_q,
                          1,
                          2 * d + dv,
                          sizes.dq_bytes};
  Walk over_queries = {static_cast<double>(s.keys_per_block),
                       static_cast<double>(s.query_step),
                       seq_kv,
                       seq_q,
                       batch * heads_kv,
                       heads_q / heads_kv,
                       2 * d + 2 * dv,
                       sizes.dk_dv_bytes};
  const auto cycles = [&](const Walk& walk) {
    return walk_cycles(problem, device, shape, s, walk);
  };
  double sum = cycles(over_keys);
  if (s.split_keys == 0) {
    sum += cycles(over_queries);
  } else {
    over_queries.dims = 2 * d + dv;
    sum += cycles(over_queries);
    over_queries.dims = d + dv;
    sum += cycles(over_queries);
  }
  const double statistics =
      batch * heads_q * seq_q * (2 * dv * info(problem.dtype).bytes + kStatisticsBytes);
  const double memory_us = device.memory_gbps > 0 ? statistics / device.memory_gbps * 1e-3 : 0;
  return 3 + memory_us + sum / device.clock_ghz * 1e-3;
}

}  // namespace

double model_time_us(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                     const Schedule& s) {
  if (problem.direction == Direction::backward) return backward_time_us(problem, device, shape, s);
  const double bytes = info(problem.dtype).bytes;
  const double seq_q = static_cast<double>(std::max<std::int64_t>(shape.seq_q, 1));
  const double seq_kv = static_cast<double>(shape.seq_kv);
  const double heads = static_cast<double>(shape.batch * shape.heads_q);
  const double query_tiles = std::ceil(seq_q / s.tile_q);
  const double blocks = query_tiles * heads;

  // Tiles along the keys; a mask's edge costs half a query tile more.
  const double share = visible_share(problem, shape);
  double key_tiles = std::ceil(seq_kv / s.tile_kv);
  if (share < 1)
    key_tiles = std::min(key_tiles, seq_kv * share / s.tile_kv + 0.5 + 0.5 * s.tile_q / s.tile_kv);

  const Layout tiles = layout(problem, s);
  const int registers = estimate_registers(problem, s);
  const int resident =
      std::max(1, std::min({device.smem_per_sm / (tiles.smem_bytes + 1024),
                            65536 / (std::clamp(registers, 32, 255) * 32 * s.warps),
                            arch_info(problem.target).threads_per_sm / (32 * s.warps)}));
  // How much of the units' work overlaps grows with the warps at hand.
  const double blocks_at_hand = std::min<double>(resident, std::ceil(blocks / device.sm_count));
  const double warps = blocks_at_hand * s.warps / 4;  // per scheduler
  double overlap = warps / (warps + kHalfOverlapWarps);
  if (blocks_at_hand == 1) overlap *= 1 - kLoneBlock;
  const TileCost cost = tile_cost(problem, s);
  const double tile_cycles = cost.busy() +
                             std::max(0.0, cost.serial() - cost.busy()) * (1 - overlap) +
                             (s.stages == 1 ? 2 : 1) * kBarrierCycles / blocks_at_hand;
  const double block_cycles = key_tiles * tile_cycles + kBlockCycles / blocks_at_hand +
                              s.tile_q * (problem.head_dim + problem.head_dim_v) * bytes / 64;

  // Whole waves when all blocks are alike; otherwise the long ones start first and the rest fill in.
  const double slots = device.sm_count * blocks_at_hand;
  const double waves = share < 1 ? blocks / slots + kTailWaves : std::ceil(blocks / slots);
  const double cycles = std::max(waves, 1.0) * block_cycles * blocks_at_hand;

  const double traffic = heads * seq_q * (problem.head_dim + problem.head_dim_v) * bytes +
                         static_cast<double>(shape.batch * shape.heads_kv) * seq_kv *
                             (problem.head_dim + problem.head_dim_v) * bytes;
  const double memory_us = device.memory_gbps > 0 ? traffic / device.memory_gbps * 1e-3 : 0;
  return 3 + std::max(cycles / device.clock_ghz * 1e-3, memory_us);
}

}  // namespace flashwright::sm80
