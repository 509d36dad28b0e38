//~ The producer of fw_backward_queries: it brings queries and gradients of outputs, then the keys
//~ and values that these see.

#if FW_BLOCKS
// Whether the mask leaves the query tile any key. Before its own tiles are announced.
__device__ __forceinline__ void tell_keys(u32 memory, bool has_keys) {
  store_shared_u16(memory + kHasKeysOffset, has_keys ? 1 : 0);
}

__device__ __forceinline__ bool told_keys(u32 memory) {
  return load_shared_u16(memory + kHasKeysOffset) != 0;
}
#endif

// Starts the copy of queries and gradients of outputs.
__device__ __forceinline__ void load_own_queries(const Params& params, const QueryTile& work,
                                                 u32 memory, const Barriers& barriers) {
  arrive_expecting(barriers.own_full, kConsumers * (kOwnQueriesBytes + kOwnOutputsBytes));
#pragma unroll 1
  for (int group = 0; group < kConsumers; ++group) {
    const int row = work.row_begin + group * 64;
    load_tile<64, kQueryBoxRows, kPaddedDim, kSwizzle>(memory + group * kOwnQueriesStride,
                                                       params.q_map, barriers.own_full, row,
                                                       work.head, work.batch);
    load_tile<64, kQueryBoxRows, kPaddedDimV, kSwizzleV>(
        memory + kOwnOutputsOffset + group * kOwnOutputsStride, params.d_o_map, barriers.own_full,
        row, work.head, work.batch);
  }
}

// Brings what TMA can address: one thread.
__device__ __forceinline__ void load_keys(const Params& params, const QueryTile& work, u32 memory,
                                          const Barriers& barriers) {
  KeyTiles tiles;
  tiles.start(params, work);
#if FW_BLOCKS
  tell_keys(memory, !tiles.done);
#endif
  load_own_queries(params, work, memory, barriers);
  const int kv_head = work.head / params.group;
  RingPlace<kKeyStages> at = {};
  RingPlace<kValueStages> values_at = {};
#pragma unroll 1
  while (!tiles.done) {
    const int first_key = tiles.first;
    const u32 first_full = barriers.first_full + at.stage * 8;
    wait_barrier(barriers.first_empty + at.stage * 8, at.parity ^ 1);
#if FW_BLOCKS
    ToldTile told = {tiles.first, tiles.end, tiles.block_begin, tiles.partial, false};
    tiles.advance(params);
    told.last = tiles.done;
    tell_tile(memory, at.stage, told);
#else
    tiles.advance(params);
#endif
    arrive_expecting(first_full, kStepKeysBytes);
    load_tile<kTileKv, kKeyBoxRows, kPaddedDim, kSwizzle>(
        memory + kStepKeysOffset + at.stage * kStepKeysStride, params.k_map, first_full, first_key,
        kv_head, work.batch);
    const u32 second_full = barriers.second_full + values_at.stage * 8;
    wait_barrier(barriers.second_empty + values_at.stage * 8, values_at.parity ^ 1);
    arrive_expecting(second_full, kStepValuesBytes);
    load_tile<kTileKv, kKeyBoxRows, kPaddedDimV, kSwizzleV>(
        memory + kStepValuesOffset + values_at.stage * kStepValuesStride, params.v_map, second_full,
        first_key, kv_head, work.batch);
    at.advance();
    values_at.advance();
  }
}

// The same by all threads of the warpgroup, for rows that start anywhere.
__device__ __forceinline__ void copy_keys(const Params& params, const QueryTile& work, u32 memory,
                                          const Barriers& barriers) {
  const Element* q = params.q + work.batch * params.q_batch_stride +
                     work.head * params.q_head_stride + work.row_begin * params.q_row_stride;
  const Element* d_o = params.d_o + work.batch * params.d_o_batch_stride +
                       work.head * params.d_o_head_stride + work.row_begin * params.d_o_row_stride;
  const bool first_thread = thread_index() % 128 == 0;
#pragma unroll 1
  for (int group = 0; group < kConsumers; ++group) {
    const int rows = work.row_end - work.row_begin - group * 64;
    copy_rows<64, kHeadDim, kPaddedDim, kSwizzle>(memory + group * kOwnQueriesStride,
                                                  q + group * 64 * params.q_row_stride,
                                                  params.q_row_stride, rows);
    copy_rows<64, kHeadDimV, kPaddedDimV, kSwizzleV>(
        memory + kOwnOutputsOffset + group * kOwnOutputsStride,
        d_o + group * 64 * params.d_o_row_stride, params.d_o_row_stride, rows);
  }
  KeyTiles tiles;
  tiles.start(params, work);
#if FW_BLOCKS
  if (first_thread) tell_keys(memory, !tiles.done);
#endif
  announce(barriers.own_full);
  const int kv_head = work.head / params.group;
  const Element* k = params.k + work.batch * params.k_batch_stride + kv_head * params.k_head_stride;
  const Element* v = params.v + work.batch * params.v_batch_stride + kv_head * params.v_head_stride;
  RingPlace<kKeyStages> at = {};
  RingPlace<kValueStages> values_at = {};
#pragma unroll 1
  while (!tiles.done) {
    const int first_key = tiles.first, rows = params.seq_kv - first_key;
    wait_barrier(barriers.first_empty + at.stage * 8, at.parity ^ 1);
#if FW_BLOCKS
    ToldTile told = {tiles.first, tiles.end, tiles.block_begin, tiles.partial, false};
    tiles.advance(params);
    told.last = tiles.done;
    if (first_thread) tell_tile(memory, at.stage, told);
#else
    tiles.advance(params);
#endif
    copy_rows<kTileKv, kHeadDim, kPaddedDim, kSwizzle>(
        memory + kStepKeysOffset + at.stage * kStepKeysStride, k + first_key * params.k_row_stride,
        params.k_row_stride, rows);
    announce(barriers.first_full + at.stage * 8);
    wait_barrier(barriers.second_empty + values_at.stage * 8, values_at.parity ^ 1);
    copy_rows<kTileKv, kHeadDimV, kPaddedDimV, kSwizzleV>(
        memory + kStepValuesOffset + values_at.stage * kStepValuesStride,
        v + first_key * params.v_row_stride, params.v_row_stride, rows);
    announce(barriers.second_full + values_at.stage * 8);
    at.advance();
    values_at.advance();
  }
}

// The producer warpgroup.
__device__ __forceinline__ void produce_keys(const Params& params, u32 memory) {
  const QueryTile work = find_query_tile(params);
  const Barriers barriers = find_barriers(memory + kQueriesBarriersOffset);
  if (!params.aligned) {
    copy_keys(params, work, memory, barriers);
  } else if (warp_index() % 4 == 0 && elect_lane()) {
    load_keys(params, work, memory, barriers);
  }
}
