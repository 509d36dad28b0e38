//~ How producer and consumers of the sm90 family hand tiles to each other.

// A place in the ring of stages, and the parity of the phase that its barriers are in.
struct RingPlace {
  int stage;
  u32 parity;

  __device__ __forceinline__ void advance() {
    ++stage;
    if (stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Where a role is on its way through the tiles.
struct Walk {
  RingPlace at;
#if FW_PERSISTENT
  u32 round;  // parity of the query tile
#endif
};

// The mbarriers of a block. Full: the tile has arrived. Empty: all consumers are done with it.
struct Barriers {
  u32 queries_full;
#if FW_PERSISTENT
  u32 queries_empty;
#endif
  u32 keys_full, keys_empty, values_full, values_empty;  // of the first stage

  __device__ __forceinline__ void make() const {
    init_barrier(queries_full, 1);
#if FW_PERSISTENT
    init_barrier(queries_empty, kConsumers);
#endif
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(keys_full + stage * 8, 1);
      init_barrier(values_full + stage * 8, 1);
      init_barrier(keys_empty + stage * 8, kConsumers);
      init_barrier(values_empty + stage * 8, kConsumers);
    }
    publish_barriers();
  }
};

__device__ __forceinline__ Barriers find_barriers(u32 memory) {
  Barriers barriers;
  barriers.queries_full = memory + kBarriersOffset;
#if FW_PERSISTENT
  barriers.queries_empty = barriers.queries_full + 8;
#endif
  barriers.keys_full = barriers.queries_full + 16;
  barriers.keys_empty = barriers.keys_full + kStages * 8;
  barriers.values_full = barriers.keys_empty + kStages * 8;
  barriers.values_empty = barriers.values_full + kStages * 8;
  return barriers;
}

// One thread of a warpgroup speaks for it: its wait has covered the products of all.
__device__ __forceinline__ void release(u32 barrier) {
  if (thread_index() % 128 == 0) arrive(barrier);
}

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
