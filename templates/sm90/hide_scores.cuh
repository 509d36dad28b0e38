//~ The mask in the scores of one warp, or in their weights.

#if FW_BLOCKS
// Hides the scores of keys that a row must not see: they become `hidden`. `first_row` is the first
// of the warp's rows. A word of the list tells of 32 keys; the eight keys of a column of
// accumulators share one.
template <int kTiles>
__device__ __forceinline__ void hide_scores(float (&scores)[kRowTiles][kTiles][4],
                                            const Params& params, const QueryTile& work,
                                            const KeyTiles& tiles, int first_row, float hidden) {
  const int lane = lane_index();
  const int end = tiles.end - tiles.first - lane % 4 * 2;
  const int skipped = tiles.first - tiles.block_begin;  // keys of the mask block before this tile
  const int words = (params.block_kv + 31) / 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // Rows behind the end are computed, never stored.
    const int row = smaller(first_row + lane / 4 + half * 8, work.row_end - 1);
    const i64 bit_row = static_cast<i64>(tiles.partial) * params.block_q + row % params.block_q;
    const u32* bits = params.partial_bits + bit_row * words;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      u32 kept = ~0u;
      if (tiles.partial >= 0 && n * 8 < tiles.end - tiles.first)
        kept = load_global(bits + (skipped + n * 8) / 32) >> (skipped + n * 8) % 32;
      kept >>= lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (n * 8 + i >= end || (kept >> i & 1) == 0) scores[0][n][2 * half + i] = hidden;
    }
  }
}
#else
#if FW_PACK_HEADS
// Hides the scores of keys that a row must not see: they become `hidden`. `first_row` is the first
// query of the consumer.
#elif FW_WINDOW
// Hides the scores of keys that a row must not see, those before the first and behind the last that
// it sees: they become `hidden`. `first_row` is the first of the warp's rows.
#else
// Hides the scores of keys behind the last that a row sees: they become `hidden`. `first_row` is
// the first of the warp's rows.
#endif
template <int kTiles>
__device__ __forceinline__ void hide_scores(float (&scores)[kRowTiles][kTiles][4],
                                            const Params& params, const QueryTile& work,
                                            const KeyTiles& tiles, int first_row, float hidden) {
  const int lane = lane_index();
  const int first_key = tiles.first + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#if FW_PACK_HEADS
    const int row = first_row + query_of(params, warp_index() % 4 * 16 + lane / 4 + half * 8);
#else
    const int row = first_row + lane / 4 + half * 8;
#endif
    const KeyRange keys = visible_keys(params, row, row);
#if FW_WINDOW
    const int begin = keys.begin - first_key;
#endif
    const int end = keys.end - first_key;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#if FW_WINDOW
        if (n * 8 + i < begin) scores[0][n][2 * half + i] = hidden;
#endif
        if (n * 8 + i >= end) scores[0][n][2 * half + i] = hidden;
      }
    }
  }
}
#endif
