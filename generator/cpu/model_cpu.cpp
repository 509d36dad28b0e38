// The cost model: cycles of one task from its instruction and cache-traffic counts, then the launch from
// the number of tasks and cores. The constants were fitted on an Ice Lake server; only the order of the
// candidates matters, and the tuner measures the best of them.
#include <algorithm>
#include <cmath>

#include "core/dtype.hpp"
#include "generator/cpu/family_cpu.hpp"

namespace flashwright {
namespace {

constexpr double kBytesPerCycleL2 = 32;  // from L2 to L1, sustained
constexpr double kBytesPerCycleL3 = 8;   // of rows that lie apart
constexpr double kGradientCycles = 10;   // for one vector of score gradients
constexpr double kHidden = 0.5;          // share of cache traffic that runs beside arithmetic
constexpr double kWideLoadCycles = 1.0;  // of a load beside multiply-adds: 512 bits, and narrower
constexpr double kLoadCycles = 0.7;
constexpr double kBlockCycles = 24;   // to start and to leave an inner loop
constexpr double kSoftmaxCycles = 6;  // for one vector of scores
constexpr double kTileCycles = 150;   // of a key tile besides its products
constexpr double kRowCycles = 12;  // tables, packing and storing of one row, besides its elements

// Cycles of the products, softmax and copies for `keys` keys of one tile of rows.
double tile_cycles(const Tiling& t, const DeviceInfo& device, double keys) {
  const double n = t.query_vectors, element = info(t.dtype).bytes;
  const double l1 = device.l1_bytes > 0 ? static_cast<double>(device.l1_bytes) : 32768;
  // Two multiply-adds a cycle, fewer loads, and a chain of four cycles through each accumulator.
  const double load = t.lanes >= 16 ? kWideLoadCycles : kLoadCycles;
  const auto product = [&](double rows, double steps) {
    const double slots = std::max(rows * n / 2, (rows + n) * load);
    return steps * std::max(slots, 4.0) + steps / t.unroll;
  };
  const double key_blocks = std::ceil(keys / t.key_block), dim_blocks = t.head_dim_v / t.dim_block;
  double cycles = kTileCycles + keys * n * kSoftmaxCycles;
  cycles += key_blocks * (product(t.key_block, t.head_dim) + kBlockCycles + t.key_block * n);
  cycles += dim_blocks * (product(t.dim_block, keys) + kBlockCycles + 2 * t.dim_block * n);
  if (t.widened) cycles += keys * (t.head_dim + t.head_dim_v) / t.lanes * 1.5;

  const double queries = 4.0 * t.head_dim * t.tile_q, out = 4.0 * t.head_dim_v * t.tile_q;
  const double scores = 4.0 * keys * t.tile_q;
  double traffic = queries + 2 * out + scores + keys * element * (t.head_dim + t.head_dim_v);
  // What exceeds L1 is fetched again for each block of the inner loops.
  traffic += key_blocks * std::max(0.0, queries + 4.0 * t.key_block * t.head_dim - l1);
  traffic += dim_blocks * std::max(0.0, scores + 64.0 * keys - l1);
  return cycles + (1 - kHidden) * traffic / kBytesPerCycleL2;
}

// The same for the five products of the backward pass, the score gradients between them, and staging.
double backward_tile_cycles(const Tiling& t, double keys) {
  const double n = t.query_vectors, load = t.lanes >= 16 ? kWideLoadCycles : kLoadCycles;
  const auto product = [&](double rows, double columns, double steps) {
    const double slots = std::max(rows * columns / 2, (rows + columns) * load);
    return steps * std::max(slots, 4.0) + steps / t.unroll + kBlockCycles;
  };
  const double key_blocks = std::ceil(keys / t.key_block);
  double cycles = kTileCycles + keys * n * kGradientCycles;
  cycles +=
      key_blocks * (product(t.key_block, n, t.head_dim) + product(t.key_block, n, t.head_dim_v));
  const double dim_blocks = t.head_dim / static_cast<double>(t.dim_block);
  cycles += dim_blocks * (product(t.dim_block, n, keys) + 2 * t.dim_block * n);
  for (const int width : {t.width, t.width_v}) {
    const double vectors = t.row_vectors(width), blocks = std::ceil(width / (vectors * t.lanes));
    cycles +=
        key_blocks * blocks * (product(t.key_block, vectors, t.tile_q) + 2 * t.key_block * vectors);
  }
  // Copies of keys and values and their sums come from beyond L2, once for all tiles that are in scratch.
  const double bytes = keys * (t.head_dim + t.head_dim_v) * (4.0 + 4.0);
  return cycles + bytes / kBytesPerCycleL3 / t.query_tiles;
}

// Keys that the tile of rows beginning at `first` walks over.
double keys_of_tile(const Problem& problem, const Shape& shape, double first, double rows) {
  const double all = static_cast<double>(shape.seq_kv);
  if (problem.mask != Mask::Kind::causal) return all;
  const double last = first + rows + all - static_cast<double>(shape.seq_q);
  return std::clamp(last, 0.0, all);
}

}  // namespace

double model_time_us(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                     const Tiling& t) {
  const double group =
      shape.heads_kv > 0 ? static_cast<double>(shape.heads_q) / static_cast<double>(shape.heads_kv)
                         : 1;
  const double rows = std::max(1.0, group * static_cast<double>(shape.seq_q));
  const double tiles = std::ceil(rows / t.tile_q);
  const double heads = static_cast<double>(shape.batch * shape.heads_kv);
  // A sample of the tiles of one head stands for all.
  const int samples = static_cast<int>(std::min(tiles, 16.0));
  double sum = 0, longest = 0;
  for (int i = 0; i < samples; ++i) {
    const double tile = std::floor(tiles * (i + 0.5) / samples);
    const double first =
        std::fmod(tile * t.tile_q, static_cast<double>(std::max<std::int64_t>(1, shape.seq_q)));
    const double keys = keys_of_tile(problem, shape, first, t.tile_q);
    const double whole = std::floor(keys / t.tile_kv), rest = keys - whole * t.tile_kv;
    const auto tile_of = [&](double count) {
      return problem.direction == Direction::backward ? backward_tile_cycles(t, count)
                                                      : tile_cycles(t, device, count);
    };
    double cycles = whole * tile_of(t.tile_kv);
    if (rest > 0) cycles += tile_of(rest);
    cycles += t.tile_q * (kRowCycles + (t.head_dim + 2.0 * t.head_dim_v) / t.lanes * 2);
    sum += cycles;
    longest = std::max(longest, cycles);
  }
  const double average = sum / samples, tasks = heads * tiles;
  const double cores = std::max(1, device.sm_count);
  // The last tasks leave cores idle for half a task on average.
  const double idle = cores > 1 ? 0.5 * average : 0;
  const double cycles = std::max(tasks * average / cores + idle, longest);
  return cycles / (std::max(device.clock_ghz, 0.1) * 1000);
}

}  // namespace flashwright
