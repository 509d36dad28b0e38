//~ The end of a consumer: its 64 rows of the output, and their LSE.

// Lays the rows down where the queries were.
__device__ __forceinline__ void lay_down(const float (&out)[kRowTiles][kDimTiles][4],
                                         const float (&factor)[2], u32 tile) {
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
}

// One thread sends the rows by TMA. The copy runs until wait_for_output().
__device__ __forceinline__ void send_rows(const Params& params, const QueryTile& work, u32 tile,
                                          int row) {
  if (thread_index() % 128 != 0) return;
  constexpr int kSlab = kSwizzleV / 2;
#if FW_PACK_HEADS
  const int rows = rows_of_head(params);
#pragma unroll 1
  for (int part = 0; part < 64 / rows; ++part) {
#pragma unroll 1
    for (int column = 0; column < kPaddedDimV; column += kSlab)
      store_box(params.o_map, tile + (column / kSlab * 64 + part * rows) * kSwizzleV, column,
                work.row_begin + row, work.head + part, work.batch);
  }
#else
#pragma unroll 1
  for (int column = 0; column < kPaddedDimV; column += kSlab)
    store_box(params.o_map, tile + column / kSlab * 64 * kSwizzleV, column, work.row_begin + row,
              work.head, work.batch);
#endif
  commit_stores();
}

// All threads copy the rows element by element: rows that start anywhere, or that end before the
// tile does.
__device__ __forceinline__ void copy_out(const Params& params, const QueryTile& work, u32 tile,
                                         int own_row) {
  const int first_row = work.row_begin + own_row;
  Element* target =
      params.o + work.batch * params.o_batch_stride + work.head * params.o_head_stride;
#pragma unroll 1
  for (int i = thread_index() % 128; i < 64 * kHeadDimV; i += 128) {
    const int row = i / kHeadDimV, column = i % kHeadDimV;
#if FW_PACK_HEADS
    const int query = first_row + query_of(params, row);
    if (query < work.row_end)
      store_global(target + head_of(params, row) * params.o_head_stride +
                       query * params.o_row_stride + column,
                   load_shared_u16(element_address<64, kSwizzleV>(tile, row, column)));
#else
    if (first_row + row < work.row_end)
      store_global(target + (first_row + row) * params.o_row_stride + column,
                   load_shared_u16(element_address<64, kSwizzleV>(tile, row, column)));
#endif
  }
}

// Writes the LSE of the two rows that a lane shares with its quad.
__device__ __forceinline__ void write_lse(const RowState (&rows)[2], const float (&sums)[2],
                                          float scale_log2, const Params& params,
                                          const QueryTile& work, int own_row) {
  const int lane = lane_index();
  if (params.lse == nullptr || lane % 4 != 0) return;
  float* target = params.lse + work.batch * params.lse_batch_stride +
                  work.head * params.lse_head_stride + work.row_begin + own_row;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = warp_index() % 4 * 16 + half * 8 + lane / 4;
    const float log2_sum = fused_multiply_add(rows[half].max, scale_log2, log2_approx(sums[half]));
    const float lse = sums[half] == 0.0f ? -infinity() : log2_sum * kLn2;
#if FW_PACK_HEADS
    const int row = query_of(params, place);
    if (work.row_begin + own_row + row < work.row_end)
      store_global(target + head_of(params, place) * params.lse_head_stride + row, lse);
#else
    if (work.row_begin + own_row + place < work.row_end) store_global(target + place, lse);
#endif
  }
}

// Divides the outputs by their row sums and writes them, and the LSE.
__device__ __forceinline__ void write_output(const float (&out)[kRowTiles][kDimTiles][4],
                                             const RowState (&rows)[kRowTiles][2], float scale_log2,
                                             const Params& params, const QueryTile& work, u32 tile,
                                             int own_row, int group) {
  const float sums[2] = {quad_sum(rows[0][0].sum), quad_sum(rows[0][1].sum)};
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    factor[half] = reciprocal_approx(sums[half]);
#if FW_DROPOUT
    factor[half] *= params.keep_scale;
#endif
    if (sums[half] == 0.0f) factor[half] = 0.0f;  // no visible key; a NaN is not empty
  }
#if !FW_LATE_LSE
  write_lse(rows[0], sums, scale_log2, params, work, own_row);
#endif
  lay_down(out, factor, tile);
#if FW_PACK_HEADS
  const bool by_tma = params.aligned;  // it leaves out what lies behind the last query
#else
  // TMA leaves out what lies behind the end of the tensor, but not what another block computes.
  const bool whole = work.row_begin + own_row + 64 <= work.row_end;
  const bool by_tma = params.aligned && (whole || work.row_end == params.seq_q);
#endif
  if (by_tma) fence_async_shared();
  synchronize_named(2 + group, 128);
  if (by_tma) {
    send_rows(params, work, tile, own_row);
  } else {
    copy_out(params, work, tile, own_row);
    fence_async_shared();  // the next to write there may be TMA
    synchronize_named(2 + group, 128);
  }
#if FW_LATE_LSE
  write_lse(rows[0], sums, scale_log2, params, work, own_row);
#endif
}
