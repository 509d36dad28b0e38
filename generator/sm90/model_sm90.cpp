#include "generator/sm90/model_sm90.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace flashwright::sm90 {
namespace {

// Scores per cycle of a multiprocessor that 1, 2, 3 warpgroups turn into weights: alone, and what the
// tensor cores at full rate leave of it. Measured with separate warpgroups for either.
constexpr std::array<double, 3> kSoftmaxAlone = {11.0, 13.4, 15.1},
                                kSoftmaxBeside = {5.8, 8.2, 9.1};
constexpr double kMeasuredInstructions = 5;  // of a score, that these rates were measured with
// The numbers from here on are fitted to sweeps on an H200 (1758 timings in 158 groups, 9.6 % rms within
// a group).
constexpr double kInstructions = 5.07, kDropoutInstructions = 3.8;
constexpr double kEmulatedInstructions = 10;              // of an exponential
constexpr double kClockGhz = 1.70, kFullClockGhz = 1.98;  // under load, of the fastest
constexpr double kProducts = 0.96;
constexpr double kL2Bytes = 61;      // per cycle and multiprocessor
constexpr double kOverhead = 1.07;   // of a step, beyond its slowest unit
constexpr double kStepCycles = 200;  // and what each costs, however short
// In steps of few keys nothing hides how long a product or a barrier takes: this share more at 32 keys, with
// the square of their number.
constexpr double kShortStep = 0.3;
constexpr double kCluster = 1.03;  // blocks that wait for each other
constexpr double kQueriesInRegisters = 1.015;
constexpr int kUsualBlock = 128;  // keys of a mask block
constexpr double kStepLatency = 150;
constexpr double kLoadLatency = 1000;  // of a tile of keys; hidden by the stages beyond the first
// Cycles around the steps of a query tile: with prefetched queries, in a persistent block without, in a
// block of its own; and for each column of the output.
constexpr double kPrefetched = 0, kPersistent = 1200, kOwnBlock = 2400, kOutputColumn = 25;
constexpr double kBlocksBeside = 1.24;  // how much of that two blocks hide from each other
// What is lost while the last query tiles end, of all time: ordered by length, and as they come.
constexpr double kOrderedEnd = 1.02, kPlainEnd = 1.04;

// Cycles of one tile of keys of the blocks that share a multiprocessor, for one of them.
double step_cycles(const Problem& problem, const Schedule& s) {
  const int consumers = s.tile_q / 64, resident = s.blocks_per_sm;
  const auto groups = static_cast<std::size_t>(std::min(3, consumers * resident)) - 1;
  const double depth = std::ceil(problem.head_dim / 16.0) * 16, dims = depth + problem.head_dim_v;
  const double scores = static_cast<double>(s.tile_q) * s.tile_kv;
  const double products = scores * dims / 2048;
  double instructions = kInstructions;
  if (problem.dropout)  // in words of 32 keys
    instructions += kDropoutInstructions * std::ceil(s.tile_kv / 32.0) * 32 / s.tile_kv;
  if (s.emulated_exp2 != 0) instructions += kEmulatedInstructions / s.emulated_exp2;
  if (problem.softcap) instructions += 2;
  if (problem.alibi) instructions += 1.5;
  if (s.lazy_rescale != 1) instructions += static_cast<double>(problem.head_dim_v) / s.tile_kv;
  const double softmax = scores * instructions / kMeasuredInstructions;
  const double mixed = softmax / kSoftmaxAlone[groups] +
                       products * (1 - kSoftmaxBeside[groups] / kSoftmaxAlone[groups]);
  const double shared = products * (0.5 + 16.0 / s.tile_kv + 0.5 / consumers);
  const double traffic = s.tile_kv * dims * 2 / kL2Bytes / std::max(1, s.cluster);
  // One warpgroup by itself: its scores, then its softmax, while the other product hides.
  const double alone =
      products / consumers * depth / dims + softmax / consumers / kSoftmaxAlone[0] + kStepLatency;
  const double waiting = s.stages == 1 ? kLoadLatency / resident : 0;
  const double slowest = std::max({products * kProducts, mixed, shared, traffic, alone / resident});
  const double shortness = 32.0 / s.tile_kv;
  const double factor =
      (s.cluster != 0 ? kCluster : 1) * (s.q_in_registers != 0 ? kQueriesInRegisters : 1);
  return (slowest * kOverhead + kStepCycles) * (1 + kShortStep * shortness * shortness) * factor +
         waiting;
}

// Steps of all query tiles of a head, of so many queries each.
double steps_of_head(const Problem& problem, const Shape& shape, const Schedule& s,
                     double queries) {
  const auto q = static_cast<double>(shape.seq_q), kv = static_cast<double>(shape.seq_kv);
  const double tiles = std::ceil(q / queries);
  if (problem.mask == Mask::Kind::none) return tiles * std::ceil(kv / s.tile_kv);
  if (problem.mask == Mask::Kind::blocks)
    return tiles * std::max(1.0, 0.5 * kv / kUsualBlock) *
           std::ceil(static_cast<double>(kUsualBlock) / s.tile_kv);
  if (problem.mask != Mask::Kind::causal) return tiles * std::max(1.0, 0.5 * kv / s.tile_kv);
  // A row sees the keys up to its own place, counted from the end. Of very many tiles a sample.
  const double count = std::min(tiles, 512.0);
  double steps = 0;
  for (double i = 1; i <= count; ++i) {
    const double row = std::min(std::ceil(i * tiles / count) * queries, q);
    steps += std::max(0.0, std::ceil(std::min(row + kv - q, kv) / s.tile_kv));
  }
  return steps * tiles / count;
}

}  // namespace

double model_time_us(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                     const Schedule& s) {
  const int joined = s.pack_heads != 0 ? 1 << pack_shift(shape) : 1;
  const double queries = static_cast<double>(s.tile_q) / joined, cluster = std::max(1, s.cluster);
  const double heads =
      static_cast<double>(std::max<std::int64_t>(shape.batch * shape.heads_q, 1)) / joined;
  const double tiles =
      std::ceil(static_cast<double>(std::max<std::int64_t>(shape.seq_q, 1)) / queries / cluster) *
      cluster;
  const double step = step_cycles(problem, s), steps = steps_of_head(problem, shape, s, queries);
  double around = (s.query_prefetch != 0 ? kPrefetched
                   : s.persistent != 0   ? kPersistent
                                         : kOwnBlock) +
                  kOutputColumn * problem.head_dim_v;
  if (s.blocks_per_sm > 1) around /= kBlocksBeside;
  double cycles = heads * (steps * step + tiles * around) / device.sm_count;
  if (problem.mask == Mask::Kind::none) {
    const double slots = static_cast<double>(device.sm_count) * s.blocks_per_sm;
    cycles *= std::ceil(heads * tiles / slots) / (heads * tiles / slots);
  } else if (s.persistent != 0) {
    cycles *= s.longest_first != 0 ? kOrderedEnd : kPlainEnd;
  }
  const double clock = device.clock_ghz * kClockGhz / kFullClockGhz;
  return 3 + cycles / std::max(clock, 0.1) * 1e-3;
}

}  // namespace flashwright::sm90
