//~ Which query tiles a block of the sm90 family computes.

#if FW_BLOCKS
// Those of a head are next to each other, so that blocks which run at the same time read the same
// keys. A query tile never reaches into the next mask block.
__device__ __forceinline__ QueryTile query_tile(const Params& params, i64 number) {
  const int tiles_per_block = (params.block_q + kTileQ - 1) / kTileQ;
  const int tiles = params.query_blocks * tiles_per_block;
  const int tile = static_cast<int>(number % tiles);
  const i64 head = number / tiles;
  const i64 block_begin = static_cast<i64>(tile / tiles_per_block) * params.block_q;
  const i64 block_end = block_begin + params.block_q;
  QueryTile work;
  work.batch = static_cast<int>(head / params.heads_q);
  work.head = static_cast<int>(head % params.heads_q);
  work.row_begin = static_cast<int>(block_begin) + tile % tiles_per_block * kTileQ;
  work.row_end = block_end < params.seq_q ? static_cast<int>(block_end) : params.seq_q;
  return work;
}
#else
// Those of a head are next to each other, so that blocks which run at the same time read the same
// keys. The last tile comes first: under a causal mask it is the longest.
__device__ __forceinline__ QueryTile query_tile(const Params& params, i64 number) {
  const int tiles = (params.seq_q + kTileQ - 1) / kTileQ;
  const int tile = tiles - 1 - static_cast<int>(number % tiles);
  const i64 head = number / tiles;
  QueryTile work;
  work.batch = static_cast<int>(head / params.heads_q);
  work.head = static_cast<int>(head % params.heads_q);
  work.row_begin = tile * kTileQ;
  work.row_end = params.seq_q;
  return work;
}
#endif

#if FW_PERSISTENT
// Query tiles of all heads.
__device__ __forceinline__ i64 count_query_tiles(const Params& params) {
#if FW_BLOCKS
  const i64 tiles = params.query_blocks * ((params.block_q + kTileQ - 1) / kTileQ);
#else
  const i64 tiles = (params.seq_q + kTileQ - 1) / kTileQ;
#endif
  return tiles * params.heads_q * params.batch;
}
#endif
