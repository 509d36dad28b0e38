//~ The producer of fw_backward_keys: it brings keys and values, then the queries that they meet,
//~ with the gradients of their outputs and what is known of their rows.

// The step that a stage holds.
struct Step {
  int first;  // query
  int head;   // of the queries; kNoHead: no step is left
  int test;   // 1: some query may not see some key
  int end;    // queries end here
#if FW_BLOCKS
  // As in QueryTiles.
  int partial;
#endif
};
constexpr int kNoHead = -1;

__device__ __forceinline__ void tell_step(u32 place, const Step& step) {
  store_shared_u32(place, step.first);
  store_shared_u32(place + 4, step.head);
  store_shared_u32(place + 8, step.test);
  store_shared_u32(place + 12, step.end);
#if FW_BLOCKS
  store_shared_u32(place + 16, step.partial);
#endif
}

__device__ __forceinline__ Step told_step(u32 place) {
  const Bytes16 words = load_shared_16(place);
  Step step;
  step.first = static_cast<int>(shuffle(words.word[0], 0));
  step.head = static_cast<int>(shuffle(words.word[1], 0));
  step.test = static_cast<int>(shuffle(words.word[2], 0));
  step.end = static_cast<int>(shuffle(words.word[3], 0));
#if FW_BLOCKS
  step.partial = static_cast<int>(shuffle(float_bits(load_shared_float(place + 16)), 0));
#endif
  return step;
}

// Where what belongs to query i of a step lies among the others. A lane of a consumer reads four of
// them at once: those of its columns in two tiles of accumulators.
__device__ __forceinline__ int row_place(int i) {
  return i / 16 * 16 + i % 8 / 2 * 4 + i / 8 % 2 * 2 + i % 2;
}

// Starts the copy of keys and values.
__device__ __forceinline__ void load_own_keys(const Params& params, const KeyTile& work, u32 memory,
                                              const Barriers& barriers) {
  arrive_expecting(barriers.own_full, kKeysPerBlock / 64 * (kOwnKeysBytes + kOwnValuesBytes));
#pragma unroll 1
  for (int part = 0; part < kKeysPerBlock / 64; ++part) {
    load_tile<64, kKeyBoxRows, kPaddedDim, kSwizzle>(memory + part * kOwnKeysStride, params.k_map,
                                                     barriers.own_full, work.key_begin + part * 64,
                                                     work.head, work.batch);
    load_tile<64, kKeyBoxRows, kPaddedDimV, kSwizzleV>(
        memory + kOwnValuesOffset + part * kOwnValuesStride, params.v_map, barriers.own_full,
        work.key_begin + part * 64, work.head, work.batch);
  }
}

#if FW_DROPOUT
// What all four warps write for a step: a word for each query and 32 keys.
__device__ __forceinline__ void tell_words(const Params& params, const KeyTile& work,
                                           const QueryTiles& tiles, u32 memory, int stage) {
  const u32 thread = thread_index() % 128;
  const u32 head = static_cast<u32>(work.batch) * params.heads_q + tiles.head;
  // The place of a later word is that of the thread's first, moved.
  u32 place = memory + kRowsOffset + stage * kRowsStride + (2 * kQueryStep + row_place(thread)) * 4;
#pragma unroll 1
  for (u32 i = thread; i < kQueryStep * (kKeysPerBlock / 32); i += 128, place += 128 * 4) {
    const u64 key = find_dropout_key(params);  // each time: the keys of all rounds take registers
    store_shared_u32(place, keep_bits(key, head, tiles.first + i % kQueryStep,
                                      work.key_begin + i / kQueryStep * 32, params.drop_threshold));
  }
}
#endif

// Starts the copies of a step, once their places are empty.
__device__ __forceinline__ void load_step_queries(const Params& params, const KeyTile& work,
                                                  const QueryTiles& tiles, u32 memory, int stage,
                                                  u32 full) {
  arrive_expecting(full, kStepQueriesBytes);
  load_tile<kQueryStep, kQueryBoxRows, kPaddedDim, kSwizzle>(
      memory + kStepQueriesOffset + stage * kStepQueriesStride, params.q_map, full, tiles.first,
      tiles.head, work.batch);
}

__device__ __forceinline__ void load_step_outputs(const Params& params, const KeyTile& work,
                                                  const QueryTiles& tiles, u32 memory, int stage,
                                                  u32 full) {
  arrive_expecting(full, kStepOutputsBytes);
  load_tile<kQueryStep, kQueryBoxRows, kPaddedDimV, kSwizzleV>(
      memory + kStepOutputsOffset + stage * kStepOutputsStride, params.d_o_map, full, tiles.first,
      tiles.head, work.batch);
}

#if FW_DROPOUT
// Brings what TMA can address, and a part of the words: one warp, whose first lane starts copies.
#else
// Brings what TMA can address: one thread.
#endif
__device__ __forceinline__ void load_queries(const Params& params, const KeyTile& work, u32 memory,
                                             const Barriers& barriers) {
#if FW_DROPOUT
  if (lane_index() == 0) load_own_keys(params, work, memory, barriers);
#else
  load_own_keys(params, work, memory, barriers);
#endif
  RingPlace<kStages> at = {};
  QueryTiles tiles;
  tiles.start(params, work);
#pragma unroll 1
  for (; !tiles.done; tiles.advance(params, work)) {
    const u32 first_full = barriers.first_full + at.stage * 8;
    const u32 second_full = barriers.second_full + at.stage * 8;
    wait_barrier(barriers.first_empty + at.stage * 8, at.parity ^ 1);
#if FW_DROPOUT
    tell_words(params, work, tiles, memory, at.stage);
    synchronize_warp();
    if (lane_index() == 0) load_step_queries(params, work, tiles, memory, at.stage, first_full);
    wait_barrier(barriers.second_empty + at.stage * 8, at.parity ^ 1);
    if (lane_index() == 0) load_step_outputs(params, work, tiles, memory, at.stage, second_full);
#else
    load_step_queries(params, work, tiles, memory, at.stage, first_full);
    wait_barrier(barriers.second_empty + at.stage * 8, at.parity ^ 1);
    load_step_outputs(params, work, tiles, memory, at.stage, second_full);
#endif
    at.advance();
  }
  wait_barrier(barriers.first_empty + at.stage * 8, at.parity ^ 1);
#if FW_DROPOUT
  if (lane_index() == 0) arrive(barriers.first_full + at.stage * 8);
#else
  arrive(barriers.first_full + at.stage * 8);
#endif
}

// What three warps write for a step: which it is, and for each query two numbers of its row.
__device__ __forceinline__ void tell_rows(const Params& params, const KeyTile& work,
                                          const QueryTiles& tiles, u32 memory, int stage) {
  const int thread = thread_index() % 128 - 32;
#if FW_BLOCKS
  const int end = tiles.end;
#else
  const int end = params.seq_q;
#endif
  if (thread == 0) {
    Step step;
    step.first = tiles.first;
    step.head = tiles.head;
    WarpQueries queries;
    queries.start(params, work, 0, kKeysPerBlock);
    const bool past_end = work.key_begin + kKeysPerBlock > work.key_end;
    step.test = past_end || queries.needs_test(tiles) ? 1 : 0;
    step.end = end;
#if FW_BLOCKS
    step.partial = tiles.partial;
#endif
    tell_step(memory + kStepsOffset + stage * 32, step);
  }
  const float* statistics =
      static_cast<const float*>(params.workspace) +
      2 * ((static_cast<i64>(work.batch) * params.heads_q + tiles.head) * params.seq_q +
           tiles.first);
  const u32 rows = memory + kRowsOffset + stage * kRowsStride;
#pragma unroll 1
  for (int i = thread; i < kQueryStep; i += 96) {
    const bool exists = tiles.first + i < end;
    const u32 place = rows + row_place(i) * 4;
    store_shared_float(place, exists ? load_global(statistics + 2 * i) : infinity());
    store_shared_float(place + kQueryStep * 4, exists ? load_global(statistics + 2 * i + 1) : 0.0f);
  }
}

// The same until no step is left. Each warp for itself.
__device__ __forceinline__ void tell_all_rows(const Params& params, const KeyTile& work, u32 memory,
                                              const Barriers& barriers) {
  RingPlace<kStages> at = {};
  QueryTiles tiles;
  tiles.start(params, work);
#pragma unroll 1
  while (true) {
    wait_barrier(barriers.first_empty + at.stage * 8, at.parity ^ 1);
    if (tiles.done) break;
    tell_rows(params, work, tiles, memory, at.stage);
#if FW_DROPOUT
    tell_words(params, work, tiles, memory, at.stage);
#endif
    synchronize_warp();
    if (lane_index() == 0) arrive(barriers.first_full + at.stage * 8);
    tiles.advance(params, work);
    at.advance();
  }
  if (thread_index() % 128 == 32) tell_step(memory + kStepsOffset + at.stage * 32, {0, kNoHead});
  synchronize_warp();
  if (lane_index() == 0) arrive(barriers.first_full + at.stage * 8);
}

// All of that by all threads of the warpgroup, for rows that start anywhere.
__device__ __forceinline__ void copy_queries(const Params& params, const KeyTile& work, u32 memory,
                                             const Barriers& barriers) {
  const Element* k = params.k + work.batch * params.k_batch_stride +
                     work.head * params.k_head_stride + work.key_begin * params.k_row_stride;
  const Element* v = params.v + work.batch * params.v_batch_stride +
                     work.head * params.v_head_stride + work.key_begin * params.v_row_stride;
#pragma unroll 1
  for (int part = 0; part < kKeysPerBlock / 64; ++part) {
    const int rows = params.seq_kv - work.key_begin - part * 64;
    copy_rows<64, kHeadDim, kPaddedDim, kSwizzle>(memory + part * kOwnKeysStride,
                                                  k + part * 64 * params.k_row_stride,
                                                  params.k_row_stride, rows);
    copy_rows<64, kHeadDimV, kPaddedDimV, kSwizzleV>(
        memory + kOwnValuesOffset + part * kOwnValuesStride, v + part * 64 * params.v_row_stride,
        params.v_row_stride, rows);
  }
  announce(barriers.own_full);
  RingPlace<kStages> at = {};
  QueryTiles tiles;
  tiles.start(params, work);
#pragma unroll 1
  for (; !tiles.done; tiles.advance(params, work)) {
    const int rows = params.seq_q - tiles.first;
    wait_barrier(barriers.first_empty + at.stage * 8, at.parity ^ 1);
    if (thread_index() % 128 >= 32) tell_rows(params, work, tiles, memory, at.stage);
#if FW_DROPOUT
    tell_words(params, work, tiles, memory, at.stage);
#endif
    copy_rows<kQueryStep, kHeadDim, kPaddedDim, kSwizzle>(
        memory + kStepQueriesOffset + at.stage * kStepQueriesStride,
        params.q + work.batch * params.q_batch_stride + tiles.head * params.q_head_stride +
            tiles.first * params.q_row_stride,
        params.q_row_stride, rows);
    fence_async_shared();
    synchronize_warp();
    if (lane_index() == 0) arrive(barriers.first_full + at.stage * 8);
    wait_barrier(barriers.second_empty + at.stage * 8, at.parity ^ 1);
    copy_rows<kQueryStep, kHeadDimV, kPaddedDimV, kSwizzleV>(
        memory + kStepOutputsOffset + at.stage * kStepOutputsStride,
        params.d_o + work.batch * params.d_o_batch_stride + tiles.head * params.d_o_head_stride +
            tiles.first * params.d_o_row_stride,
        params.d_o_row_stride, rows);
    announce(barriers.second_full + at.stage * 8);
    at.advance();
  }
  wait_barrier(barriers.first_empty + at.stage * 8, at.parity ^ 1);
  if (thread_index() % 128 == 32) tell_step(memory + kStepsOffset + at.stage * 32, {0, kNoHead});
  synchronize_warp();
  if (lane_index() == 0) arrive(barriers.first_full + at.stage * 8);
}

// The producer warpgroup.
__device__ __forceinline__ void produce_queries(const Params& params, u32 memory) {
  const KeyTile work = find_key_tile(params);
  const Barriers barriers = find_barriers(memory + kKeysBarriersOffset);
  if (!params.aligned) {
    copy_queries(params, work, memory, barriers);
  } else if (warp_index() % 4 != 0) {
    tell_all_rows(params, work, memory, barriers);
#if FW_DROPOUT
  } else {
#else
  } else if (elect_lane()) {
#endif
    load_queries(params, work, memory, barriers);
  }
}
