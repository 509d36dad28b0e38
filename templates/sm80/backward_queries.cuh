//~ The gradient of the queries.

// Starts the copy of one tile of keys and values.
__device__ __forceinline__ void load_keys(u32 shared, const Params& params, const QueryTile& work,
                                          const KeyTiles& tiles) {
  const i64 head = work.head / params.group;
  load_tile<kTileKv, kHeadDim>(shared,
                               params.k + work.batch * params.k_batch_stride +
                                   head * params.k_head_stride + tiles.first * params.k_row_stride,
                               params.k_row_stride, params.seq_kv - tiles.first, params.aligned);
  load_tile<kTileKv, kHeadDimV>(shared + kStepKeysBytes,
                                params.v + work.batch * params.v_batch_stride +
                                    head * params.v_head_stride + tiles.first * params.v_row_stride,
                                params.v_row_stride, params.seq_kv - tiles.first, params.aligned);
}

// What a warp knows of its queries.
struct WarpRows {
  Statistics statistics[kRowTiles][2];  // of this lane's rows
#if FW_ALIBI
  float slope;
  int position;  // of this lane's first row
#endif

  __device__ __forceinline__ void start(const Params& params, const QueryTile& work,
                                        int first_row) {
    const int lane_row = first_row + lane_index() / 4;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = lane_row + m * 16 + half * 8;
        statistics[m][half] = {infinity(), 0.0f};
        if (row < work.row_end)
          statistics[m][half] =
              unpack_statistics(load_global(statistics_of(params, work.batch, work.head, row)));
      }
    }
#if FW_ALIBI
    slope = find_slope(params, work, score_factor(params));
    position = lane_row + params.q_position;
#endif
  }
};

#if FW_DROPOUT
// Sets the gradients of dropped weights to zero. The four lanes of a quad share the keep words of
// their rows: each draws a quarter of them.
__device__ __forceinline__ void drop_gradients(float (&d_weights)[kRowTiles][kKeyTiles][4], u64 key,
                                               u32 head, u32 threshold, int first_row,
                                               int first_key) {
  constexpr int kWords = (kTileKv + 31) / 32;   // of one row
  constexpr int kDraws = (2 * kWords + 3) / 4;  // words a lane draws for two rows
  const int lane = lane_index();
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
      const u32 kept = shuffle(drawn[word / 4], lane / 4 * 4 + word % 4) >> lane % 4 * 2;
#pragma unroll
      for (int n = word / 2 * 4; n < word / 2 * 4 + 4 && n < kKeyTiles; ++n) {
        if ((kept >> n % 4 * 8 & 1) == 0) d_weights[m][n][word % 2 * 2] = 0.0f;
        if ((kept >> n % 4 * 8 & 2) == 0) d_weights[m][n][word % 2 * 2 + 1] = 0.0f;
      }
    }
  }
}
#endif

// Turns the gradients of the weights of a tile into those of its scores.
__device__ __forceinline__ void find_row_gradients(const float (&scores)[kRowTiles][kKeyTiles][4],
                                                   float (&gradients)[kRowTiles][kKeyTiles][4],
                                                   const WarpRows& rows, const Params& params,
                                                   int first_key) {
#if FW_ALIBI
  const float distance = static_cast<float>(first_key + lane_index() % 4 * 2 - rows.position);
#endif
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Statistics& row = rows.statistics[m][i / 2];
        const float score = scores[m][n][i];
#if FW_ALIBI
        const int step = (n - i / 2 - 2 * m) * 8 + i % 2;
        const float weight =
            find_weight(params, score, row.lse, rows.slope, distance + static_cast<float>(step));
#else
        const float weight = find_weight(params, score, row.lse);
#endif
        gradients[m][n][i] = score_gradient(params, weight, gradients[m][n][i], row.delta, score);
      }
    }
  }
}

// Sets the gradients of hidden scores to zero. `first_row` is the first of the warp's rows.
__device__ __forceinline__ void hide_gradients(float (&gradients)[kRowTiles][kKeyTiles][4],
                                               const Params& params, const QueryTile& work,
                                               const KeyTiles& tiles, int first_row) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + m * 16 + lane / 4 + i / 2 * 8;
        const int kv = tiles.first + n * 8 + lane % 4 * 2 + i % 2;
        if (!sees(params, work, tiles, row, kv)) gradients[m][n][i] = 0.0f;
      }
    }
  }
}

// One block computes kTileQ rows of dQ of one head. It walks over the keys in tiles.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    fw_dq(const __grid_constant__ Params params) {
  const QueryTile work = find_query_tile(params);
  const u32 queries = shared_memory();
  const u32 d_outputs = queries + kQueriesBytes;
  const u32 stages = queries + kQueriesBytes + kOutputsBytes;
  const int warp_row = warp_index() * 16 * kRowTiles;
  const int rows = work.row_end - work.row_begin;
  load_tile<kTileQ, kHeadDim>(queries,
                              params.q + work.batch * params.q_batch_stride +
                                  work.head * params.q_head_stride +
                                  work.row_begin * params.q_row_stride,
                              params.q_row_stride, rows, params.aligned);
  load_tile<kTileQ, kHeadDimV>(d_outputs,
                               params.d_o + work.batch * params.d_o_batch_stride +
                                   work.head * params.d_o_head_stride +
                                   work.row_begin * params.d_o_row_stride,
                               params.d_o_row_stride, rows, params.aligned);
  KeyTiles tiles;
  tiles.start(params, work);
#if !FW_ONE_STAGE
  KeyTiles loads = tiles;  // runs ahead of the computation
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (!loads.done) {
      load_keys(stages + stage * kKeyStageBytes, params, work, loads);
      loads.advance(params);
    }
    commit_copies();
  }
  int stage = 0;
#else
  commit_copies();
#endif

  const u32 row_queries = query_address<kHeadDim>(queries, warp_row);
  const u32 row_outputs = query_address<kHeadDimV>(d_outputs, warp_row);
  WarpRows warp_rows;
  warp_rows.start(params, work, work.row_begin + warp_row);
  WarpKeys warp_keys;
  warp_keys.start(params, work, warp_row, 16 * kRowTiles);
#if FW_DROPOUT
  const u64 dropout_key = find_dropout_key(params);
  const u32 dropout_head = static_cast<u32>(work.batch) * params.heads_q + work.head;
#endif
  float sums[kRowTiles][kHeadDim / 8][4] = {};

  for (; !tiles.done; tiles.advance(params)) {
#if FW_ONE_STAGE
    // Every warp is done with the last tile: this one takes its place.
    synchronize_block();
    load_keys(stages, params, work, tiles);
    commit_copies();
    wait_copies<0>();
    synchronize_block();
    const u32 keys = stages;
#else
    // This tile is there, and every warp is done with the last one: its stage takes the next tile.
    wait_copies<kStages - 2>();
    synchronize_block();
    const u32 keys = stages + stage * kKeyStageBytes;
    if (!loads.done) {
      const int free_stage = stage == 0 ? kStages - 1 : stage - 1;
      load_keys(stages + free_stage * kKeyStageBytes, params, work, loads);
      loads.advance(params);
    }
    commit_copies();
    stage = stage + 1 == kStages ? 0 : stage + 1;
#endif
    if (!warp_keys.visible(tiles)) continue;
    float scores[kRowTiles][kKeyTiles][4] = {}, gradients[kRowTiles][kKeyTiles][4] = {};
    multiply_rows<kHeadDim>(scores, row_queries, key_address<kHeadDim>(keys));
    multiply_rows<kHeadDimV>(gradients, row_outputs, key_address<kHeadDimV>(keys + kStepKeysBytes));
#if FW_DROPOUT
    drop_gradients(gradients, dropout_key, dropout_head, params.drop_threshold,
                   work.row_begin + warp_row, tiles.first);
#endif
    find_row_gradients(scores, gradients, warp_rows, params, tiles.first);
    if (warp_keys.needs_test(tiles))
      hide_gradients(gradients, params, work, tiles, work.row_begin + warp_row);
    u32 packed[kRowTiles][kTileKv / kMmaK][4];
    pack_rows(packed, gradients);
    add_columns<kHeadDim>(sums, packed, value_address<kHeadDim>(keys));
  }

  // The results take the place of the queries, when their last reader is done.
  wait_copies<0>();
  synchronize_block();
  put_rows<kHeadDim>(queries, sums, gradient_factor(params), warp_row);
  synchronize_block();
  store_tile<kTileQ, kHeadDim>(params.dq + work.batch * params.dq_batch_stride +
                                   work.head * params.dq_head_stride +
                                   work.row_begin * params.dq_row_stride,
                               params.dq_row_stride, queries, rows, params.aligned);
}
