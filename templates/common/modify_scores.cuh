//~ What happens to the scores of a tile between the product and the mask. modified() is printed
//~ from its expression. With a cap the factor of the softmax is that of the cap.

#if FW_ALIBI
// The slope of a head in the units of modified().
__device__ __forceinline__ float find_slope(const Params& params, const QueryTile& work,
                                            float scale_log2) {
  return load_global(params.alibi_slopes + work.batch * params.alibi_batch_stride +
                     work.head * params.alibi_head_stride) *
         kLog2E / scale_log2;
}

// Modifies the scores of a tile. `first_row` is the first of the warp's rows. Eight rows further
// down and eight keys further on the distance is the same: few have to be computed.
template <int kTiles>
__device__ __forceinline__ void modify_scores(float (&scores)[kRowTiles][kTiles][4],
                                              const Params& params, const KeyTiles& tiles,
                                              int first_row, float slope) {
  const int lane = lane_index();
  const int q = first_row + lane / 4 + params.q_position;
  const float distance = static_cast<float>(tiles.first + lane % 4 * 2 - q);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int step = (n - i / 2 - 2 * m) * 8 + i % 2;
        scores[m][n][i] =
            modified(params, scores[m][n][i], slope, distance + static_cast<float>(step));
      }
    }
  }
}
#elif FW_SOFTCAP
// Modifies the scores of a tile.
template <int kTiles>
__device__ __forceinline__ void modify_scores(float (&scores)[kRowTiles][kTiles][4],
                                              const Params& params) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[m][n][i] = modified(params, scores[m][n][i]);
    }
  }
}
#endif
