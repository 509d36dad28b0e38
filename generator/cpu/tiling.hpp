// The numbers of one CPU kernel, worked out from its Problem and Schedule: register tile, loop steps and
// where each buffer lies in a worker's scratch. Used by the emitter and by the family's checks alike.
#pragma once

#include "core/problem.hpp"
#include "core/schedule.hpp"

namespace flashwright {

struct Tiling {
  Tiling(const Problem& problem, const Schedule& schedule);

  DType dtype;
  int head_dim, head_dim_v;
  int lanes;      // floats in a vector register
  int registers;  // vector registers of the instruction set
  int tile_q, tile_kv;
  int query_vectors;  // tile_q / lanes
  int key_block, dim_block, unroll;
  bool
      widened;  // elements of 16 bits: keys and values are copied to scratch as fp32 before they are used
  int panel;  // head dims of the values that are copied together

  // Scores are computed and turned to weights for a multiple of this many keys.
  int key_step() const { return key_block; }
  // Vector registers that the two inner loops hold at once.
  int live_registers() const;

  // Byte offsets in the scratch of a worker; `scratch_bytes` is its size.
  struct {
    int q, scores, out, row_max, row_sum, tile_max, alpha, k, v;
    int q_rows, o_rows, lse_offsets, positions, queries, heads, words, spare_row, control, slopes,
        distances;  // with ALiBi
  } at;
  int scratch_bytes = 0;

  // What the emitted text calls the buffer at an offset.
  const char* buffer_name(int offset) const;
};

}  // namespace flashwright
