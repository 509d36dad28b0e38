//~ Dropout bits: the device side of core/philox.hpp, which defines them.

#if FW_DROPOUT
// Eight random words: Philox 4x32 with seven rounds (Salmon et al., 2011), called twice. The two
// counters, and so the first half of a round, differ in their last word alone.
struct Philox {
  u32 word[2][4];
};

__device__ __forceinline__ Philox philox(u32 query, u32 key_word, u32 head, u64 key) {
  u32 key0 = static_cast<u32>(key), key1 = static_cast<u32>(key >> 32);
  Philox x = {{{query, key_word, head, 0}, {query, key_word, head, 1}}};
#pragma unroll
  for (int round = 0; round < 7; ++round) {
#pragma unroll
    for (int call = 0; call < 2; ++call) {
      u32(&word)[4] = x.word[call];
      const u64 product0 = static_cast<u64>(word[0]) * 0xD2511F53u;
      const u64 product1 = static_cast<u64>(word[2]) * 0xCD9E8D57u;
      word[0] = static_cast<u32>(product1 >> 32) ^ word[1] ^ key0;
      word[1] = static_cast<u32>(product1);
      word[2] = static_cast<u32>(product0 >> 32) ^ word[3] ^ key1;
      word[3] = static_cast<u32>(product0);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return x;
}

// Bit j is set when key 32 * key_word + j is kept for this query. Each of the 32 keys has drawn one
// byte, spread over the bits j of eight words; it is dropped when the byte is below the threshold.
__device__ __forceinline__ u32 keep_word(u64 key, u32 head, u32 query, u32 key_word,
                                         u32 threshold) {
  const Philox drawn = philox(query, key_word, head, key);
  u32 borrow = 0;  // of byte - threshold, for 32 bytes at once, from the lowest bit up
#pragma unroll
  for (int bit = 0; bit < 8; ++bit) {
    const u32 plane = drawn.word[bit < 4 ? 1 : 0][bit < 4 ? 3 - bit : 7 - bit];
    const u32 limit = static_cast<u32>(static_cast<int>(threshold << (31 - bit)) >> 31);
    borrow = majority(~plane, limit, borrow);
  }
  return ~borrow;
}

#if FW_BLOCKS
// The keep bits of 32 keys from `first_key` on. A tile of a mask block may start anywhere.
__device__ __forceinline__ u32 keep_bits(u64 key, u32 head, u32 query, u32 first_key,
                                         u32 threshold) {
  const u32 bits = keep_word(key, head, query, first_key / 32, threshold);
  const u32 skipped = first_key % 32;
  if (skipped == 0) return bits;
  return bits >> skipped | keep_word(key, head, query, first_key / 32 + 1, threshold)
                               << (32 - skipped);
}
#else
// The keep bits of the keys from `first_key` on, up to the next multiple of 32.
__device__ __forceinline__ u32 keep_bits(u64 key, u32 head, u32 query, u32 first_key,
                                         u32 threshold) {
  const u32 bits = keep_word(key, head, query, first_key / 32, threshold);
  return kTileKv % 32 == 0 ? bits : bits >> first_key % 32;
}
#endif

#if FW_BLOCKS
// The keep bits of 16 or 32 neighbouring keys.
__device__ __forceinline__ u32 key_bits(u64 key, u32 head, u32 query, u32 first_key,
                                        u32 threshold) {
  return keep_bits(key, head, query, first_key, threshold);
}
#else
// The keep bits of 16 or 32 neighbouring keys, which lie in one word.
__device__ __forceinline__ u32 key_bits(u64 key, u32 head, u32 query, u32 first_key,
                                        u32 threshold) {
  return keep_word(key, head, query, first_key / 32, threshold) >> first_key % 32;
}
#endif

// The key of the launch: from the state in memory, if there is one, so that a captured graph draws
// new bits at every replay.
__device__ __forceinline__ u64 find_dropout_key(const Params& params) {
  if (params.rng_state == nullptr) return params.dropout_key;
  return load_global(params.rng_state) + load_global(params.rng_state + 1) * 0x9E3779B97F4A7C15ull;
}
#endif
