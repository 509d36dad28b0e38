#include "generator/sm90/model_sm90.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "generator/sm90/layout_sm90.hpp"

namespace flashwright::sm90 {
namespace {

// Scores per cycle of a multiprocessor that 1, 2, 3 warpgroups turn into weights: alone, and what the
// tensor cores at full rate leave of it.
constexpr std::array<double, 3> kSoftmaxAlone = {11.0, 13.4, 15.1},
                                kSoftmaxBeside = {5.8, 8.2, 9.1};
constexpr double kSoftmaxInstructions = 5;  // that these rates were measured with
constexpr double kDropoutInstructions = 3.2;
constexpr double kTanhInstructions = 2;  // one of them shares its unit with the exponential
constexpr double kAlibiInstructions = 1.5;
constexpr double kL2Bytes = 35;        // per cycle and multiprocessor, all tiles different
constexpr double kOverhead = 1.10;     // of a tile, beyond its slowest unit
constexpr double kStepLatency = 60;    // of a warpgroup, between product and softmax
constexpr double kBlockCycles = 2000;  // start and end of a block
constexpr double kTailWaves = 0.5;
constexpr double kLoadLatency = 1000;  // of a tile; hidden by the stages beyond the first

double visible_share(const Problem& problem, const Shape& shape) {
  if (problem.mask == Mask::Kind::none) return 1;
  if (problem.mask != Mask::Kind::causal || shape.seq_kv == 0) return 0.5;
  const double q = static_cast<double>(shape.seq_q), kv = static_cast<double>(shape.seq_kv);
  return q <= kv ? 1 - q / (2 * kv) : kv / (2 * q);
}

// Cycles of one tile of keys of the blocks that share a multiprocessor, for one of them.
double tile_cycles(const Problem& problem, const Schedule& s, int resident) {
  const int consumers = s.tile_q / 64;
  const auto groups = static_cast<std::size_t>(std::min(3, consumers * resident)) - 1;
  const double dims = slabs(problem.head_dim).columns + problem.head_dim_v;
  const double scores = static_cast<double>(s.tile_q) * s.tile_kv;
  const double products = scores * dims / 2048;
  double instructions = kSoftmaxInstructions + (problem.dropout ? kDropoutInstructions : 0);
  if (problem.softcap) instructions += kTanhInstructions;
  if (problem.alibi) instructions += kAlibiInstructions;
  if (s.lazy_rescale == 0) instructions += static_cast<double>(problem.head_dim_v) / s.tile_kv;
  const double softmax = scores * instructions / kSoftmaxInstructions;
  const double mixed = softmax / kSoftmaxAlone[groups] +
                       products * (1 - kSoftmaxBeside[groups] / kSoftmaxAlone[groups]);
  const double shared = products * (0.5 + 16.0 / s.tile_kv + 0.5 / consumers);
  const double traffic = s.tile_kv * dims * 2 / kL2Bytes;
  // One warpgroup by itself: its scores, then its softmax, while the other product hides.
  const double alone = products / consumers * slabs(problem.head_dim).columns / dims +
                       softmax / consumers / kSoftmaxAlone[0] + kStepLatency;
  const double waiting = s.stages == 1 ? kLoadLatency / resident : 0;
  return std::max({products, mixed, shared, traffic, alone / resident}) * kOverhead + waiting;
}

}  // namespace

double model_time_us(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                     const Schedule& s) {
  const double seq_q = static_cast<double>(std::max<std::int64_t>(shape.seq_q, 1));
  const double heads = static_cast<double>(shape.batch * shape.heads_q);
  const double blocks = std::ceil(seq_q / s.tile_q) * heads;
  const double share = visible_share(problem, shape);
  double tiles = std::ceil(static_cast<double>(shape.seq_kv) / s.tile_kv);
  if (share < 1)
    tiles = std::min(tiles, static_cast<double>(shape.seq_kv) * share / s.tile_kv + 0.5 +
                                0.5 * s.tile_q / s.tile_kv);
  const int resident = s.blocks_per_sm;
  const double block_cycles = tiles * tile_cycles(problem, s, resident) + kBlockCycles / resident;
  const double waves = blocks / device.sm_count + (share < 1 ? kTailWaves : 0);
  const double cycles = std::max(std::ceil(waves / resident) * resident, 1.0) * block_cycles;
  return 3 + cycles / std::max(device.clock_ghz, 0.1) * 1e-3;
}

}  // namespace flashwright::sm90
