//~ Between the products: scores become weights again, and the gradients of weights those of scores.
//~ modified() and derivative() are printed from their expressions.

// What the backward pass knows of a query.
struct Statistics {
  float lse;  // in powers of two; infinity for a query that sees no key, so that its weights are 0
  float delta;  // what is subtracted from the gradients of its weights
};

// Where the statistics of a query lie in the workspace.
__device__ __forceinline__ const Bytes16* statistics_of(const Params& params, i64 batch, i64 head,
                                                        i64 row) {
  return static_cast<const Bytes16*>(params.workspace) +
         (batch * params.heads_q + head) * params.seq_q + row;
}

__device__ __forceinline__ Statistics unpack_statistics(const Bytes16& bytes) {
  return {bits_float(bytes.word[0]), bits_float(bytes.word[1])};
}

#if FW_SOFTCAP
// What scores are multiplied by in the exponent of two.
__device__ __forceinline__ float score_factor(const Params& params) { return params.softcap_log2; }

// The gradient of a score over that of its plain product, softmax_scale apart.
__device__ __forceinline__ float score_gradient(const Params& params, float weight, float d_weight,
                                                float delta, float score) {
  return weight * (d_weight - delta) * derivative(params, score);
}
#else
// What scores are multiplied by in the exponent of two.
__device__ __forceinline__ float score_factor(const Params& params) { return params.scale_log2; }

// The gradient of a score, softmax_scale apart.
__device__ __forceinline__ float score_gradient(const Params& params, float weight, float d_weight,
                                                float delta, float score) {
  return weight * (d_weight - delta);
}
#endif

#if FW_ALIBI
// The weight of a score whose key is `distance` further on than the query.
__device__ __forceinline__ float find_weight(const Params& params, float score, float lse,
                                             float slope, float distance) {
  const float changed = modified(params, score, slope, distance);
  return exp2_approx(fused_multiply_add(changed, score_factor(params), -lse));
}
#elif FW_SOFTCAP
// The weight of a score.
__device__ __forceinline__ float find_weight(const Params& params, float score, float lse) {
  return exp2_approx(fused_multiply_add(modified(params, score), score_factor(params), -lse));
}
#else
// The weight of a score.
__device__ __forceinline__ float find_weight(const Params& params, float score, float lse) {
  return exp2_approx(fused_multiply_add(score, score_factor(params), -lse));
}
#endif

// What the sums for dQ and dK are multiplied by at the end.
__device__ __forceinline__ float gradient_factor(const Params& params) {
#if FW_DROPOUT
  return params.softmax_scale * params.keep_scale;
#else
  return params.softmax_scale;
#endif
}

// Writes the rows of this warp, multiplied, to a tile in shared memory.
template <int kDim, int kRows>
__device__ __forceinline__ void put_rows(u32 tile, const float (&sums)[kRows][kDim / 8][4],
                                         float factor, int first_row) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + m * 16 + half * 8 + lane / 4;
      const u32 address = tile + row * row_bytes(kDim) + lane % 4 * 2 * kElementBytes;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
        store_shared_pair(address + n * 8 * kElementBytes, sums[m][n][2 * half] * factor,
                          sums[m][n][2 * half + 1] * factor);
    }
  }
}
