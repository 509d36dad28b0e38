//~ Dropout of one warp's weights. The four lanes of a quad share the keep words of their rows: each
//~ draws a quarter of them.

#if FW_DROPOUT
#if FW_FP32
// Clears the dropped ones of the weights of keys 8n + 2t and 8n + 2t + 1 in one row; their keep
// bits are at the top of byte n % 4 of `even` and `odd`.
__device__ __forceinline__ void drop_pair(u32 (&weights)[kKeySteps][4], int n, int half, u32 even,
                                          u32 odd) {
  weights[n][half] &= pick_bytes(even, 0, 0x8888 + n % 4 * 0x1111);
  weights[n][half + 2] &= pick_bytes(odd, 0, 0x8888 + n % 4 * 0x1111);
}
#else
// Clears the dropped ones of the weights of keys 8n + 2t and 8n + 2t + 1 in one row; their keep
// bits are at the top of byte n % 4 of `even` and `odd`.
__device__ __forceinline__ void drop_pair(u32 (&weights)[kKeySteps][4], int n, int half, u32 even,
                                          u32 odd) {
  weights[n / 2][n % 2 * 2 + half] &= pick_bytes(even, odd, 0xCC88 + n % 4 * 0x1111);
}
#endif

// Sets the weights of dropped keys to zero. `first_row` is the first of the warp's rows.
__device__ __forceinline__ void drop_weights(u32 (&weights)[kRowTiles][kKeySteps][4], u64 key,
                                             u32 head, u32 threshold, int first_row,
                                             int first_key) {
  constexpr int kWords = (kTileKv + 31) / 32;   // of one row
  constexpr int kDraws = (2 * kWords + 3) / 4;  // words a lane draws for two rows
  const int lane = lane_index();
  const int quad = lane / 4 * 4;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    u32 drawn[kDraws];
#pragma unroll
    for (int i = 0; i < kDraws; ++i) {
      const int word = i * 4 + lane % 4;  // word / 2 counts along the keys, word % 2 tells the row
      const int row = first_row + m * 16 + lane / 4 + word % 2 * 8;
      drawn[i] = keep_bits(key, head, row, first_key + word / 2 * 32, threshold);
    }
#pragma unroll
    for (int word = 0; word < 2 * kWords; ++word) {
      const u32 kept = shuffle(drawn[word / 4], quad + word % 4);
      const u32 even = kept << (7 - lane % 4 * 2), odd = kept << (6 - lane % 4 * 2);
#pragma unroll
      for (int n = word / 2 * 4; n < word / 2 * 4 + 4 && n < kKeyTiles; ++n)
        drop_pair(weights[m], n, word % 2, even, odd);
    }
  }
}
#endif
