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

int estimate_registers(const Problem& problem, const Schedule& schedule) {
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
