//~ The two matrix products of the forward.
#if FW_FP32
// The tensor cores cut off, with every sum, what does not fit into it. Sums of a few steps lose
// little by that; they are then added with rounding.
constexpr int kPartSteps = 4;

// sums[m][first + n] += parts[m][n]
template <int kTiles, int kParts>
__device__ __forceinline__ void add_parts(float (&sums)[kRowTiles][kTiles][4],
                                          const float (&parts)[kRowTiles][kParts][4], int first) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first + n < kTiles) sums[m][first + n][i] += parts[m][n][i];
    }
  }
}

// scores += Q * K^T over kSteps tensor core steps along the head dimension.
template <int kSteps>
__device__ __forceinline__ void add_products(float (&scores)[kRowTiles][kKeyTiles][4], u32 queries,
                                             u32 keys) {
  float parts[kRowTiles][kKeyTiles][4] = {};
#pragma unroll
  for (int d = 0; d < kSteps; ++d) {
    u32 a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
      load_matrices(a[m], queries + m * 16 * row_bytes(kHeadDim) + d * 32);
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      u32 b[4];
      load_matrices(b, keys + n * 8 * row_bytes(kHeadDim) + d * 32);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_add(parts[m][n], a[m], b[0], b[1]);
        multiply_add(parts[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
  add_parts(scores, parts, 0);
}

// scores = Q * K^T for the rows of this warp.
__device__ __forceinline__ void multiply_queries_keys(float (&scores)[kRowTiles][kKeyTiles][4],
                                                      u32 queries, u32 keys) {
  constexpr int kWhole = kDimSteps / kPartSteps, kRest = kDimSteps % kPartSteps;
#pragma unroll 1
  for (int part = 0; part < kWhole; ++part)
    add_products<kPartSteps>(scores, queries + part * kPartSteps * 32,
                             keys + part * kPartSteps * 32);
  if constexpr (kRest > 0)
    add_products<kRest>(scores, queries + kWhole * kPartSteps * 32,
                        keys + kWhole * kPartSteps * 32);
}

// out += weights * V for the rows of this warp.
__device__ __forceinline__ void multiply_weights_values(
    float (&out)[kRowTiles][kDimTiles][4], const u32 (&weights)[kRowTiles][kKeySteps][4],
    u32 values) {
#pragma unroll
  for (int n = 0; n < kDimTiles; n += 2) {
#pragma unroll
    for (int begin = 0; begin < kKeySteps; begin += kPartSteps) {
      float parts[kRowTiles][2][4] = {};
#pragma unroll
      for (int step = begin; step < begin + kPartSteps && step < kKeySteps; ++step) {
        u32 b[4];
        load_values<kHeadDimV>(b,
                               values + step * kMmaK * row_bytes(kHeadDimV) + n * 8 * kElementBytes,
                               n + 1 < kDimTiles);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          multiply_add(parts[m][0], weights[m][step], b[0], b[1]);
          if (n + 1 < kDimTiles) multiply_add(parts[m][1], weights[m][step], b[2], b[3]);
        }
      }
      add_parts(out, parts, n);
    }
  }
}
#else
#if FW_Q_IN_REGISTERS
// scores = Q * K^T for the rows of this warp, whose queries are in registers.
__device__ __forceinline__ void multiply_queries_keys(float (&scores)[kRowTiles][kKeyTiles][4],
                                                      const u32 (&queries)[kRowTiles][kDimSteps][4],
                                                      u32 keys) {
#pragma unroll
  for (int d = 0; d < kDimSteps; ++d) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      u32 b[4];
      load_matrices(b, keys + n * 8 * row_bytes(kHeadDim) + d * 32);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_add(scores[m][n], queries[m][d], b[0], b[1]);
        multiply_add(scores[m][n + 1], queries[m][d], b[2], b[3]);
      }
    }
  }
}
#else
// scores = Q * K^T for the rows of this warp.
__device__ __forceinline__ void multiply_queries_keys(float (&scores)[kRowTiles][kKeyTiles][4],
                                                      u32 queries, u32 keys) {
#pragma unroll
  for (int d = 0; d < kDimSteps; ++d) {
    u32 a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
      load_matrices(a[m], queries + m * 16 * row_bytes(kHeadDim) + d * 32);
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      u32 b[4];
      load_matrices(b, keys + n * 8 * row_bytes(kHeadDim) + d * 32);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_add(scores[m][n], a[m], b[0], b[1]);
        multiply_add(scores[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}
#endif

// out += weights * V for the rows of this warp.
__device__ __forceinline__ void multiply_weights_values(
    float (&out)[kRowTiles][kDimTiles][4], const u32 (&weights)[kRowTiles][kKeySteps][4],
    u32 values) {
#pragma unroll
  for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
    for (int n = 0; n < kDimTiles; n += 2) {
      u32 b[4];
      load_values<kHeadDimV>(b,
                             values + step * kMmaK * row_bytes(kHeadDimV) + n * 8 * kElementBytes);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_add(out[m][n], weights[m][step], b[0], b[1]);
        if (n + 1 < kDimTiles) multiply_add(out[m][n + 1], weights[m][step], b[2], b[3]);
      }
    }
  }
}
#endif
