//~ The gradients of keys and values. A warp owns keys, so that scores stand transposed: keys are
//~ the rows of its products and queries the columns.

// Starts the copy of one tile of queries, of the gradients of their outputs, and of their
// statistics.
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
    copy_async_16(shared + kStepBytes + i * kStatisticsBytes, statistics + i, i < rows);
}

// What a warp knows of its keys with the queries at hand.
struct WarpPairs {
  int first_key;   // of the warp
  u32 statistics;  // of the queries, in shared memory
#if FW_ALIBI
  float slope;
  float distance;  // from this lane's first query to its first key
#endif
#if FW_DROPOUT
  u64 dropout_key;
  u32 drawn[(kQueryStep + 31) / 32];  // keep bits of some queries for the keys of the warp
#endif

  __device__ __forceinline__ void start(const Params& params, const KeyTile& work, int warp_row) {
    first_key = work.key_begin + warp_row;
#if FW_DROPOUT
    dropout_key = find_dropout_key(params);
#endif
  }

  // Goes on to the next tile of queries.
  __device__ __forceinline__ void advance(const Params& params, const KeyTile& work,
                                          const QueryTiles& tiles, u32 tile_statistics) {
    statistics = tile_statistics;
#if FW_ALIBI
    const int lane = lane_index();
    slope = find_slope(params, {work.batch, tiles.head, 0, 0}, score_factor(params));
    distance =
        static_cast<float>(first_key + lane / 4 - tiles.first - lane % 4 * 2 - params.q_position);
#endif
#if FW_DROPOUT
    draw(params, static_cast<u32>(work.batch) * params.heads_q + tiles.head, tiles.first);
#endif
  }
#if FW_DROPOUT

  // Each lane draws the bits of every 32nd query.
  __device__ __forceinline__ void draw(const Params& params, u32 head, int first_row) {
#pragma unroll
    for (int i = 0; i < (kQueryStep + 31) / 32; ++i)
      drawn[i] = key_bits(dropout_key, head, first_row + i * 32 + lane_index(), first_key,
                          params.drop_threshold);
  }

  // Bits of query 8n + 2t + j of the tile: that of key 8i + g of the warp is bit 8i.
  __device__ __forceinline__ u32 kept(int n, int j) const {
    const int lane = lane_index();
    return shuffle(drawn[n / 4], n % 4 * 8 + lane % 4 * 2 + j) >> lane / 4;
  }
#endif
};

// Turns the scores of a tile into weights, and the gradients of weights into those of scores.
__device__ __forceinline__ void find_column_gradients(
    float (&scores)[kKeyRowTiles][kQueryTiles][4], float (&gradients)[kKeyRowTiles][kQueryTiles][4],
    const WarpPairs& pairs, const Params& params) {
  const u32 first = pairs.statistics + lane_index() % 4 * 2 * kStatisticsBytes;
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const Statistics column =
          unpack_statistics(load_shared_16(first + (n * 8 + j) * kStatisticsBytes));
#if FW_DROPOUT
      const u32 kept = pairs.kept(n, j);
#endif
#pragma unroll
      for (int i = 0; i < 2 * kKeyRowTiles; ++i) {
        float& score = scores[i / 2][n][i % 2 * 2 + j];
        float& gradient = gradients[i / 2][n][i % 2 * 2 + j];
#if FW_ALIBI
        const int step = (i - n) * 8 - j;
        const float weight = find_weight(params, score, column.lse, pairs.slope,
                                         pairs.distance + static_cast<float>(step));
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

// Starts the copy of the keys and values that a block owns.
__device__ __forceinline__ void load_own_keys(u32 keys, const Params& params, const KeyTile& work) {
  const int rows = work.key_end - work.key_begin;
  load_tile<kKeysPerBlock, kHeadDim>(keys,
                                     params.k + work.batch * params.k_batch_stride +
                                         work.head * params.k_head_stride +
                                         work.key_begin * params.k_row_stride,
                                     params.k_row_stride, rows, params.aligned);
  load_tile<kKeysPerBlock, kHeadDimV>(keys + kKeysBytes,
                                      params.v + work.batch * params.v_batch_stride +
                                          work.head * params.v_head_stride +
                                          work.key_begin * params.v_row_stride,
                                      params.v_row_stride, rows, params.aligned);
}

// The sums of a warp, those of both gradients or of one.
template <bool kForKeys, bool kForValues>
struct KeySums {
  float dk[kKeyRowTiles][kForKeys ? kHeadDim / 8 : 1][4];
  float dv[kKeyRowTiles][kForValues ? kHeadDimV / 8 : 1][4];
};

// Adds what one tile of queries gives.
template <bool kForKeys, bool kForValues>
__device__ __forceinline__ void add_queries(KeySums<kForKeys, kForValues>& sums,
                                            const Params& params, const KeyTile& work,
                                            const QueryTiles& tiles, const WarpPairs& pairs,
                                            bool test, u32 keys, u32 queries) {
  const u32 values = keys + kKeysBytes, d_outputs = queries + kStepQueriesBytes;
  const int warp_row = warp_index() * 16 * kKeyRowTiles;
  float scores[kKeyRowTiles][kQueryTiles][4] = {}, gradients[kKeyRowTiles][kQueryTiles][4] = {};
  multiply_rows<kHeadDim>(scores, query_address<kHeadDim>(keys, warp_row),
                          key_address<kHeadDim>(queries));
  if (kForKeys && params.dk != nullptr)
    multiply_rows<kHeadDimV>(gradients, query_address<kHeadDimV>(values, warp_row),
                             key_address<kHeadDimV>(d_outputs));
  find_column_gradients(scores, gradients, pairs, params);
  if (test) hide_pairs(scores, gradients, params, work, tiles, pairs.first_key);
  u32 packed[kKeyRowTiles][kQueryStep / kMmaK][4];
  if constexpr (kForValues) {
    if (params.dv != nullptr) {
      pack_rows(packed, scores);
      add_columns<kHeadDimV>(sums.dv, packed, value_address<kHeadDimV>(d_outputs));
    }
  }
  if constexpr (kForKeys) {
    if (params.dk != nullptr) {
      pack_rows(packed, gradients);
      add_columns<kHeadDim>(sums.dk, packed, value_address<kHeadDim>(queries));
    }
  }
}

// Writes what a block has summed up. It takes the place of its keys and values.
template <bool kForKeys, bool kForValues>
__device__ __forceinline__ void write_sums(const KeySums<kForKeys, kForValues>& sums,
                                           const Params& params, const KeyTile& work, u32 keys) {
  const u32 values = keys + kKeysBytes;
  const int warp_row = warp_index() * 16 * kKeyRowTiles, rows = work.key_end - work.key_begin;
  if constexpr (kForKeys) put_rows<kHeadDim>(keys, sums.dk, gradient_factor(params), warp_row);
#if FW_DROPOUT
  if constexpr (kForValues) put_rows<kHeadDimV>(values, sums.dv, params.keep_scale, warp_row);
#else
  if constexpr (kForValues) put_rows<kHeadDimV>(values, sums.dv, 1.0f, warp_row);
#endif
  synchronize_block();
  if (kForKeys && params.dk != nullptr)
    store_tile<kKeysPerBlock, kHeadDim>(params.dk + work.batch * params.dk_batch_stride +
                                            work.head * params.dk_head_stride +
                                            work.key_begin * params.dk_row_stride,
                                        params.dk_row_stride, keys, rows, params.aligned);
  if (kForValues && params.dv != nullptr)
    store_tile<kKeysPerBlock, kHeadDimV>(params.dv + work.batch * params.dv_batch_stride +
                                             work.head * params.dv_head_stride +
                                             work.key_begin * params.dv_row_stride,
                                         params.dv_row_stride, values, rows, params.aligned);
}

// Computes kKeysPerBlock rows of dK, of dV, or of both, of one key head: walks over the queries, in
// tiles, of all heads that share it.
template <bool kForKeys, bool kForValues>
__device__ __forceinline__ void sum_over_queries(const Params& params) {
  const KeyTile work = find_key_tile(params);
  const u32 keys = shared_memory(), stages = keys + kKeysBytes + kValuesBytes;
  const int warp_row = warp_index() * 16 * kKeyRowTiles;
  load_own_keys(keys, params, work);
  QueryTiles tiles;
  tiles.start(params, work);
#if FW_ONE_STAGE
  commit_copies();
#else
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
#endif
  WarpQueries warp_queries;
  warp_queries.start(params, work, warp_row, 16 * kKeyRowTiles);
  WarpPairs pairs;
  pairs.start(params, work, warp_row);
  KeySums<kForKeys, kForValues> sums = {};

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
    pairs.advance(params, work, tiles, queries + kStepBytes);
    add_queries(sums, params, work, tiles, pairs, warp_queries.needs_test(tiles), keys, queries);
  }

  // The last reader of the keys is done.
  wait_copies<0>();
  synchronize_block();
  write_sums(sums, params, work, keys);
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
