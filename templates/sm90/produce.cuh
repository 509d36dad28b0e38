//~ The producer: it brings queries, keys and values to where the consumers wait for them.

#if FW_PERSISTENT
// Until the places of the next queries, of all consumers, are empty.
__device__ __forceinline__ void wait_for_places(const Barriers& barriers,
                                                const RingPlace<kQueryStages>& at) {
#pragma unroll 1
  for (int group = 0; group < kConsumers; ++group)
    wait_barrier(barriers.queries_empty + queries_number(at, group) * 8, at.parity ^ 1);
}

// What is told of a query tile is there for all consumers, without queries.
__device__ __forceinline__ void announce_work(const Barriers& barriers,
                                              const RingPlace<kQueryStages>& at) {
#pragma unroll 1
  for (int group = 0; group < kConsumers; ++group)
    arrive(barriers.queries_full + queries_number(at, group) * 8);
}

// No query tile is left.
__device__ __forceinline__ void tell_end(u32 memory, const Barriers& barriers,
                                         const RingPlace<kQueryStages>& at) {
  wait_for_places(barriers, at);
  tell_work(memory, at, {kNoTile, 0, 0, 0});
  announce_work(barriers, at);
}
#endif

// Starts the copy of the queries of all consumers.
__device__ __forceinline__ void load_queries(const Params& params, const QueryTile& work,
                                             u32 memory, const Barriers& barriers, Walk& walk) {
#pragma unroll 1
  for (int group = 0; group < kConsumers; ++group) {
    const int number = queries_number(walk.queries, group);
    const u32 full = barriers.queries_full + number * 8;
    arrive_expecting(full, kQueriesBytes);
#if FW_PACK_HEADS
    const int rows = rows_of_head(params);
    const int first = work.row_begin + (row_of(walk.queries, group) >> params.pack_shift);
#pragma unroll 1
    for (int part = 0; part < 64 / rows; ++part)
      load_boxes<64, kPaddedDim, kSwizzle>(memory + number * kOwnBytes + part * rows * kSwizzle,
                                           params.q_map, full, first, work.head + part, work.batch);
#else
    load_boxes<64, kPaddedDim, kSwizzle>(memory + number * kOwnBytes, params.q_map, full,
                                         work.row_begin + row_of(walk.queries, group), work.head,
                                         work.batch);
#endif
  }
  walk.queries.advance();
}

// Starts the copy of the keys of the tile at hand, once their stage is empty, and goes on to the
// next tile. Returns the first of the keys.
__device__ __forceinline__ int load_keys(const Params& params, const QueryTile& work, int kv_head,
                                         u32 memory, const Barriers& barriers,
                                         const RingPlace<kStages>& at, KeyTiles& tiles) {
  const int first_key = tiles.first;
  const u32 full = barriers.keys_full + at.stage * 8;
  const u32 tile = memory + kKeysOffset + at.stage * kKeysStride;
  wait_barrier(barriers.keys_empty + at.stage * 8, at.parity ^ 1);
#if FW_BLOCKS
  ToldTile told = {tiles.first, tiles.end, tiles.block_begin, tiles.partial, false};
  tiles.advance(params);
  told.last = tiles.done;
  tell_tile(memory, at.stage, told);
#else
  tiles.advance(params);
#endif
  arrive_expecting(full, kKeysBytes);
#if FW_CLUSTER
  load_part<kTileKv, kPaddedDim, kSwizzle>(tile, params.k_map, full, first_key, kv_head,
                                           work.batch);
#else
  load_boxes<kTileKv, kPaddedDim, kSwizzle>(tile, params.k_map, full, first_key, kv_head,
                                            work.batch);
#endif
  return first_key;
}

// The same for the values of those keys.
__device__ __forceinline__ void load_values(const Params& params, const QueryTile& work,
                                            int kv_head, u32 memory, const Barriers& barriers,
                                            const RingPlace<kStages>& at, int first_key) {
  const u32 full = barriers.values_full + at.stage * 8;
  const u32 tile = memory + kValuesOffset + at.stage * kValuesStride;
  wait_barrier(barriers.values_empty + at.stage * 8, at.parity ^ 1);
  arrive_expecting(full, kValuesBytes);
#if FW_CLUSTER
  load_part<kTileKv, kPaddedDimV, kSwizzleV>(tile, params.v_map, full, first_key, kv_head,
                                             work.batch);
#else
  load_boxes<kTileKv, kPaddedDimV, kSwizzleV>(tile, params.v_map, full, first_key, kv_head,
                                              work.batch);
#endif
}

// Loads the queries of the tile whose turn it is, its keys and its values: the first keys before
// the queries, as their place is empty earlier. Behind the last keys it takes the next turn: that
// needs time, which the wait for a place for their values hides.
__device__ __forceinline__ void load_tiles(const Params& params, Turn& turn, u32 memory,
                                           const Barriers& barriers, Walk& walk) {
  const QueryTile work = turn.work;
  const int kv_head = work.head / params.group;
  KeyTiles tiles;
  tiles.start(params, work);
  const bool has_keys = !tiles.done;
  int first_key = 0;
  if (has_keys) first_key = load_keys(params, work, kv_head, memory, barriers, walk.at, tiles);
#if FW_PERSISTENT
  wait_for_places(barriers, walk.queries);
#endif
  tell_work(memory, walk.queries, work);
#if FW_BLOCKS
  tell_keys(memory, walk.queries, has_keys);
#endif
  load_queries(params, work, memory, barriers, walk);
  bool last = tiles.done;
  if (last) turn.next(params);
  if (!has_keys) return;
  while (true) {
    load_values(params, work, kv_head, memory, barriers, walk.at, first_key);
    walk.at.advance();
    if (last) return;
    first_key = load_keys(params, work, kv_head, memory, barriers, walk.at, tiles);
    last = tiles.done;
    if (last) turn.next(params);
  }
}

#if FW_PACK_HEADS
// The queries of a consumer, of all heads that are joined; `rows` of each exist.
__device__ __forceinline__ void copy_joined_rows(const Params& params, u32 tile, const Element* q,
                                                 int rows) {
  const int row = thread_index() % 128;
  const int query = query_of(params, row % 64);
  const Element* from =
      q + head_of(params, row % 64) * params.q_head_stride + query * params.q_row_stride;
#pragma unroll 1
  for (int column = row / 64; column < kPaddedDim; column += 2) {
    const bool exists = query < rows && column < kHeadDim;
    store_shared_u16(element_address<64, kSwizzle>(tile, row % 64, column),
                     exists ? load_global(from + column) : static_cast<Element>(0));
  }
}
#endif

// By all threads of the warpgroup, once it is told which query tile it is.
__device__ __forceinline__ void copy_tiles(const Params& params, const QueryTile& work, u32 memory,
                                           const Barriers& barriers, Walk& walk) {
  const int kv_head = work.head / params.group;
  KeyTiles tiles;
  tiles.start(params, work);
  const Element* q = params.q + work.batch * params.q_batch_stride +
                     work.head * params.q_head_stride + work.row_begin * params.q_row_stride;
#if FW_BLOCKS
  if (thread_index() % 128 == 0) tell_keys(memory, walk.queries, !tiles.done);
#endif
#pragma unroll 1
  for (int group = 0; group < kConsumers; ++group) {
    const int number = queries_number(walk.queries, group);
#if FW_PACK_HEADS
    const int first = row_of(walk.queries, group) >> params.pack_shift;
    copy_joined_rows(params, memory + number * kOwnBytes, q + first * params.q_row_stride,
                     work.row_end - work.row_begin - first);
#else
    copy_rows<64, kHeadDim, kPaddedDim, kSwizzle>(
        memory + number * kOwnBytes, q + row_of(walk.queries, group) * params.q_row_stride,
        params.q_row_stride, work.row_end - work.row_begin - row_of(walk.queries, group));
#endif
    announce(barriers.queries_full + number * 8);
  }
  walk.queries.advance();
  const Element* k = params.k + work.batch * params.k_batch_stride + kv_head * params.k_head_stride;
  const Element* v = params.v + work.batch * params.v_batch_stride + kv_head * params.v_head_stride;
  RingPlace<kStages>& at = walk.at;
  while (!tiles.done) {
    const int first_key = tiles.first, rows = params.seq_kv - first_key;
    wait_barrier(barriers.keys_empty + at.stage * 8, at.parity ^ 1);
#if FW_BLOCKS
    ToldTile told = {tiles.first, tiles.end, tiles.block_begin, tiles.partial, false};
    tiles.advance(params);
    told.last = tiles.done;
    if (thread_index() % 128 == 0) tell_tile(memory, at.stage, told);
#else
    tiles.advance(params);
#endif
    copy_rows<kTileKv, kHeadDim, kPaddedDim, kSwizzle>(
        memory + kKeysOffset + at.stage * kKeysStride, k + first_key * params.k_row_stride,
        params.k_row_stride, rows);
    announce_stage(barriers.keys_full + at.stage * 8);
    wait_barrier(barriers.values_empty + at.stage * 8, at.parity ^ 1);
    copy_rows<kTileKv, kHeadDimV, kPaddedDimV, kSwizzleV>(
        memory + kValuesOffset + at.stage * kValuesStride, v + first_key * params.v_row_stride,
        params.v_row_stride, rows);
    announce_stage(barriers.values_full + at.stage * 8);
    at.advance();
  }
}
