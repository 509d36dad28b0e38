//~ Which query tiles a block of the sm90 family computes.

#if FW_BLOCKS
__device__ __forceinline__ u32 query_tiles_per_head(const Params& params) {
  return static_cast<u32>(params.query_blocks) * ((params.block_q + kTileQ - 1) / kTileQ);
}
#else
__device__ __forceinline__ u32 query_tiles_per_head(const Params& params) {
  return static_cast<u32>(params.seq_q + kTileQ - 1) / kTileQ;
}
#endif

// A query tile by its place among all heads and among those of its head.
__device__ __forceinline__ QueryTile make_query_tile(const Params& params, u32 head, u32 tile) {
  QueryTile work;
  work.batch = static_cast<int>(head / params.heads_q);
  work.head = static_cast<int>(head % params.heads_q);
#if FW_BLOCKS
  // A query tile never reaches into the next mask block.
  const u32 tiles_per_block = (params.block_q + kTileQ - 1) / kTileQ;
  const i64 block_begin = static_cast<i64>(tile / tiles_per_block) * params.block_q;
  const i64 block_end = block_begin + params.block_q;
  work.row_begin = static_cast<int>(block_begin + tile % tiles_per_block * kTileQ);
  work.row_end = block_end < params.seq_q ? static_cast<int>(block_end) : params.seq_q;
#else
  work.row_begin = static_cast<int>(tile) * kTileQ;
  work.row_end = params.seq_q;
#endif
  return work;
}

#if FW_LONGEST_FIRST
// The longest tiles of many heads come first, so that blocks end together. How many heads: as many
// as have their keys and values in L2 side by side. Two tiles of a head stay next to each other:
// their blocks share a path to L2 and read the same keys.
__device__ __forceinline__ QueryTile query_tile(const Params& params, u32 number) {
  constexpr u32 kKeys = kSectionBytes / ((kHeadDim + kHeadDimV) * kElementBytes);
  const u32 all_heads = static_cast<u32>(params.heads_q) * params.batch;
  const u32 quotient = kKeys / (static_cast<u32>(params.seq_kv) + 1);  // of at least one key
  const u32 fitting = quotient > 1 ? quotient : 1;
  const u32 section_heads = fitting < all_heads / params.group ? fitting * params.group : all_heads;
  const u32 tiles = query_tiles_per_head(params);
  const u32 first_head = number / (tiles * section_heads) * section_heads;
  const u32 heads = all_heads - first_head < section_heads ? all_heads - first_head : section_heads;
  const u32 rest = number - first_head * tiles;
  const u32 pair = rest / (2 * heads);
  const u32 place = rest - pair * 2 * heads;
  const u32 together = 2 * pair + 1 < tiles ? 2 : 1;
  return make_query_tile(params, first_head + place / together,
                         tiles - 1 - 2 * pair - place % together);
}
#else
// Those of a head are next to each other, so that blocks which run at the same time read the same
// keys. The last tile comes first: under a causal mask it is the longest.
__device__ __forceinline__ QueryTile query_tile(const Params& params, u32 number) {
  const u32 tiles = query_tiles_per_head(params);
  return make_query_tile(params, number / tiles, tiles - 1 - number % tiles);
}
#endif

#if FW_PERSISTENT
// The query tiles that a block takes, one in each round.
struct Turn {
  u32 first = static_cast<u32>(block_index());  // of the round
#if FW_LONGEST_FIRST
  // In every second round the order of the blocks is reversed: who got a longer tile than others
  // gets a shorter one next.
  bool reversed = false;

  __device__ __forceinline__ u32 number() const {
    return reversed ? first + kPersistentBlocks - 1 - 2 * static_cast<u32>(block_index()) : first;
  }
  __device__ __forceinline__ void next() {
    first += kPersistentBlocks;
    reversed = !reversed;
  }
#else
  __device__ __forceinline__ u32 number() const { return first; }
  __device__ __forceinline__ void next() { first += kPersistentBlocks; }
#endif
};

// Query tiles of all heads.
__device__ __forceinline__ u32 count_query_tiles(const Params& params) {
  return query_tiles_per_head(params) * params.heads_q * params.batch;
}
#endif
