//~ Which query tiles a block of the sm90 family computes.

#if FW_PACK_HEADS
// Query heads that share a key head are joined: of the 64 rows of a consumer each has a part, which
// holds the same queries as the others.
__device__ __forceinline__ int joined_heads(const Params& params) {
  return params.heads_q >> params.pack_shift;
}

// Rows of each head among the 64.
__device__ __forceinline__ int rows_of_head(const Params& params) {
  return 64 >> params.pack_shift;
}

// The query of a row, counted from the first of the consumer.
__device__ __forceinline__ int query_of(const Params& params, int row) {
  return row & (rows_of_head(params) - 1);
}

// The head of a row, counted from the first of those that are joined.
__device__ __forceinline__ int head_of(const Params& params, int row) {
  return row >> (6 - params.pack_shift);
}
#endif

#if FW_BLOCKS
__device__ __forceinline__ u32 query_tiles_per_head(const Params& params) {
  return static_cast<u32>(params.query_blocks) * ((params.block_q + kTileQ - 1) / kTileQ);
}
#elif FW_PACK_HEADS
__device__ __forceinline__ u32 query_tiles_per_head(const Params& params) {
  const u32 queries = kTileQ >> params.pack_shift;
  return (static_cast<u32>(params.seq_q) + queries - 1) / queries;
}
#elif FW_CLUSTER
// As many as whole clusters take: the last may lie behind the end.
__device__ __forceinline__ u32 query_tiles_per_head(const Params& params) {
  constexpr u32 kRows = kClusterBlocks * kTileQ;
  return (static_cast<u32>(params.seq_q) + kRows - 1) / kRows * kClusterBlocks;
}
#else
__device__ __forceinline__ u32 query_tiles_per_head(const Params& params) {
  return static_cast<u32>(params.seq_q + kTileQ - 1) / kTileQ;
}
#endif

// A query tile by its place among all heads and among those of its head.
__device__ __forceinline__ QueryTile make_query_tile(const Params& params, u32 head, u32 tile) {
  QueryTile work;
#if FW_PACK_HEADS
  work.batch = static_cast<int>(head / joined_heads(params));
  work.head = static_cast<int>(head % joined_heads(params)) << params.pack_shift;
#else
  work.batch = static_cast<int>(head / params.heads_q);
  work.head = static_cast<int>(head % params.heads_q);
#endif
#if FW_BLOCKS
  // A query tile never reaches into the next mask block.
  const u32 tiles_per_block = (params.block_q + kTileQ - 1) / kTileQ;
  const i64 block_begin = static_cast<i64>(tile / tiles_per_block) * params.block_q;
  const i64 block_end = block_begin + params.block_q;
  work.row_begin = static_cast<int>(block_begin + tile % tiles_per_block * kTileQ);
  work.row_end = block_end < params.seq_q ? static_cast<int>(block_end) : params.seq_q;
#elif FW_PACK_HEADS
  work.row_begin = static_cast<int>(tile) * (kTileQ >> params.pack_shift);
  work.row_end = params.seq_q;
#else
  work.row_begin = static_cast<int>(tile) * kTileQ;
  work.row_end = params.seq_q;
#endif
  return work;
}

#if FW_PERSISTENT
// The query tiles of all heads.
__device__ __forceinline__ u32 count_query_tiles(const Params& params) {
#if FW_PACK_HEADS
  return query_tiles_per_head(params) * joined_heads(params) * params.batch;
#else
  return query_tiles_per_head(params) * params.heads_q * params.batch;
#endif
}
#endif

#if FW_LONGEST_FIRST
// Heads that blocks work on at the same time: all their query tiles, ordered by length, the longest
// first. Two tiles of a head stay next to each other, as they read the same keys.
struct Section {
  u32 first_head, heads;
  u32 tiles;  // of a head

  __device__ __forceinline__ QueryTile query_tile(const Params& params, u32 number) const {
    const u32 pair = number / (2 * heads);
    const u32 place = number - pair * 2 * heads;
    const u32 together = 2 * pair + 1 < tiles ? 2 : 1;
    return make_query_tile(params, first_head + place / together,
                           tiles - 1 - 2 * pair - place % together);
  }
};

// As many heads as have kBytes of keys and values, at least one.
template <u32 kBytes>
__device__ __forceinline__ u32 heads_of(const Params& params) {
  constexpr u32 kKeys = kBytes / ((kHeadDim + kHeadDimV) * kElementBytes);
  const u32 fitting = kKeys / (static_cast<u32>(params.seq_kv) + 1);  // of at least one key
  const u32 heads = (fitting > 1 ? fitting : 1) * params.group;
  const u32 all = static_cast<u32>(params.heads_q) * params.batch;
  return heads < all ? heads : all;
}

// The query tile with a number. Sections are small, so that keys and values stay in L2, but for the
// last: there the short tiles at its end fill what blocks have left.
__device__ __forceinline__ QueryTile numbered_query_tile(const Params& params, u32 number) {
  const u32 tiles = query_tiles_per_head(params);
  const u32 all = static_cast<u32>(params.heads_q) * params.batch;
  const u32 heads = heads_of<kSectionBytes>(params), last = heads_of<kLastSectionBytes>(params);
  const u32 before = (all - last) / heads;  // sections before the last
  const u32 at = number / (heads * tiles);
  const bool is_last = at >= before;
  const u32 first_head = (is_last ? before : at) * heads;
  const Section section = {first_head, is_last ? all - first_head : heads, tiles};
  return section.query_tile(params, number - first_head * tiles);
}
#else
// The query tile with a number. Those of a head are next to each other, so that blocks which run at
// the same time read the same keys. The last tile comes first: under a causal mask it is the
// longest.
__device__ __forceinline__ QueryTile numbered_query_tile(const Params& params, u32 number) {
  const u32 tiles = query_tiles_per_head(params);
  return make_query_tile(params, number / tiles, tiles - 1 - number % tiles);
}
#endif

#if FW_COUNTER
// Numbers that the blocks of a grid take from each other.
struct Counter {
  u64 grid;   // whose it is: its number + 1; 0: nobody's
  u32 taken;  // 0 again once the last number is taken
};
constexpr int kCounters = 64;  // each grid has its own, unless so many others run beside it
__device__ Counter counters[kCounters];

// The query tiles that a block takes: the first by its own number, then whatever is next when it is
// done: so all blocks end at the same time, however long their tiles are.
struct Turn {
  u32 count;  // tiles of all heads
  Counter* counter;
  u32 number;
  bool exists;
  QueryTile work;

  __device__ __forceinline__ explicit Turn(const Params& params) {
    count = count_query_tiles(params);
    counter = nullptr;
    number = static_cast<u32>(block_index());
    find(params);
  }

  // All blocks together take `count` numbers, those behind the last tile included.
  __device__ __forceinline__ void next(const Params& params) {
    const u64 grid = grid_index() + 1;
    if (counter == nullptr) {
      counter = counters + grid % kCounters;
      u64 owner;
      do {
        owner = compare_and_swap(&counter->grid, 0, grid);
      } while (owner != 0 && owner != grid);
    }
    const u32 taken = increment_within(&counter->taken, count - 1);
    if (taken == count - 1) compare_and_swap(&counter->grid, grid, 0);
    number = kPersistentBlocks + taken;
    find(params);
  }

  __device__ __forceinline__ void find(const Params& params) {
    exists = number < count;
    if (exists) work = numbered_query_tile(params, number);
  }
};
#elif FW_PERSISTENT
// The query tiles that a block takes, one in each round.
struct Turn {
  u32 blocks;        // of the grid, and tiles of a round
  u32 first, place;  // the first number of the round, and how far behind it that of the block is
  bool exists;
  QueryTile work;

  __device__ __forceinline__ explicit Turn(const Params& params) {
    blocks = static_cast<u32>(block_count());
    first = 0;
    place = static_cast<u32>(block_index());
    find(params);
  }

  __device__ __forceinline__ void next(const Params& params) {
    first += blocks;
#if FW_CLUSTER
    // Another place: the last tile of a head may be short, and would else be the same block's. The
    // blocks of a cluster stay side by side: they have tiles of one head.
    place += kClusterBlocks;
    if (place >= blocks) place -= blocks;
#elif !FW_LONGEST_FIRST
    // Another place: the last tile of a head may be short, and would else be the same block's.
    place = place + 1 == blocks ? 0 : place + 1;
#endif
    find(params);
  }

  __device__ __forceinline__ void find(const Params& params) {
    const u32 number = first + place;
    exists = number < count_query_tiles(params);
    if (exists) work = numbered_query_tile(params, number);
  }
};
#else
// The query tile of this block, and no other.
struct Turn {
  bool exists;
  QueryTile work;

  __device__ __forceinline__ explicit Turn(const Params& params) {
    exists = true;
    work = numbered_query_tile(params, static_cast<u32>(block_index()));
  }

  __device__ __forceinline__ void next(const Params& params) { exists = false; }
};
#endif
