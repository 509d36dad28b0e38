//~ The two matrix products of a warpgroup: 64 query rows by one tile of keys. They run until
//~ wait_products().

// Keeps what follows from using sums before this point.
template <int kTiles>
__device__ __forceinline__ void hold_sums(float (&sums)[kRowTiles][kTiles][4]) {
  hold(reinterpret_cast<float(&)[kTiles * 4]>(sums));
}

#if FW_Q_IN_REGISTERS
// The queries of a warp as left operands, one for each step.
__device__ __forceinline__ void load_operands(u32 (&operands)[kDimSteps][4], u32 queries) {
  const int lane = lane_index();
  const int row = warp_index() % 4 * 16 + lane % 16;
#pragma unroll
  for (int step = 0; step < kDimSteps; ++step)
    load_matrices(operands[step],
                  element_address<64, kSwizzle>(queries, row, step * 16 + lane / 16 * 8));
}

// Starts scores = Q K^T.
__device__ __forceinline__ void start_scores(float (&scores)[kRowTiles][kKeyTiles][4],
                                             const u32 (&queries)[kDimSteps][4], u32 keys) {
  float(&sums)[kKeyTiles * 4] = reinterpret_cast<float(&)[kKeyTiles * 4]>(scores);
  const u64 b = tile_descriptor<kSwizzle>(uniform_address(keys), 8 * kSwizzle, 0);
#pragma unroll
  for (int step = 0; step < kDimSteps; ++step) {
    constexpr int kSteps = kSwizzle / 32;  // of a slab
    const int slab = step / kSteps, offset = step % kSteps * 32;
    const u64 b_step = advance_descriptor(b, slab * kTileKv * kSwizzle + offset);
    if (step == 0) {
      multiply_first_scores(sums, queries[step], b_step);
    } else {
      multiply_scores(sums, queries[step], b_step);
    }
  }
  commit_products();
}
#else
// Starts scores = Q K^T.
__device__ __forceinline__ void start_scores(float (&scores)[kRowTiles][kKeyTiles][4], u32 queries,
                                             u32 keys) {
  float(&sums)[kKeyTiles * 4] = reinterpret_cast<float(&)[kKeyTiles * 4]>(scores);
  const u64 a = tile_descriptor<kSwizzle>(uniform_address(queries), 8 * kSwizzle, 0);
  const u64 b = tile_descriptor<kSwizzle>(uniform_address(keys), 8 * kSwizzle, 0);
#pragma unroll
  for (int step = 0; step < kDimSteps; ++step) {
    constexpr int kSteps = kSwizzle / 32;  // of a slab
    const int slab = step / kSteps, offset = step % kSteps * 32;
    const u64 a_step = advance_descriptor(a, slab * 64 * kSwizzle + offset);
    const u64 b_step = advance_descriptor(b, slab * kTileKv * kSwizzle + offset);
    if (step == 0) {
      multiply_first_scores(sums, a_step, b_step);
    } else {
      multiply_scores(sums, a_step, b_step);
    }
  }
  commit_products();
}
#endif

#if FW_HALF_TILES
// The same for the first half of the keys.
__device__ __forceinline__ void start_half_scores(float (&scores)[kRowTiles][kKeyTiles / 2][4],
                                                  u32 queries, u32 keys) {
  float(&sums)[kKeyTiles * 2] = reinterpret_cast<float(&)[kKeyTiles * 2]>(scores);
  const u64 a = tile_descriptor<kSwizzle>(uniform_address(queries), 8 * kSwizzle, 0);
  const u64 b = tile_descriptor<kSwizzle>(uniform_address(keys), 8 * kSwizzle, 0);
#pragma unroll
  for (int step = 0; step < kDimSteps; ++step) {
    constexpr int kSteps = kSwizzle / 32;  // of a slab
    const int slab = step / kSteps, offset = step % kSteps * 32;
    const u64 a_step = advance_descriptor(a, slab * 64 * kSwizzle + offset);
    const u64 b_step = advance_descriptor(b, slab * kTileKv * kSwizzle + offset);
    if (step == 0) {
      multiply_first_half_scores(sums, a_step, b_step);
    } else {
      multiply_half_scores(sums, a_step, b_step);
    }
  }
  commit_products();
}
#endif

// Starts out += weights V.
__device__ __forceinline__ void start_output(float (&out)[kRowTiles][kDimTiles][4],
                                             const u32 (&weights)[kRowTiles][kKeySteps][4],
                                             u32 values) {
  float(&sums)[kDimTiles * 4] = reinterpret_cast<float(&)[kDimTiles * 4]>(out);
  const u64 b =
      tile_descriptor<kSwizzleV>(uniform_address(values), 8 * kSwizzleV, kTileKv * kSwizzleV);
#pragma unroll
  for (int step = 0; step < kKeySteps; ++step)
    multiply_output(sums, weights[0][step], advance_descriptor(b, step * 16 * kSwizzleV));
  commit_products();
}
