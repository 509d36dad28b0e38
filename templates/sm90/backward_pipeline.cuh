//~ How producer and consumers of a gradient kernel hand tiles to each other. A block keeps a pair
//~ of tiles of its own, keys and values or queries and gradients of outputs, and meets pairs of the
//~ other kind that come through stages. The first of a pair is the one that scores are made of.

// The mbarriers of a block, those of the first stage. Full: the tile has arrived. Empty: all who
// read it are done.
struct Barriers {
  u32 own_full;
  u32 first_full, first_empty, second_full, second_empty;
#if FW_ADD_QUERIES || FW_SPLIT_KEYS
  u32 shared_full, shared_empty;  // what consumers tell each other
  u32 own_free;                   // tiles of the block are read no more by others than their owner
#endif

  // `tellers`: who arrive when the first tile of a stage is there.
  __device__ __forceinline__ void make(int tellers) const {
    init_barrier(own_full, 1);
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(first_full + stage * 8, tellers);
      init_barrier(first_empty + stage * 8, 4 * kConsumers);  // warps
      init_barrier(second_full + stage * 8, 1);
      init_barrier(second_empty + stage * 8, kConsumers);
    }
#if FW_ADD_QUERIES || FW_SPLIT_KEYS
    init_barrier(own_free, kReaders);
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
#if FW_SPLIT_KEYS
      init_barrier(shared_full + slot * 8, 4);  // warps
      init_barrier(shared_empty + slot * 8, 4);
#else
      init_barrier(shared_full + slot * 8, 4 * kConsumers);  // warps
      init_barrier(shared_empty + slot * 8, 1);
#endif
    }
#endif
    publish_barriers();
  }
};

__device__ __forceinline__ Barriers find_barriers(u32 place) {
  Barriers barriers;
  barriers.own_full = place;
  barriers.first_full = place + 8;
  barriers.first_empty = barriers.first_full + kStages * 8;
  barriers.second_full = barriers.first_empty + kStages * 8;
  barriers.second_empty = barriers.second_full + kStages * 8;
#if FW_ADD_QUERIES || FW_SPLIT_KEYS
  barriers.shared_full = barriers.second_empty + kStages * 8;
  barriers.shared_empty = barriers.shared_full + kSlots * 8;
  barriers.own_free = barriers.shared_empty + kSlots * 8;
#endif
  return barriers;
}

// The first tile of a stage, and what is told with it, has been read: each warp for itself.
__device__ __forceinline__ void release_first(const Barriers& barriers, int stage) {
  synchronize_warp();
  if (lane_index() == 0) arrive(barriers.first_empty + stage * 8);
}

// Gives back the second tile of a stage that a consumer has no use for. Without a product, which
// all four warps take part in, only a barrier tells that none of them still waits for the tile.
template <int kCount>
__device__ __forceinline__ void pass_second(const Barriers& barriers, const RingPlace<kCount>& at,
                                            int group) {
  wait_barrier(barriers.second_full + at.stage * 8, at.parity);
  synchronize_named(2 + group, 128);
  release(barriers.second_empty + at.stage * 8);
}

// Starts the copy of a tile, in boxes of kBoxRows rows; what lies behind the end of the tensor
// becomes 0. Loops stay loops: a producer has few registers.
template <int kRows, int kBoxRows, int kColumns, int kSwizzle>
__device__ __forceinline__ void load_tile(u32 tile, const TensorMap& map, u32 barrier, int row,
                                          int head, int batch) {
  constexpr int kSlab = kSwizzle / 2;
#pragma unroll 1
  for (int column = 0; column < kColumns; column += kSlab) {
#pragma unroll 1
    for (int part = 0; part < kRows; part += kBoxRows)
      load_box(tile + (column / kSlab * kRows + part) * kSwizzle, map, barrier, column, row + part,
               head, batch);
  }
}
