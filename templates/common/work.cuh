//~ Which part of the output a block computes.

// A tile of query rows of one head. Positions count from the first key: row i sits at i +
// q_position.
struct QueryTile {
  int batch;
  int head;
  int row_begin, row_end;  // rows [row_begin, row_end) exist
};

#if FW_BLOCKS
// Blocks are numbered with the query tiles of a head next to each other, so that blocks which run
// at the same time read the same keys. A query tile never reaches into the next mask block.
__device__ __forceinline__ QueryTile find_query_tile(const Params& params) {
  const int tiles_per_block = (params.block_q + kTileQ - 1) / kTileQ;
  const int tiles = params.query_blocks * tiles_per_block;
  const int tile = static_cast<int>(block_index() % tiles);
  const i64 head = block_index() / tiles;
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
// Blocks are numbered with the query tiles of a head next to each other, so that blocks which run
// at the same time read the same keys. The last tile comes first: under a causal mask it is the
// longest.
__device__ __forceinline__ QueryTile find_query_tile(const Params& params) {
  const int tiles = (params.seq_q + kTileQ - 1) / kTileQ;
  const int tile = tiles - 1 - static_cast<int>(block_index() % tiles);
  const i64 head = block_index() / tiles;
  QueryTile work;
  work.batch = static_cast<int>(head / params.heads_q);
  work.head = static_cast<int>(head % params.heads_q);
  work.row_begin = tile * kTileQ;
  work.row_end = params.seq_q;
  return work;
}
#endif
