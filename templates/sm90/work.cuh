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
// Heads whose keys and values stay in L2 side by side, query tiles of all of which are ordered by
// length, the longest first. Two tiles of a head stay next to each other: their blocks share a path
// to L2 and read the same keys.
struct Section {
  u32 first_head, heads;
  u32 tiles;  // of a head

  __device__ __forceinline__ u32 count() const { return heads * tiles; }

  __device__ __forceinline__ QueryTile query_tile(const Params& params, u32 number) const {
    const u32 pair = number / (2 * heads);
    const u32 place = number - pair * 2 * heads;
    const u32 together = 2 * pair + 1 < tiles ? 2 : 1;
    return make_query_tile(params, first_head + place / together,
                           tiles - 1 - 2 * pair - place % together);
  }
};

// How many heads a section has, the last one perhaps excepted.
__device__ __forceinline__ u32 section_heads(const Params& params) {
  constexpr u32 kKeys = kSectionBytes / ((kHeadDim + kHeadDimV) * kElementBytes);
  const u32 fitting = kKeys / (static_cast<u32>(params.seq_kv) + 1);  // of at least one key
  const u32 all = static_cast<u32>(params.heads_q) * params.batch;
  const u32 heads = (fitting > 1 ? fitting : 1) * params.group;
  return heads < all ? heads : all;
}

__device__ __forceinline__ Section make_section(const Params& params, u32 first_head, u32 heads) {
  const u32 left = static_cast<u32>(params.heads_q) * params.batch - first_head;
  return {first_head, heads < left ? heads : left, query_tiles_per_head(params)};
}
#endif

#if FW_PERSISTENT
#if FW_LONGEST_FIRST
// The query tiles that a block takes: section by section, and there one in each round. In every
// second round the order of the blocks is reversed: who got a longer tile than others gets a
// shorter one next. In each section another block is the first.
struct Turn {
  static constexpr u32 kRotation = 38;  // even, for the pairs
  u32 heads;                            // of a section
  u32 place;                            // of this block
  u32 round;                            // first number in the section
  bool reversed;
  bool exists;
  Section section;
  QueryTile work;

  __device__ __forceinline__ explicit Turn(const Params& params) {
    heads = section_heads(params);
    place = static_cast<u32>(block_index());
    round = 0;
    reversed = false;
    section = make_section(params, 0, heads);
    find(params);
  }

  __device__ __forceinline__ void next(const Params& params) {
    round += kPersistentBlocks;
    reversed = !reversed;
    find(params);
  }

  // A round may end before it comes to this block.
  __device__ __forceinline__ void find(const Params& params) {
    while (true) {
      const u32 number = round + (reversed ? kPersistentBlocks - 1 - place : place);
      exists = number < section.count();
      if (exists) {
        work = section.query_tile(params, number);
        return;
      }
      round += kPersistentBlocks;
      reversed = !reversed;
      if (round < section.count()) continue;
      const u32 first_head = section.first_head + section.heads;
      if (first_head >= static_cast<u32>(params.heads_q) * params.batch) return;
      section = make_section(params, first_head, heads);
      place = (place + kRotation) % kPersistentBlocks;
      round = 0;
      reversed = false;
    }
  }
};
#else
// The query tiles that a block takes. Those of a head are next to each other, so that blocks which
// run at the same time read the same keys.
struct Turn {
  u32 number, tiles;
  bool exists;
  QueryTile work;

  __device__ __forceinline__ explicit Turn(const Params& params) {
    number = static_cast<u32>(block_index());
    tiles = query_tiles_per_head(params);
    find(params);
  }

  __device__ __forceinline__ void next(const Params& params) {
    number += kPersistentBlocks;
    find(params);
  }

  __device__ __forceinline__ void find(const Params& params) {
    exists = number < tiles * params.heads_q * params.batch;
    if (exists) work = make_query_tile(params, number / tiles, tiles - 1 - number % tiles);
  }
};
#endif
#elif FW_LONGEST_FIRST
// The query tile of this block.
__device__ __forceinline__ QueryTile find_work(const Params& params) {
  const u32 number = static_cast<u32>(block_index());
  const u32 heads = section_heads(params);
  const u32 first_head = number / (heads * query_tiles_per_head(params)) * heads;
  const Section section = make_section(params, first_head, heads);
  return section.query_tile(params, number - first_head * section.tiles);
}
#else
// The query tile of this block. Those of a head are next to each other, so that blocks which run at
// the same time read the same keys. The last tile comes first: under a causal mask it is the
// longest.
__device__ __forceinline__ QueryTile find_work(const Params& params) {
  const u32 number = static_cast<u32>(block_index());
  const u32 tiles = query_tiles_per_head(params);
  return make_query_tile(params, number / tiles, tiles - 1 - number % tiles);
}
#endif
