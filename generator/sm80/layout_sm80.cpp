#include "generator/sm80/layout_sm80.hpp"

#include <algorithm>

#include "core/dtype.hpp"

namespace flashwright::sm80 {

int mma_depth(DType dtype) { return dtype == DType::fp32 ? 8 : 16; }

int row_chunks(DType dtype, int columns) {
  const int depth = mma_depth(dtype);
  return (columns + depth - 1) / depth * depth * info(dtype).bytes / 16;
}

int row_bytes(DType dtype, int columns) { return (row_chunks(dtype, columns) | 1) * 16; }

Layout layout(const Problem& problem, const Schedule& schedule) {
  Layout out;
  const int query_bytes = schedule.tile_q * row_bytes(problem.dtype, problem.head_dim);
  const int output_bytes = schedule.tile_q * row_bytes(problem.dtype, problem.head_dim_v);
  out.row_tiles = schedule.warps > 0 ? schedule.tile_q / (16 * schedule.warps) : 0;
  out.keys_bytes = schedule.tile_kv * row_bytes(problem.dtype, problem.head_dim);
  out.values_bytes = schedule.tile_kv * row_bytes(problem.dtype, problem.head_dim_v);
  out.keys_offset = schedule.q_in_registers != 0 ? 0 : query_bytes;
  out.values_offset = out.keys_offset + schedule.stages * out.keys_bytes;
  out.smem_bytes =
      std::max({query_bytes, output_bytes, out.values_offset + schedule.stages * out.values_bytes});
  return out;
}

UnfusedLayout unfused_layout(const Problem& problem, const Schedule& schedule) {
  const auto bytes = [&](int rows, int columns) {
    return rows * row_bytes(problem.dtype, columns);
  };
  return {bytes(schedule.tile_q + schedule.tile_kv, problem.head_dim),
          bytes(schedule.tile_q, schedule.tile_kv) + bytes(schedule.tile_kv, problem.head_dim_v)};
}

BackwardLayout backward_layout(const Problem& problem, const Schedule& s) {
  const int both_rows =
      row_bytes(problem.dtype, problem.head_dim) + row_bytes(problem.dtype, problem.head_dim_v);
  BackwardLayout out;
  out.row_tiles = s.tile_q / (16 * s.warps);
  out.key_row_tiles = s.keys_per_block / (16 * s.warps);
  out.dq_bytes = (s.tile_q + s.stages * s.tile_kv) * both_rows;
  out.dk_dv_bytes = (s.keys_per_block + s.stages * s.query_step) * both_rows +
                    s.stages * s.query_step * kStatisticsBytes;
  return out;
}

int statistics_lanes(const Problem& problem) {
  constexpr int kWarp = 32, kChunk = 16;
  int lanes = 1;
  while (lanes < kWarp && lanes * kChunk < problem.head_dim_v * info(problem.dtype).bytes)
    lanes *= 2;
  return lanes;
}

namespace {

int estimate_backward_registers(const Problem& problem, const Schedule& s) {
  const BackwardLayout tiles = backward_layout(problem, s);
  const bool single = problem.dtype == DType::fp32, split = s.split_keys != 0;
  const int widest = std::max(problem.head_dim, problem.head_dim_v),
            both = problem.head_dim + problem.head_dim_v;
  const int fixed = 50 + std::min(widest, 48) / 4 + (problem.dropout ? 10 : 0) +
                    (problem.mask == Mask::Kind::blocks ? 8 : 0) + (problem.alibi ? 4 : 0);
  // Scores and gradients of a tile, and the sums; a part of a product where fp32 sums it up in several; and with two
  // sums the packed weights, which are there while the gradients wait.
  const bool parts = single && widest > 32;
  const int packed = split    ? 0
                     : single ? s.query_step / (parts ? 2 : 4)
                              : std::min(s.query_step * 3 / 8, both / 4);
  const int step_kv = s.tile_kv + (parts ? s.tile_kv / 2 : 0);
  const int step_q = s.query_step + (parts ? s.query_step / 2 : 0) + packed;
  return fixed + std::max(tiles.row_tiles * (step_kv + problem.head_dim / 2),
                          tiles.key_row_tiles * (step_q + (split ? widest : both) / 2));
}

}  // namespace

int estimate_registers(const Problem& problem, const Schedule& schedule) {
  if (problem.direction == Direction::backward)
    return estimate_backward_registers(problem, schedule);
  const int row_tiles = layout(problem, schedule).row_tiles;
  const int scores = schedule.tile_kv / 2, output = problem.head_dim_v / 2;
  const int queries = schedule.q_in_registers != 0 ? problem.head_dim / 4 : 0;
  const int fixed = 60 + (problem.dropout ? 18 : 0) +
                    (problem.mask == Mask::Kind::blocks ? 12 : 0) + (problem.alibi ? 4 : 0);
  // fp32 sums up parts of a product apart, and splits what goes into them.
  const int parts = problem.dtype == DType::fp32
                        ? (row_tiles * scores + 16) * std::min(problem.head_dim, 32) / 32
                        : 0;
  return row_tiles * (scores + output + queries) + parts + fixed;
}

}  // namespace flashwright::sm80
