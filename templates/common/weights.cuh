//~ The softmax weights of one warp as left operands of the second product.
#if FW_FP32
// The weights as left operands, one for each K-step.
__device__ __forceinline__ void pack_weights(u32 (&packed)[kRowTiles][kKeySteps][4],
                                             const float (&weights)[kRowTiles][kKeyTiles][4]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      packed[m][n][0] = float_bits(weights[m][n][0]);
      packed[m][n][1] = float_bits(weights[m][n][2]);
      packed[m][n][2] = float_bits(weights[m][n][1]);
      packed[m][n][3] = float_bits(weights[m][n][3]);
    }
  }
}
#else
// The weights as left operands, one for each K-step: the accumulators of two key tiles, rounded.
__device__ __forceinline__ void pack_weights(u32 (&packed)[kRowTiles][kKeySteps][4],
                                             const float (&weights)[kRowTiles][kKeyTiles][4]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      packed[m][n / 2][n % 2 * 2] = pack_pair(weights[m][n][0], weights[m][n][1]);
      packed[m][n / 2][n % 2 * 2 + 1] = pack_pair(weights[m][n][2], weights[m][n][3]);
    }
  }
}
#endif
