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
  int tasks;  // backward: aimed at
  bool
      widened;  // elements of 16 bits: keys and values are copied to scratch as fp32 before they are used
  int panel;  // head dims of the values that are copied together

  // Backward: floats of a copied row of queries or keys, and of output gradients or values; whole vectors.
  int width = 0, width_v = 0;
  // Tiles of queries that are in scratch at once, and the bytes of each: its buffers come first.
  int query_tiles = 1, slot_bytes = 0;

  // Scores are computed and turned to weights for a multiple of this many keys.
  int key_step() const { return key_block; }
  // Vector registers that the two inner loops hold at once.
  int live_registers() const;

  // Byte offsets in the scratch of a worker; `scratch_bytes` is its size.
  struct {
    int q = -1, scores = -1, out = -1, row_max = -1, row_sum = -1, tile_max = -1, alpha = -1,
        k = -1, v = -1;
    int q_rows = -1, o_rows = -1, lse_offsets = -1, positions = -1, queries = -1, heads = -1,
        words = -1, spare_row = -1, control = -1;
    int slopes = -1, distances = -1;  // with ALiBi
    // Backward; `out` then holds dQ, and `scores` the weights.
    int d_o = -1, q_copy = -1, d_o_copy = -1, d_scores = -1, d_o_rows = -1, dq_rows = -1, lse = -1,
        delta = -1, row_sums = -1;
    int derivative = -1;  // with a softcap
  } at;
  int scratch_bytes = 0;

  // Backward: vectors of a row of dK or dV that a register tile holds.
  int row_vectors(int row_width) const;

  // What the emitted text calls the buffer at an offset.
  const char* buffer_name(int offset) const;

 private:
  int take(int bytes);
  void lay_out_forward(const Problem& problem);
  void lay_out_backward(const Problem& problem);
};

}  // namespace flashwright
