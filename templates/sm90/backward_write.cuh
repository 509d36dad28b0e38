//~ The end of a consumer: 64 rows of a gradient.

#if FW_DROPOUT
// Makes up for dropped weights.
__device__ __forceinline__ float numerator(const Params& params) { return params.keep_scale; }
#else
__device__ __forceinline__ float numerator(const Params& params) { return 1.0f; }
#endif

// Lays the rows down in a tile of its own.
template <int kColumns, int kSwizzle>
__device__ __forceinline__ void lay_down(const float (&sums)[kColumns / 2], float factor,
                                         u32 tile) {
  const int lane = lane_index();
  const int row = warp_index() % 4 * 16 + lane % 16;
#pragma unroll
  for (int n = 0; n < kColumns / 8; n += 2) {
    u32 words[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (n + i / 2 < kColumns / 8)
        words[i] = pack_pair(sums[4 * n + 2 * i] * factor, sums[4 * n + 2 * i + 1] * factor);
    store_matrices(element_address<64, kSwizzle>(tile, row, n * 8 + lane / 16 * 8), words);
  }
}

// Where 64 rows of a gradient go.
struct Target {
  const TensorMap& map;
  Element* rows;  // those of the head
  i64 row_stride;
  int batch, head;
  int first, end;  // the first row, and where rows end
  int whole_end;   // where the rows of the tensor end
};

// Writes 64 rows that a consumer has summed up, times a factor, through a tile of its own: by TMA,
// or element by element where rows start anywhere or end before the tile does.
template <int kColumns, int kSwizzle>
__device__ __forceinline__ void write_rows(const float (&sums)[kColumns / 2], float factor,
                                           u32 tile, const Target& target, bool aligned,
                                           int group) {
  lay_down<kColumns, kSwizzle>(sums, factor, tile);
  // TMA leaves out what lies behind the end of the tensor, but not what another block computes.
  const bool by_tma =
      aligned && (target.first + 64 <= target.end || target.end == target.whole_end);
  if (by_tma) fence_async_shared();
  synchronize_named(2 + group, 128);
  if (by_tma) {
    if (thread_index() % 128 != 0) return;
    constexpr int kSlab = kSwizzle / 2;
    constexpr int kPadded = (kColumns + 15) / 16 * 16;
#pragma unroll 1
    for (int column = 0; column < kPadded; column += kSlab)
      store_box(target.map, tile + column / kSlab * 64 * kSwizzle, column, target.first,
                target.head, target.batch);
    commit_stores();
    return;
  }
#pragma unroll 1
  for (int i = thread_index() % 128; i < 64 * kColumns; i += 128) {
    const int row = i / kColumns, column = i % kColumns;
    if (target.first + row < target.end)
      store_global(target.rows + (target.first + row) * target.row_stride + column,
                   load_shared_u16(element_address<64, kSwizzle>(tile, row, column)));
  }
}
