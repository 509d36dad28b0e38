//~ Gradients of queries from fw_backward_keys: each block adds what its keys contribute to sums in
//~ global memory, which a last kernel scales and rounds.

#if FW_ADD_QUERIES
// The sums of 64 queries, in the order in which a warpgroup holds them: pairs of all its threads,
// next to each other.
__device__ __forceinline__ float* tile_sums(const Params& params, int batch, int head, int first) {
  const i64 row = (static_cast<i64>(batch) * params.heads_q + head) * padded_rows(params) + first;
  return query_sums(params) + row * kHeadDim;
}

// Adds the tiles of a step: one thread sends them, from a place in shared memory that only this
// consumer uses.
__device__ __forceinline__ void add_queries(const float (&dq)[kQueryStep / 64][kHeadDim / 2],
                                            u32 place, float* target, int group) {
  constexpr int kPairs = kHeadDim / 4;  // of a tile
  const int thread = thread_index() % 128;
  if (thread == 0) wait_stores_read<0>();  // of the last tiles
  synchronize_named(2 + group, 128);
#pragma unroll
  for (int i = 0; i < kQueryStep / 64 * kPairs; ++i) {
    const int pair = i % kPairs;
    store_shared_float2(place + (i * 128 + thread) * 8, dq[i / kPairs][2 * pair],
                        dq[i / kPairs][2 * pair + 1]);
  }
  fence_async_shared();
  synchronize_named(2 + group, 128);
  if (thread != 0) return;
  add_row(target, place, kQueryStep * kHeadDim * 4);
  commit_stores();
}

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
