//~ The consumers of fw_backward_queries: gradients of queries.
//~
//~ A consumer owns 64 queries of one head and meets all keys that these see, in the order of the
//~ forward pass. Gradients of scores are left operands as they are.

#if FW_DROPOUT
// Clears the gradients of dropped weights. `first_row` is the first of the warp's rows. The four
// lanes of a quad share the keep words of their rows: each draws a quarter of them.
__device__ __forceinline__ void drop_gradients(float (&gradients)[kKeyTiles * 4], u64 key, u32 head,
                                               u32 threshold, int first_row, int first_key) {
  constexpr int kWords = (kTileKv + 31) / 32;   // of one row
  constexpr int kDraws = (2 * kWords + 3) / 4;  // words a lane draws for two rows
  const int lane = lane_index();
  u32 drawn[kDraws];
#pragma unroll
  for (int i = 0; i < kDraws; ++i) {
    const int word = i * 4 + lane % 4;  // word / 2 counts along the keys, word % 2 tells the row
    drawn[i] = keep_bits(key, head, first_row + lane / 4 + word % 2 * 8, first_key + word / 2 * 32,
                         threshold);
  }
#pragma unroll
  for (int word = 0; word < 2 * kWords; ++word) {
    const u32 kept = shuffle(drawn[word / 4], lane / 4 * 4 + word % 4) >> lane % 4 * 2;
#pragma unroll
    for (int n = word / 2 * 4; n < word / 2 * 4 + 4 && n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if ((kept >> (n % 4 * 8 + i) & 1) == 0) gradients[4 * n + word % 2 * 2 + i] = 0.0f;
    }
  }
}
#endif

// A consumer on its way.
struct QueriesConsumer {
  int group;             // which of the consumers
  u32 queries, outputs;  // its own, in shared memory
  u32 keys, values;      // the first stage of each
  Barriers barriers;
  QueryTile work;
  int first_row;      // of the warp
  float lse[2];       // of the lane's rows, in units of log2
  float sums[2];      // what their gradients have in common
  WarpKeys own_keys;  // of the 64 queries
  KeyTiles tiles;
#if FW_BLOCKS
  bool last;  // tile of keys
#endif
  RingPlace<kKeyStages> at;
  RingPlace<kValueStages> values_at;
  float scale_log2;
#if FW_DROPOUT
  u64 dropout_key;
  u32 dropout_head;
#endif

  __device__ __forceinline__ void start(const Params& params, u32 memory, int own_group) {
    group = own_group;
    work = find_query_tile(params);
    queries = memory + group * kOwnQueriesStride;
    outputs = memory + kOwnOutputsOffset + group * kOwnOutputsStride;
    keys = memory + kStepKeysOffset;
    values = memory + kStepValuesOffset;
    barriers = find_barriers(memory + kQueriesBarriersOffset);
    first_row = work.row_begin + group * 64 + warp_index() % 4 * 16;
    const float* statistics =
        static_cast<const float*>(params.workspace) +
        2 * (static_cast<i64>(work.batch) * params.heads_q + work.head) * params.seq_q;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + half * 8 + lane_index() / 4;
      lse[half] = row < work.row_end ? load_global(statistics + 2 * row) : infinity();
      sums[half] = row < work.row_end ? load_global(statistics + 2 * row + 1) : 0.0f;
    }
    own_keys.start(params, work, group * 64, 64);
    at = {};
    values_at = {};
#if FW_SOFTCAP
    scale_log2 = params.softcap_log2;
#else
    scale_log2 = params.scale_log2;
#endif
#if FW_DROPOUT
    dropout_key = find_dropout_key(params);
    dropout_head = static_cast<u32>(work.batch) * params.heads_q + work.head;
#endif
  }

  // Until the keys of the tile at hand are there.
  __device__ __forceinline__ void wait_for_keys() {
    wait_barrier(barriers.first_full + at.stage * 8, at.parity);
#if FW_BLOCKS
    const ToldTile told = told_tile(keys - kStepKeysOffset, at.stage);
    tiles.first = told.first;
    tiles.end = told.end;
    tiles.block_begin = told.block_begin;
    tiles.partial = told.partial;
    last = told.last;
#endif
  }

  __device__ __forceinline__ void advance(const Params& params) {
    at.advance();
    values_at.advance();
#if FW_BLOCKS
    tiles.done = last;
#else
    tiles.advance(params);
#endif
  }

  // Turns scores into weights, with the derivatives of what has modified them as a factor.
  __device__ __forceinline__ void soften(float (&sums_of_tile)[kKeyTiles * 4],
                                         const Params& params) const {
    auto& scores = reinterpret_cast<float(&)[kRowTiles][kKeyTiles][4]>(sums_of_tile);
#if FW_SOFTCAP
    float derivatives[kKeyTiles * 4];
#pragma unroll
    for (int i = 0; i < kKeyTiles * 4; ++i) derivatives[i] = derivative(params, sums_of_tile[i]);
#endif
#if FW_ALIBI
    modify_scores(scores, params, tiles, first_row, find_slope(params, work, scale_log2));
#elif FW_SOFTCAP
    modify_scores(scores, params);
#endif
#pragma unroll
    for (int i = 0; i < kKeyTiles * 4; ++i)
      sums_of_tile[i] =
          exp2_approx(fused_multiply_add(sums_of_tile[i], scale_log2, -lse[i % 4 / 2]));
    if (own_keys.needs_test(tiles)) hide_scores(scores, params, work, tiles, first_row, 0.0f);
#if FW_SOFTCAP
#pragma unroll
    for (int i = 0; i < kKeyTiles * 4; ++i) sums_of_tile[i] *= derivatives[i];
#endif
  }

  // Turns weights and their gradients into gradients of the scores, rounded for the product with
  // keys.
  __device__ __forceinline__ void differentiate(const float (&weights)[kKeyTiles * 4],
                                                float (&gradients)[kKeyTiles * 4],
                                                u32 (&packed)[kTileKv / 16][4],
                                                const Params& params) const {
#if FW_DROPOUT
    drop_gradients(gradients, dropout_key, dropout_head, params.drop_threshold, first_row,
                   tiles.first);
#endif
#pragma unroll
    for (int i = 0; i < kKeyTiles * 4; ++i)
      gradients[i] = weights[i] * (gradients[i] - sums[i % 4 / 2]);
    pack<kTileKv>(packed, gradients);
  }
};

// A consumer warpgroup.
__device__ __forceinline__ void consume_keys(const Params& params, u32 memory, int group) {
  QueriesConsumer consumer;
  consumer.start(params, memory, group);
  const Barriers& barriers = consumer.barriers;
  float dq[kHeadDim / 2] = {};
  wait_barrier(barriers.own_full, 0);
#if FW_BLOCKS
  consumer.tiles.done = !told_keys(memory);
#else
  consumer.tiles.start(params, consumer.work);
#endif
#pragma unroll 1
  while (!consumer.tiles.done) {
    const RingPlace<kKeyStages> at = consumer.at;
    const RingPlace<kValueStages> values_at = consumer.values_at;
    const u32 keys = consumer.keys + at.stage * kStepKeysStride;
    consumer.wait_for_keys();
    if (consumer.own_keys.visible(consumer.tiles)) {
      float scores[kKeyTiles * 4], gradients[kKeyTiles * 4];
      u32 packed[kTileKv / 16][4];
      fence_products();
      start_product<kTileKv, kDepth, kSwizzle>(scores, consumer.queries, keys);
      wait_barrier(barriers.second_full + values_at.stage * 8, values_at.parity);
      fence_products();
      start_product<kTileKv, kDepthV, kSwizzleV>(
          gradients, consumer.outputs, consumer.values + values_at.stage * kStepValuesStride);
      wait_products<1>();
      hold(scores);
      consumer.soften(scores, params);
      wait_products<0>();
      hold(gradients);
      release(barriers.second_empty + values_at.stage * 8);
      consumer.differentiate(scores, gradients, packed, params);
      fence_products();
      start_gradient<kTileKv, kSwizzle>(dq, packed, keys);
      wait_products<0>();
      hold(dq);
    } else {
      pass_second(barriers, values_at, group);
    }
    release_first(barriers, at.stage);
    consumer.advance(params);
  }
  const QueryTile& work = consumer.work;
  const Target target = {
      params.dq_map,
      params.dq + work.batch * params.dq_batch_stride + work.head * params.dq_head_stride,
      params.dq_row_stride,
      work.batch,
      work.head,
      work.row_begin + group * 64,
      work.row_end,
      params.seq_q};
  write_rows<kHeadDim, kSwizzle>(dq, numerator(params) * params.softmax_scale, consumer.queries,
                                 target, params.aligned != 0, group);
  wait_for_output();
}
