//~ The end of a consumer: its 64 rows of the output, and their LSE.

// Writes the rows through shared memory, where the queries were. The copy runs until
// wait_for_output().
__device__ __forceinline__ void store_rows(const float (&out)[kRowTiles][kDimTiles][4],
                                           const float (&factor)[2], const Params& params,
                                           const QueryTile& work, u32 tile, int group) {
  const int lane = lane_index();
  const int row = warp_index() % 4 * 16 + lane % 16;
#pragma unroll
  for (int n = 0; n < kDimTiles; n += 2) {
    u32 words[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (n + i / 2 < kDimTiles)
        words[i] = pack_pair(out[0][n + i / 2][i % 2 * 2] * factor[i % 2],
                             out[0][n + i / 2][i % 2 * 2 + 1] * factor[i % 2]);
    store_matrices(element_address<64, kSwizzleV>(tile, row, n * 8 + lane / 16 * 8), words);
  }
  fence_async_shared();
  synchronize_named(2 + group, 128);
  if (thread_index() % 128 == 0) {
    constexpr int kSlab = kSwizzleV / 2;
#pragma unroll
    for (int column = 0; column < kPaddedDimV; column += kSlab)
      store_box(params.o_map, tile + column / kSlab * 64 * kSwizzleV, column,
                work.row_begin + group * 64, work.head, work.batch);
    commit_stores();
  }
}

// The output has left shared memory. The thread that stored it knows.
__device__ __forceinline__ void wait_for_output() {
  if (thread_index() % 128 == 0) wait_stores_read<0>();
}

// Writes the rows element by element: rows that start anywhere, or that end before the tile does.
__device__ __forceinline__ void store_elements(const float (&out)[kRowTiles][kDimTiles][4],
                                               const float (&factor)[2], const Params& params,
                                               const QueryTile& work, int first_row) {
  const int lane = lane_index();
  Element* target =
      params.o + work.batch * params.o_batch_stride + work.head * params.o_head_stride;
#pragma unroll
  for (int n = 0; n < kDimTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const i64 row = first_row + lane / 4 + i / 2 * 8;
      const int column = n * 8 + lane % 4 * 2 + i % 2;
      if (row < work.row_end)
        store_global(target + row * params.o_row_stride + column,
                     to_element(out[0][n][i] * factor[i / 2]));
    }
  }
}

// Divides the outputs by their row sums and writes them, and the LSE. `numerator` makes up for
// dropped weights.
__device__ __forceinline__ void write_output(const float (&out)[kRowTiles][kDimTiles][4],
                                             const RowState (&rows)[kRowTiles][2], float numerator,
                                             float scale_log2, const Params& params,
                                             const QueryTile& work, u32 tile, int group) {
  const int lane = lane_index();
  const int first_row = work.row_begin + group * 64 + warp_index() % 4 * 16;
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(rows[0][half].sum);
    const bool empty = sum == 0.0f;  // no visible key; a NaN is not empty
    factor[half] = empty ? 0.0f : numerator / sum;
    const int row = first_row + half * 8 + lane / 4;
    if (params.lse != nullptr && lane % 4 == 0 && row < work.row_end) {
      const float log2_sum = fused_multiply_add(rows[0][half].max, scale_log2, log2_approx(sum));
      store_global(params.lse + work.batch * params.lse_batch_stride +
                       work.head * params.lse_head_stride + row,
                   empty ? -infinity() : log2_sum * kLn2);
    }
  }
  // TMA leaves out what lies behind the end of the tensor, but not what another block computes.
  const bool whole = work.row_begin + group * 64 + 64 <= work.row_end;
  if (params.aligned && (whole || work.row_end == params.seq_q)) {
    store_rows(out, factor, params, work, tile, group);
  } else {
    store_elements(out, factor, params, work, first_row);
  }
}
