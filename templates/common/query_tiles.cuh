//~ The walk over the queries that a tile of keys meets: those of all query heads of its group.

// A tile of keys of one key head.
struct KeyTile {
  int batch;
  int head;
  int first, end;  // keys [first, end) exist
#if FW_BLOCKS
  int block_begin;  // first key of its mask block
#endif
};

#if FW_BLOCKS
// Blocks are numbered with the key tiles of a head next to each other, so that blocks which run at
// the same time read the same queries. A key tile never reaches into the next mask block.
__device__ __forceinline__ KeyTile find_key_tile(const Params& params) {
  const int tiles_per_block = (params.block_kv + kKeyRows - 1) / kKeyRows;
  const int tiles = params.key_blocks * tiles_per_block;
  const int tile = static_cast<int>(block_index() % tiles);
  const i64 head = block_index() / tiles;
  const i64 block_begin = static_cast<i64>(tile / tiles_per_block) * params.block_kv;
  const i64 block_end = block_begin + params.block_kv;
  KeyTile work;
  work.batch = static_cast<int>(head / params.heads_kv);
  work.head = static_cast<int>(head % params.heads_kv);
  work.block_begin = static_cast<int>(block_begin);
  work.first = work.block_begin + tile % tiles_per_block * kKeyRows;
  work.end = block_end < params.seq_kv ? static_cast<int>(block_end) : params.seq_kv;
  return work;
}

// Walks over the query tiles of one key tile, query head by query head: through the partial mask
// blocks, then through the full ones. A mask block is cut into tiles of kStepQ queries.
struct QueryTiles {
  int head;          // query head at hand
  int next, last;    // places in the list at hand
  bool in_partial;   // of the two lists
  int partial;       // where the partial block at hand stands; -1 in a full block
  int first;         // first query of the tile at hand
  int end;           // queries of the mask block end here
  bool done;

  __device__ __forceinline__ void start(const Params& params, const KeyTile& work) {
    head = work.head * params.group;
    done = false;
    start_head(params, work);
    next_block(params, work);
  }

  __device__ __forceinline__ void advance(const Params& params, const KeyTile& work) {
    first += kStepQ;
    if (first >= end) next_block(params, work);
  }

  __device__ __forceinline__ int list_row(const Params& params, const KeyTile& work) const {
    return (work.batch % params.mask_batch * params.mask_heads + head % params.mask_heads) *
               params.key_blocks +
           work.block_begin / params.block_kv;
  }

  __device__ __forceinline__ void start_head(const Params& params, const KeyTile& work) {
    const int row = list_row(params, work);
    in_partial = true;
    next = load_global(params.partial_query_offsets + row);
    last = load_global(params.partial_query_offsets + row + 1);
  }

  __device__ __forceinline__ void next_block(const Params& params, const KeyTile& work) {
    while (true) {
      if (next == last) {
        if (in_partial) {
          const int row = list_row(params, work);
          in_partial = false;
          next = load_global(params.full_query_offsets + row);
          last = load_global(params.full_query_offsets + row + 1);
        } else {
          ++head;
          done = head == (work.head + 1) * params.group;
          if (done) return;
          start_head(params, work);
        }
        continue;
      }
      const int* rows = in_partial ? params.partial_query_rows : params.full_query_rows;
      const int block = load_global(rows + next);
      partial = in_partial ? load_global(params.partial_query_places + next) : -1;
      ++next;
      const i64 block_end = static_cast<i64>(block + 1) * params.block_q;
      first = block * params.block_q;
      end = block_end < params.seq_q ? static_cast<int>(block_end) : params.seq_q;
      return;
    }
  }

  // Where the queries of the tile end.
  __device__ __forceinline__ int query_end(const Params& params) const { return end; }

  // Whether some query of the tile may not see some key of its own.
  __device__ __forceinline__ bool needs_test(const Params& params, const KeyTile& work) const {
    return partial >= 0 || first + kStepQ > end || work.first + kKeyRows > work.end;
  }
};
#else
// Blocks are numbered with the key tiles of a head next to each other, so that blocks which run at
// the same time read the same queries. The first tile comes first: under a causal mask it meets the
// most.
__device__ __forceinline__ KeyTile find_key_tile(const Params& params) {
  const int tiles = (params.seq_kv + kKeyRows - 1) / kKeyRows;
  const i64 head = block_index() / tiles;
  KeyTile work;
  work.batch = static_cast<int>(head / params.heads_kv);
  work.head = static_cast<int>(head % params.heads_kv);
  work.first = static_cast<int>(block_index() % tiles) * kKeyRows;
  work.end = params.seq_kv;
  return work;
}

// Walks over the query tiles of one key tile, query head by query head.
struct QueryTiles {
  RowRange queries;
  int head;   // query head at hand
  int first;  // first query of the tile at hand
  bool done;

  __device__ __forceinline__ void start(const Params& params, const KeyTile& work) {
    const int last_key = smaller(work.first + kKeyRows, work.end) - 1;
    queries = visible_rows(params, work.first, last_key);
    head = work.head * params.group;
    first = queries.begin / kStepQ * kStepQ;
    done = queries.begin >= queries.end;
  }

  __device__ __forceinline__ void advance(const Params& params, const KeyTile& work) {
    first += kStepQ;
    if (first < queries.end) return;
    first = queries.begin / kStepQ * kStepQ;
    ++head;
    done = head == (work.head + 1) * params.group;
  }

  // Where the queries of the tile end.
  __device__ __forceinline__ int query_end(const Params& params) const { return params.seq_q; }

  // Whether some query of the tile may not see some key of its own.
  __device__ __forceinline__ bool needs_test(const Params& params, const KeyTile& work) const {
    return first < queries.full_begin || first + kStepQ > queries.full_end ||
           work.first + kKeyRows > work.end;
  }
};
#endif
