#include "generator/cpu/tiling.hpp"

#include <algorithm>
#include <utility>

namespace flashwright {
namespace {

constexpr int kFloat = 4, kWord = 4, kAddress = 8;

}  // namespace

Tiling::Tiling(const Problem& problem, const Schedule& schedule)
    : dtype(problem.dtype),
      head_dim(problem.head_dim),
      head_dim_v(problem.head_dim_v),
      lanes(arch_info(problem.target).vector_bytes / 4),
      registers(arch_info(problem.target).vector_registers),
      tile_q(schedule.tile_q),
      tile_kv(schedule.tile_kv),
      query_vectors(schedule.tile_q / lanes),
      key_block(schedule.key_block),
      dim_block(schedule.dim_block),
      unroll(schedule.unroll),
      tasks(schedule.tasks),
      widened(problem.dtype != DType::fp32),
      panel(problem.head_dim_v % 16 == 0 ? 16 : 8),
      query_tiles(std::max(1, schedule.query_tiles)) {
  problem.direction == Direction::backward ? lay_out_backward(problem) : lay_out_forward(problem);
}

int Tiling::take(int bytes) {
  const int start = scratch_bytes;
  scratch_bytes += (bytes + 63) / 64 * 64;
  return start;
}

void Tiling::lay_out_forward(const Problem& problem) {
  at.q = take(head_dim * tile_q * kFloat);
  at.scores = take(tile_kv * tile_q * kFloat);
  at.out = take(head_dim_v * tile_q * kFloat);
  at.row_max = take(tile_q * kFloat);
  at.row_sum = take(tile_q * kFloat);
  at.tile_max = take(tile_q * kFloat);
  at.alpha = take(tile_q * kFloat);
  at.k = take(key_block * head_dim * kFloat);
  at.v = take(tile_kv * panel * kFloat);
  at.q_rows = take(tile_q * kAddress);
  at.o_rows = take(tile_q * kAddress);
  at.lse_offsets = take(tile_q * kAddress);
  at.positions = take(tile_q * kAddress);
  at.queries = take(tile_q * kWord);
  at.heads = take(tile_q * kWord);
  at.words = take(tile_q * kWord);
  at.spare_row = take(head_dim_v * kFloat);
  at.control = take(2 * kWord);
  if (!problem.alibi) return;
  at.slopes = take(tile_q * kFloat);
  at.distances = take(tile_q * kFloat);
}

void Tiling::lay_out_backward(const Problem& problem) {
  width = (head_dim + lanes - 1) / lanes * lanes;
  width_v = (head_dim_v + lanes - 1) / lanes * lanes;
  at.q = take(width * tile_q * kFloat);
  at.d_o = take(width_v * tile_q * kFloat);
  at.q_copy = take(tile_q * width * kFloat);
  at.d_o_copy = take(tile_q * width_v * kFloat);
  at.out = take(head_dim * tile_q * kFloat);
  for (int* const row : {&at.lse, &at.delta}) *row = take(tile_q * kFloat);
  for (int* const table : {&at.q_rows, &at.d_o_rows, &at.o_rows, &at.dq_rows, &at.positions})
    *table = take(tile_q * kAddress);
  for (int* const table : {&at.queries, &at.heads}) *table = take(tile_q * kWord);
  if (problem.alibi) at.slopes = take(tile_q * kFloat);
  slot_bytes = scratch_bytes;
  scratch_bytes *= query_tiles;

  at.scores = take(tile_kv * tile_q * kFloat);
  at.d_scores = take(tile_kv * tile_q * kFloat);
  if (problem.softcap) at.derivative = take(tile_kv * tile_q * kFloat);
  for (int* const row : {&at.row_max, &at.tile_max}) *row = take(tile_q * kFloat);
  at.row_sums = take(tile_q * lanes * kFloat);
  at.words = take(tile_q * kWord);
  at.spare_row = take(head_dim * kFloat);
  at.control = take(2 * kWord);
  if (problem.alibi) at.distances = take(tile_q * kFloat);
}

int Tiling::row_vectors(int row_width) const { return std::min(query_vectors, row_width / lanes); }

const char* Tiling::buffer_name(int offset) const {
  const std::pair<int, const char*> names[] = {{at.q, "queries"},
                                               {at.scores, "scores"},
                                               {at.out, "outputs"},
                                               {at.row_max, "row.max"},
                                               {at.row_sum, "row.sum"},
                                               {at.tile_max, "tile.max"},
                                               {at.alpha, "alpha"},
                                               {at.k, "staged.keys"},
                                               {at.v, "staged.values"},
                                               {at.q_rows, "q.rows"},
                                               {at.o_rows, "o.rows"},
                                               {at.lse_offsets, "lse.offsets"},
                                               {at.positions, "positions"},
                                               {at.queries, "row.queries"},
                                               {at.heads, "row.heads"},
                                               {at.words, "mask.words"},
                                               {at.spare_row, "spare.row"},
                                               {at.control, "float.control"},
                                               {at.slopes, "row.slopes"},
                                               {at.distances, "first.distances"},
                                               {at.d_o, "output.gradients"},
                                               {at.q_copy, "query.rows"},
                                               {at.d_o_copy, "gradient.rows"},
                                               {at.d_scores, "score.gradients"},
                                               {at.d_o_rows, "d_o.rows"},
                                               {at.dq_rows, "dq.rows"},
                                               {at.lse, "row.lse"},
                                               {at.delta, "row.delta"},
                                               {at.row_sums, "row.sums"},
                                               {at.derivative, "derivatives"}};
  for (const auto& [start, name] : names)
    if (start == offset) return name;
  return "scratch";
}

int Tiling::live_registers() const {
  // Accumulators, one vector of queries or weights for each column, and the broadcast element.
  const int rows = key_block > dim_block ? key_block : dim_block;
  return rows * query_vectors + query_vectors + 1;
}

}  // namespace flashwright
