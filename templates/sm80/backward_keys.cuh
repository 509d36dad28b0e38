//~ The gradients of keys and values. A warp owns keys, so that scores stand transposed: keys are the
//~ rows of its products and queries the columns.

// Starts the copy of one tile of queries, of the gradients of their outputs, and of what is known of
// them.
__device__ __forceinline__ void load_queries(u32 shared, const Params& params, const KeyTile& work,
                                             const QueryTiles& tiles) {
  const int rows = params.seq_q - tiles.first;
  load_tile<kQueryStep, kHeadDim>(shared,
                                  params.q + work.batch * params.q_batch_stride +
                                      tiles.head * params.q_head_stride +
                                      tiles.first * params.q_row_stride,
                                  params.q_row_stride, rows, params.aligned);
  load_tile<kQueryStep, kHeadDimV>(shared + kStepQueriesBytes,
                                   params.d_o + work.batch * params.d_o_batch_stride +
                                       tiles.head * params.d_o_head_stride +
                                       tiles.first * params.d_o_row_stride,
                                   params.d_o_row_stride, rows, params.aligned);
  const Bytes16* const statistics = statistics_of(params, work.batch, tiles.head, tiles.first);
  for (int i = thread_index(); i < kQueryStep; i += kThreads)
    copy_async_16(shared + kStepQueriesBytes + kStepOutputsBytes + i * kStatisticsBytes,
                  statistics + i, i < rows);
}

#if FW_DROPOUT
// Which pairs of this lane's keys and of a tile's queries are kept. Each lane draws the bits of some
// queries, for the keys of the warp.
struct KeepBits {
  u32 drawn[(kQueryStep + 31) / 32];

  __device__ __forceinline__ void draw(u64 key, u32 head, u32 threshold, int first_row,
                                       int first_key) {
#pragma unroll
    for (int i = 0; i < (kQueryStep + 31) / 32; ++i) {
      const int row = first_row + i * 32 + lane_index();
#if FW_BLOCKS
      drawn[i] = keep_bits(key, head, row, first_key, threshold);
#else
      drawn[i] = keep_word(key, head, row, first_key / 32, threshold) >> first_key % 32;
#endif
    }
  }

  // Bits of query 8n + 2t + j of the tile: that of key 8i + g of the warp is bit 8i.
  __device__ __forceinline__ u32 of(int n, int j) const {
    const int lane = lane_index();
    return shuffle(drawn[n / 4], n % 4 * 8 + lane % 4 * 2 + j) >> lane / 4;
  }
};
#endif

// Turns the scores of a tile into weights, and the gradients of weights into those of scores.
__device__ __forceinline__ void find_column_gradients(
    float (&scores)[kKeyRowTiles][kQueryTiles][4], float (&gradients)[kKeyRowTiles][kQueryTiles][4],
    u32 statistics,
#if FW_ALIBI
    const Bias& bias,
#endif
#if FW_DROPOUT
    const KeepBits& keep_bits,
#endif
    const Params& params) {
  const u32 first = statistics + lane_index() % 4 * 2 * kStatisticsBytes;
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const Statistics column =
          unpack_statistics(load_shared_16(first + (n * 8 + j) * kStatisticsBytes));
#if FW_DROPOUT
      const u32 kept = keep_bits.of(n, j);
#endif
#pragma unroll
      for (int i = 0; i < 2 * kKeyRowTiles; ++i) {
        float& score = scores[i / 2][n][i % 2 * 2 + j];
        float& gradient = gradients[i / 2][n][i % 2 * 2 + j];
#if FW_ALIBI
        const float weight = find_weight(params, score, column.lse, bias, (i - n) * 8 - j);
#else
        const float weight = find_weight(params, score, column.lse);
#endif
#if FW_DROPOUT
        const bool keep = (kept >> i * 8 & 1) != 0;
        gradient = score_gradient(params, weight, keep ? gradient : 0.0f, column.delta, score);
        score = keep ? weight : 0.0f;
#else
        gradient = score_gradient(params, weight, gradient, column.delta, score);
        score = weight;
#endif
      }
    }
  }
}

// Sets the weights of hidden pairs, and the gradients of their scores, to zero. `first_key` is the
// first of the warp's keys.
__device__ __forceinline__ void hide_pairs(float (&weights)[kKeyRowTiles][kQueryTiles][4],
                                           float (&gradients)[kKeyRowTiles][kQueryTiles][4],
                                           const Params& params, const KeyTile& work,
                                           const QueryTiles& tiles, int first_key) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kKeyRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int kv = first_key + m * 16 + lane / 4 + i / 2 * 8;
        const int row = tiles.first + n * 8 + lane % 4 * 2 + i % 2;
        if (!seen(params, work, tiles, row, kv)) weights[m][n][i] = gradients[m][n][i] = 0.0f;
      }
    }
  }
}

// Computes kKeysPerBlock rows of dK, of dV, or of both, of one key head: walks over the queries, in
// tiles, of all heads that share it.
template <bool kForKeys, bool kForValues>
__device__ __forceinline__ void sum_over_queries(const Params& params) {
  const KeyTile work = find_key_tile(params);
  const u32 keys = shared_memory();
  const u32 values = keys + kKeysBytes;
  const u32 stages = keys + kKeysBytes + kValuesBytes;
  const int warp_row = warp_index() * 16 * kKeyRowTiles;
  const int rows = work.key_end - work.key_begin;
  load_tile<kKeysPerBlock, kHeadDim>(keys,
                                     params.k + work.batch * params.k_batch_stride +
                                         work.head * params.k_head_stride +
                                         work.key_begin * params.k_row_stride,
                                     params.k_row_stride, rows, params.aligned);
  load_tile<kKeysPerBlock, kHeadDimV>(values,
                                      params.v + work.batch * params.v_batch_stride +
                                          work.head * params.v_head_stride +
                                          work.key_begin * params.v_row_stride,
                                      params.v_row_stride, rows, params.aligned);
  QueryTiles tiles;
  tiles.start(params, work);
#if !FW_ONE_STAGE
  QueryTiles loads = tiles;  // runs ahead of the computation
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (!loads.done) {
      load_queries(stages + stage * kQueryStageBytes, params, work, loads);
      loads.advance(params, work);
    }
    commit_copies();
  }
  int stage = 0;
#else
  commit_copies();
#endif

  const u32 row_keys = query_address<kHeadDim>(keys, warp_row);
  const u32 row_values = query_address<kHeadDimV>(values, warp_row);
  WarpQueries warp_queries;
  warp_queries.start(params, work, warp_row, 16 * kKeyRowTiles);
  const bool for_keys = kForKeys && params.dk != nullptr;
  const bool for_values = kForValues && params.dv != nullptr;
#if FW_DROPOUT
  const u64 dropout_key = find_dropout_key(params);
  KeepBits keep_bits;
#endif
#if FW_ALIBI
  Bias bias;
#endif
  float sums[kKeyRowTiles][kForKeys ? kHeadDim / 8 : 1][4] = {};
  float sums_v[kKeyRowTiles][kForValues ? kHeadDimV / 8 : 1][4] = {};

  for (; !tiles.done; tiles.advance(params, work)) {
#if FW_ONE_STAGE
    // Every warp is done with the last tile: this one takes its place.
    synchronize_block();
    load_queries(stages, params, work, tiles);
    commit_copies();
    wait_copies<0>();
    synchronize_block();
    const u32 queries = stages;
#else
    // This tile is there, and every warp is done with the last one: its stage takes the next tile.
    wait_copies<kStages - 2>();
    synchronize_block();
    const u32 queries = stages + stage * kQueryStageBytes;
    if (!loads.done) {
      const int free_stage = stage == 0 ? kStages - 1 : stage - 1;
      load_queries(stages + free_stage * kQueryStageBytes, params, work, loads);
      loads.advance(params, work);
    }
    commit_copies();
    stage = stage + 1 == kStages ? 0 : stage + 1;
#endif
    if (!warp_queries.visible(tiles)) continue;
    const u32 d_outputs = queries + kStepQueriesBytes;
    const u32 statistics = d_outputs + kStepOutputsBytes;
    const int first_key = work.key_begin + warp_row;
    float scores[kKeyRowTiles][kQueryTiles][4] = {}, gradients[kKeyRowTiles][kQueryTiles][4] = {};
    multiply_rows<kHeadDim>(scores, row_keys, key_address<kHeadDim>(queries));
    if (for_keys)
      multiply_rows<kHeadDimV>(gradients, row_values, key_address<kHeadDimV>(d_outputs));
#if FW_DROPOUT
    keep_bits.draw(dropout_key, static_cast<u32>(work.batch) * params.heads_q + tiles.head,
                   params.drop_threshold, tiles.first, first_key);
#endif
#if FW_ALIBI
    const QueryTile head = {work.batch, tiles.head, 0, 0};
    bias.slope = find_slope(params, head, score_factor(params));
    bias.distance = static_cast<float>(first_key + lane_index() / 4 - tiles.first -
                                       lane_index() % 4 * 2 - params.q_position);
#endif
    find_column_gradients(scores, gradients, statistics,
#if FW_ALIBI
                          bias,
#endif
#if FW_DROPOUT
                          keep_bits,
#endif
                          params);
    if (warp_queries.needs_test(tiles))
      hide_pairs(scores, gradients, params, work, tiles, first_key);
    u32 packed[kKeyRowTiles][kQueryStep / kMmaK][4];
    if constexpr (kForValues) {
      if (for_values) {
        pack_rows(packed, scores);
        add_columns<kHeadDimV>(sums_v, packed, value_address<kHeadDimV>(d_outputs));
      }
    }
    if constexpr (kForKeys) {
      if (for_keys) {
        pack_rows(packed, gradients);
        add_columns<kHeadDim>(sums, packed, value_address<kHeadDim>(queries));
      }
    }
  }

  // The results take the place of keys and values, when their last reader is done.
  wait_copies<0>();
  synchronize_block();
  if constexpr (kForKeys) put_rows<kHeadDim>(keys, sums, gradient_factor(params), warp_row);
#if FW_DROPOUT
  if constexpr (kForValues) put_rows<kHeadDimV>(values, sums_v, params.keep_scale, warp_row);
#else
  if constexpr (kForValues) put_rows<kHeadDimV>(values, sums_v, 1.0f, warp_row);
#endif
  synchronize_block();
  if (for_keys)
    store_tile<kKeysPerBlock, kHeadDim>(params.dk + work.batch * params.dk_batch_stride +
                                            work.head * params.dk_head_stride +
                                            work.key_begin * params.dk_row_stride,
                                        params.dk_row_stride, keys, rows, params.aligned);
  if (for_values)
    store_tile<kKeysPerBlock, kHeadDimV>(params.dv + work.batch * params.dv_batch_stride +
                                             work.head * params.dv_head_stride +
                                             work.key_begin * params.dv_row_stride,
                                         params.dv_row_stride, values, rows, params.aligned);
}

#if FW_SPLIT_KEYS
// One block computes kKeysPerBlock rows of dK.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    fw_dk(const __grid_constant__ Params params) {
  sum_over_queries<true, false>(params);
}

// One block computes kKeysPerBlock rows of dV.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    fw_dv(const __grid_constant__ Params params) {
  sum_over_queries<false, true>(params);
}
#else
// One block computes kKeysPerBlock rows of dK and of dV.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    fw_dk_dv(const __grid_constant__ Params params) {
  sum_over_queries<true, true>(params);
}
#endif
