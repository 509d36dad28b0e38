//~ The matrix products of the backward pass. A warp owns rows (queries, or keys) and walks over
//~ columns (the others): it multiplies rows by columns along a head dim, and what becomes of that
//~ by the columns again.
#if FW_FP32
// The tensor cores cut off, with every sum, what does not fit into it. Sums of a few steps lose
// little by that; they are then added with rounding.
constexpr int kPartSteps = 4;

// sums[m][first + n] += parts[m][n]
template <int kRows, int kTiles, int kParts>
__device__ __forceinline__ void add_parts(float (&sums)[kRows][kTiles][4],
                                          const float (&parts)[kRows][kParts][4], int first) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first + n < kTiles) sums[m][first + n][i] += parts[m][n][i];
    }
  }
}

// products += rows * columns^T over kSteps tensor core steps along the head dim.
template <int kDim, int kSteps, int kRows, int kTiles>
__device__ __forceinline__ void add_steps(float (&products)[kRows][kTiles][4], u32 rows,
                                          u32 columns) {
  float parts[kRows][kTiles][4] = {};
#pragma unroll
  for (int d = 0; d < kSteps; ++d) {
    u32 a[kRows][4];
#pragma unroll
    for (int m = 0; m < kRows; ++m) load_matrices(a[m], rows + m * 16 * row_bytes(kDim) + d * 32);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      u32 b[4];
      load_matrices(b, columns + n * 8 * row_bytes(kDim) + d * 32);
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        multiply_add(parts[m][n], a[m], b[0], b[1]);
        multiply_add(parts[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
  add_parts(products, parts, 0);
}

// products += rows * columns^T: every row of this warp by every column, along the head dim.
template <int kDim, int kRows, int kTiles>
__device__ __forceinline__ void multiply_rows(float (&products)[kRows][kTiles][4], u32 rows,
                                              u32 columns) {
  constexpr int kSteps = (kDim + kMmaK - 1) / kMmaK;
  constexpr int kWhole = kSteps / kPartSteps, kRest = kSteps % kPartSteps;
#pragma unroll 1
  for (int part = 0; part < kWhole; ++part)
    add_steps<kDim, kPartSteps>(products, rows + part * kPartSteps * 32,
                                columns + part * kPartSteps * 32);
  if constexpr (kRest > 0)
    add_steps<kDim, kRest>(products, rows + kWhole * kPartSteps * 32,
                           columns + kWhole * kPartSteps * 32);
}

// Products as left operands, one for each K-step.
template <int kRows, int kTiles>
__device__ __forceinline__ void pack_rows(u32 (&packed)[kRows][kTiles][4],
                                          const float (&products)[kRows][kTiles][4]) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      packed[m][n][0] = float_bits(products[m][n][0]);
      packed[m][n][1] = float_bits(products[m][n][2]);
      packed[m][n][2] = float_bits(products[m][n][1]);
      packed[m][n][3] = float_bits(products[m][n][3]);
    }
  }
}

// sums += factors * columns, where each column is a row of kDim elements.
template <int kDim, int kRows, int kSteps>
__device__ __forceinline__ void add_columns(float (&sums)[kRows][kDim / 8][4],
                                            const u32 (&factors)[kRows][kSteps][4], u32 columns) {
  constexpr int kTiles = kDim / 8;
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
#pragma unroll
    for (int begin = 0; begin < kSteps; begin += kPartSteps) {
      float parts[kRows][2][4] = {};
#pragma unroll
      for (int step = begin; step < begin + kPartSteps && step < kSteps; ++step) {
        u32 b[4];
        load_values<kDim>(b, columns + step * kMmaK * row_bytes(kDim) + n * 8 * kElementBytes,
                          n + 1 < kTiles);
#pragma unroll
        for (int m = 0; m < kRows; ++m) {
          multiply_add(parts[m][0], factors[m][step], b[0], b[1]);
          if (n + 1 < kTiles) multiply_add(parts[m][1], factors[m][step], b[2], b[3]);
        }
      }
      add_parts(sums, parts, n);
    }
  }
}
#else
// products += rows * columns^T: every row of this warp by every column, along the head dim.
template <int kDim, int kRows, int kTiles>
__device__ __forceinline__ void multiply_rows(float (&products)[kRows][kTiles][4], u32 rows,
                                              u32 columns) {
  constexpr int kSteps = (kDim + kMmaK - 1) / kMmaK;
#pragma unroll
  for (int d = 0; d < kSteps; ++d) {
    u32 a[kRows][4];
#pragma unroll
    for (int m = 0; m < kRows; ++m) load_matrices(a[m], rows + m * 16 * row_bytes(kDim) + d * 32);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      u32 b[4];
      load_matrices(b, columns + n * 8 * row_bytes(kDim) + d * 32);
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        multiply_add(products[m][n], a[m], b[0], b[1]);
        multiply_add(products[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Products as left operands, one for each K-step: the accumulators of two tiles, rounded.
template <int kRows, int kTiles>
__device__ __forceinline__ void pack_rows(u32 (&packed)[kRows][kTiles / 2][4],
                                          const float (&products)[kRows][kTiles][4]) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      packed[m][n / 2][n % 2 * 2] = pack_pair(products[m][n][0], products[m][n][1]);
      packed[m][n / 2][n % 2 * 2 + 1] = pack_pair(products[m][n][2], products[m][n][3]);
    }
  }
}

// sums += factors * columns, where each column is a row of kDim elements.
template <int kDim, int kRows, int kSteps>
__device__ __forceinline__ void add_columns(float (&sums)[kRows][kDim / 8][4],
                                            const u32 (&factors)[kRows][kSteps][4], u32 columns) {
  constexpr int kTiles = kDim / 8;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      u32 b[4];
      load_values<kDim>(b, columns + step * kMmaK * row_bytes(kDim) + n * 8 * kElementBytes);
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        multiply_add(sums[m][n], factors[m][step], b[0], b[1]);
        if (n + 1 < kTiles) multiply_add(sums[m][n + 1], factors[m][step], b[2], b[3]);
      }
    }
  }
}
#endif
