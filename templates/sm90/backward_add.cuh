//~ Gradients of queries from fw_backward_keys: each block adds what its keys contribute to sums in
//~ global memory, which a last kernel scales and rounds.

#if FW_ADD_QUERIES
// The sums of 64 queries, in the order in which a warpgroup holds them: pairs of all its threads,
// next to each other.
__device__ __forceinline__ float* tile_sums(const Params& params, int batch, int head, int first) {
  const i64 row = (static_cast<i64>(batch) * params.heads_q + head) * padded_rows(params) + first;
  return query_sums(params) + row * kHeadDim;
}

// Adds tiles of a step: one thread sends them, from a place in shared memory that only this
// warpgroup uses, and no longer when at most kOnTheirWay of what it has sent have not left theirs.
template <int kOnTheirWay, int kTiles>
__device__ __forceinline__ void add_queries(const float (&dq)[kTiles][kHeadDim / 2], u32 place,
                                            float* target, int group) {
  constexpr int kPairs = kHeadDim / 4;  // of a tile
  const int thread = thread_index() % 128;
  if (thread == 0) wait_stores_read<kOnTheirWay>();
  synchronize_named(2 + group, 128);
#pragma unroll
  for (int i = 0; i < kTiles * kPairs; ++i) {
    const int pair = i % kPairs;
    store_shared_float2(place + (i * 128 + thread) * 8, dq[i / kPairs][2 * pair],
                        dq[i / kPairs][2 * pair + 1]);
  }
  fence_async_shared();
  synchronize_named(2 + group, 128);
  if (thread != 0) return;
  add_row(target, place, kTiles * 64 * kHeadDim * 4);
  commit_stores();
}

#if FW_ADDER
// The warpgroup that makes gradients of queries of what consumers share, and adds them up.
__device__ __forceinline__ void add_all_queries(const Params& params, u32 memory) {
  constexpr int kTiles = kQueryStep / 64;
  constexpr int kGroup = kConsumers + 1;  // behind the producer
  const KeyTile work = find_key_tile(params);
  const Barriers barriers = find_barriers(memory + kKeysBarriersOffset);
  RingPlace<kSlots> slot = {};
  QueryTiles tiles;
  tiles.start(params, work);
  wait_barrier(barriers.own_full, 0);
#pragma unroll 1
  for (; !tiles.done && params.dq != nullptr; tiles.advance(params, work)) {
    const u32 shared = memory + kSharedOffset + slot.stage * kSharedStride;
    float* const target = tile_sums(params, work.batch, tiles.head, tiles.first);
    wait_barrier(barriers.shared_full + slot.stage * 8, slot.parity);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      float dq[1][kHeadDim / 2];
      fence_products();
      start_queries(dq[0], shared + i * kKeysPerBlock * 128, memory);
      wait_products<0>();
      hold(dq[0]);
      if (i == kTiles - 1) release(barriers.shared_empty + slot.stage * 8);
      add_queries<kTiles - 1>(dq, memory + kSumsOffset + i * 64 * kHeadDim * 4,
                              target + i * 64 * kHeadDim, kGroup);
    }
    slot.advance();
  }
  release(barriers.own_free);
  wait_for_output();
}
#endif

// Scales and rounds the sums of 64 queries: one block.
__device__ __forceinline__ void convert_queries(const Params& params, u32 memory) {
  const int tiles = (params.seq_q + 63) / 64;
  const i64 head = block_index() / tiles;
  const int first = static_cast<int>(block_index() % tiles) * 64;
  const QueryTile work = {static_cast<int>(head / params.heads_q),
                          static_cast<int>(head % params.heads_q), first, params.seq_q};
  const u64* sums = reinterpret_cast<const u64*>(tile_sums(params, work.batch, work.head, first));
  float dq[kHeadDim / 2];
#pragma unroll
  for (int i = 0; i < kHeadDim / 4; ++i) {
    const u64 pair = load_global(sums + i * 128 + thread_index());
    dq[2 * i] = bits_float(static_cast<u32>(pair));
    dq[2 * i + 1] = bits_float(static_cast<u32>(pair >> 32));
  }
  Element* rows =
      params.dq + work.batch * params.dq_batch_stride + work.head * params.dq_head_stride;
  write_rows<kHeadDim, kSwizzle>(dq, numerator(params) * params.softmax_scale, memory,
                                 {params.dq_map, rows, params.dq_row_stride, work.batch, work.head,
                                  first, work.row_end, params.seq_q},
                                 params.aligned != 0, 0);
  wait_for_output();
}
#endif
