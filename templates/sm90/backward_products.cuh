//~ The products of the gradients, of a warpgroup with 64 rows of its own. They run until
//~ wait_products().

// Starts sums = a b^T: 64 rows of a and kRows of b, each of kDepth elements. `b` lies among
// kTileRows rows.
template <int kRows, int kDepth, int kSwizzle, int kTileRows = kRows>
__device__ __forceinline__ void start_product(float (&sums)[kRows / 2], u32 a, u32 b) {
  const u64 a_tile = tile_descriptor<kSwizzle>(uniform_address(a), 8 * kSwizzle, 0);
  const u64 b_tile = tile_descriptor<kSwizzle>(uniform_address(b), 8 * kSwizzle, 0);
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) {
    constexpr int kSteps = kSwizzle / 32;  // of a slab
    const int slab = step / kSteps, offset = step % kSteps * 32;
    const u64 a_step = advance_descriptor(a_tile, slab * 64 * kSwizzle + offset);
    const u64 b_step = advance_descriptor(b_tile, slab * kTileRows * kSwizzle + offset);
    if (step == 0) {
      multiply_first_scores(sums, a_step, b_step);
    } else {
      multiply_scores(sums, a_step, b_step);
    }
  }
  commit_products();
}

// Starts sums += weights b: 64 rows of weights, in registers, by the kRows rows of b, which lie
// among kTileRows.
template <int kRows, int kSwizzle, int kTileRows = kRows, int kSums>
__device__ __forceinline__ void start_gradient(float (&sums)[kSums],
                                               const u32 (&weights)[kRows / 16][4], u32 b) {
  const u64 tile =
      tile_descriptor<kSwizzle>(uniform_address(b), 8 * kSwizzle, kTileRows * kSwizzle);
#pragma unroll
  for (int step = 0; step < kRows / 16; ++step)
    multiply_weights(sums, weights[step], advance_descriptor(tile, step * 16 * kSwizzle));
  commit_products();
}

// Rounds sums to pairs of elements: left operands of 64 rows by kColumns.
template <int kColumns>
__device__ __forceinline__ void pack(u32 (&packed)[kColumns / 16][4],
                                     const float (&sums)[kColumns / 2]) {
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i)
    packed[i / 4][i % 4] = pack_pair(sums[2 * i], sums[2 * i + 1]);
}

#if FW_ADD_QUERIES
// Starts sums = gradients^T keys: kKeysPerBlock rows of gradients of scores, of 64 queries, by the
// keys of all consumers.
__device__ __forceinline__ void start_queries(float (&sums)[kHeadDim / 2], u32 gradients,
                                              u32 keys) {
  const u64 a_tile = tile_descriptor<128>(uniform_address(gradients), 1024, kKeysPerBlock * 128);
  const u64 b_tile = tile_descriptor<kSwizzle>(uniform_address(keys), 8 * kSwizzle, 64 * kSwizzle);
#pragma unroll
  for (int step = 0; step < kKeysPerBlock / 16; ++step) {
    const u64 a_step = advance_descriptor(a_tile, step * 16 * 128);
    const u64 b_step =
        advance_descriptor(b_tile, step / 4 * kOwnKeysStride + step % 4 * 16 * kSwizzle);
    if (step == 0) {
      multiply_first_queries(sums, a_step, b_step);
    } else {
      multiply_queries(sums, a_step, b_step);
    }
  }
  commit_products();
}
#endif
