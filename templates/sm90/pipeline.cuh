//~ How producer and consumers of the sm90 family hand tiles to each other.

// Where a role is on its way through the tiles.
struct Walk {
  RingPlace<kStages> at;
  RingPlace<kQueryStages> queries;
};

// The mbarriers of a block, those of the first stage. Full: the tile has arrived. Empty: all who
// read it are done. Every consumer has queries of its own.
struct Barriers {
  u32 queries_full, queries_empty;
  u32 keys_full, keys_empty, values_full, values_empty;

#if FW_CLUSTER
  // `producers` fill a stage: one thread for all where TMA does, else one of each block. So no
  // consumer is a phase ahead of a block that it gives stages back to.
  __device__ __forceinline__ void make(int producers) const {
#else
  __device__ __forceinline__ void make() const {
#endif
#pragma unroll
    for (int i = 0; i < kQueryStages * kConsumers; ++i) {
      init_barrier(queries_full + i * 8, 1);
      init_barrier(queries_empty + i * 8, 4);  // warps
    }
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
#if FW_CLUSTER
      init_barrier(keys_full + stage * 8, producers);
      init_barrier(values_full + stage * 8, producers);
      init_barrier(keys_empty + stage * 8, kClusterBlocks * kConsumers);
      init_barrier(values_empty + stage * 8, kClusterBlocks * kConsumers);
#elif FW_BLOCKS
      init_barrier(keys_full + stage * 8, 1);
      init_barrier(values_full + stage * 8, 1);
      init_barrier(keys_empty + stage * 8, 4 * kConsumers);
      init_barrier(values_empty + stage * 8, kConsumers);
#else
      init_barrier(keys_full + stage * 8, 1);
      init_barrier(values_full + stage * 8, 1);
      init_barrier(keys_empty + stage * 8, kConsumers);
      init_barrier(values_empty + stage * 8, kConsumers);
#endif
    }
    publish_barriers();
  }
};

__device__ __forceinline__ Barriers find_barriers(u32 memory) {
  Barriers barriers;
  barriers.queries_full = memory + kBarriersOffset;
  barriers.queries_empty = barriers.queries_full + kQueryStages * kConsumers * 8;
  barriers.keys_full = barriers.queries_empty + kQueryStages * kConsumers * 8;
  barriers.keys_empty = barriers.keys_full + kStages * 8;
  barriers.values_full = barriers.keys_empty + kStages * 8;
  barriers.values_empty = barriers.values_full + kStages * 8;
  return barriers;
}

#if FW_CLUSTER
// One thread arrives at the same barrier in all blocks of the cluster.
__device__ __forceinline__ void arrive_everywhere(u32 barrier) {
#pragma unroll
  for (int rank = 0; rank < kClusterBlocks; ++rank) arrive_remote(address_in_block(barrier, rank));
}

// One thread gives a stage of keys or values back, to the producers of all blocks: each fills a
// part of it.
__device__ __forceinline__ void arrive_empty(u32 barrier) { arrive_everywhere(barrier); }

// A stage has been filled by the threads of this block.
__device__ __forceinline__ void announce_stage(u32 barrier) {
  fence_async_shared();
  synchronize_named<1, 128>();
  if (thread_index() % 128 == 0) arrive_everywhere(barrier);
}
#else
// One thread gives a stage of keys or values back.
__device__ __forceinline__ void arrive_empty(u32 barrier) { arrive(barrier); }

// A stage has been filled by the threads of this block.
__device__ __forceinline__ void announce_stage(u32 barrier) { announce(barrier); }
#endif

// One thread of a warpgroup speaks for it: its wait has covered the products of all.
__device__ __forceinline__ void release_stage(u32 barrier) {
  if (thread_index() % 128 == 0) arrive_empty(barrier);
}

// The queries of a consumer: their number among all, for their place and their barriers.
__device__ __forceinline__ int queries_number(const RingPlace<kQueryStages>& at, int group) {
  return at.stage * kConsumers + group;
}

// The first of a consumer's rows in a query tile.
#if FW_SWAP_ROWS
// From tile to tile the two consumers change places: the upper rows see fewer keys.
__device__ __forceinline__ int row_of(const RingPlace<kQueryStages>& at, int group) {
  return (group ^ at.stage) * 64;
}
#else
__device__ __forceinline__ int row_of(const RingPlace<kQueryStages>& at, int group) {
  return group * 64;
}
#endif

constexpr int kNoTile = -1;  // instead of a number in the batch

// The producer finds out which query tile comes next and tells the consumers beside its queries:
// that takes divisions, each of them a long chain of instructions.
__device__ __forceinline__ void tell_work(u32 memory, const RingPlace<kQueryStages>& at,
                                          const QueryTile& work) {
  const u32 place = memory + kWorkOffset + at.stage * kWorkBytes;
  store_shared_u32(place, work.batch);
  store_shared_u32(place + 4, work.head);
  store_shared_u32(place + 8, work.row_begin);
  store_shared_u32(place + 12, work.row_end);
}

// Once the queries are full. The lane that reads is one of those that give their place back.
__device__ __forceinline__ QueryTile told_work(u32 memory, int stage) {
  Bytes16 words = {};
  if (lane_index() == 0) words = load_shared_16(memory + kWorkOffset + stage * kWorkBytes);
  return {static_cast<int>(shuffle(words.word[0], 0)), static_cast<int>(shuffle(words.word[1], 0)),
          static_cast<int>(shuffle(words.word[2], 0)), static_cast<int>(shuffle(words.word[3], 0))};
}

#if FW_BLOCKS
// Whether the mask leaves the query tile any key, beside it.
__device__ __forceinline__ void tell_keys(u32 memory, const RingPlace<kQueryStages>& at,
                                          bool has_keys) {
  store_shared_u16(memory + kWorkOffset + at.stage * kWorkBytes + 16, has_keys ? 1 : 0);
}

__device__ __forceinline__ bool told_keys(u32 memory, int stage) {
  u32 has_keys = 0;
  if (lane_index() == 0) has_keys = load_shared_u16(memory + kWorkOffset + stage * kWorkBytes + 16);
  return shuffle(has_keys, 0) != 0;
}
#endif

#if FW_PING_PONG
// Consumers start their products in turn, once for each tile: so the softmax of one runs beside the
// products of another. A turn is a named barrier that one consumer waits at and the one before it
// arrives at.
constexpr int kFirstTurn = 2 + kConsumers;

__device__ __forceinline__ void take_turn(int group) { synchronize_named(kFirstTurn + group, 256); }

__device__ __forceinline__ void pass_turn(int group) {
  arrive_named(kFirstTurn + (group + 1) % kConsumers, 256);
}
#endif
