//~ The walk over the query tiles that see a tile of keys, for the gradients of keys and values.

// A tile of keys of one key head.
struct KeyTile {
  int batch;
  int head;                // of the keys
  int key_begin, key_end;  // keys [key_begin, key_end) exist
};

#if FW_BLOCKS
// Blocks are numbered with the key tiles of a head next to each other, so that blocks which run at
// the same time read the same queries. A key tile never reaches into the next mask block.
__device__ __forceinline__ KeyTile find_key_tile(const Params& params) {
  const int tiles_per_block = (params.block_kv + kKeysPerBlock - 1) / kKeysPerBlock;
  const int key_blocks = (params.seq_kv + params.block_kv - 1) / params.block_kv;
  const int tiles = key_blocks * tiles_per_block;
  const int tile = static_cast<int>(block_index() % tiles);
  const i64 head = block_index() / tiles;
  const i64 block_begin = static_cast<i64>(tile / tiles_per_block) * params.block_kv;
  const i64 block_end = block_begin + params.block_kv;
  KeyTile work;
  work.batch = static_cast<int>(head / params.heads_kv);
  work.head = static_cast<int>(head % params.heads_kv);
  work.key_begin = static_cast<int>(block_begin) + tile % tiles_per_block * kKeysPerBlock;
  work.key_end = block_end < params.seq_kv ? static_cast<int>(block_end) : params.seq_kv;
  return work;
}

// Walks over the query tiles of all heads that share a key tile: for each head through the partial
// mask blocks, then through the full ones. A mask block is cut into tiles of kQueryStep queries,
// the last of which may reach behind its end.
struct QueryTiles {
  int head, head_end;  // query head at hand, and the first that is not of the group
  int list;            // number of the lists of the head at hand
  int next, list_end;  // positions of the list at hand still to come
  bool full;           // which list that is
  int partial;         // number of the partial block at hand; -1 in a full block
  int block_begin;     // first query of the mask block at hand
  int first;           // first query of the tile at hand
  int end;             // queries of the mask block end here
  bool done;

  __device__ __forceinline__ void start(const Params& params, const KeyTile& work) {
    head = work.head * params.group;
    head_end = head + params.group;
    done = false;
    open_head(params, work);
    next_block(params, work);
  }

  __device__ __forceinline__ void advance(const Params& params, const KeyTile& work) {
    first += kQueryStep;
    if (first >= end) next_block(params, work);
  }

  __device__ __forceinline__ void open_head(const Params& params, const KeyTile& work) {
    const int key_blocks = (params.seq_kv + params.block_kv - 1) / params.block_kv;
    list = (work.batch % params.mask_batch * params.mask_heads + head % params.mask_heads) *
               key_blocks +
           work.key_begin / params.block_kv;
    full = false;
    next = load_global(params.partial_query_offsets + list);
    list_end = load_global(params.partial_query_offsets + list + 1);
  }

  __device__ __forceinline__ void next_block(const Params& params, const KeyTile& work) {
    while (true) {
      if (next == list_end) {
        if (!full) {
          full = true;
          next = load_global(params.full_query_offsets + list);
          list_end = load_global(params.full_query_offsets + list + 1);
          continue;
        }
        ++head;
        done = head == head_end;
        if (done) return;
        open_head(params, work);
        continue;
      }
      const int row =
          load_global((full ? params.full_query_rows : params.partial_query_rows) + next);
      partial = full ? -1 : load_global(params.partial_query_places + next);
      ++next;
      if (row < 0 || row >= params.query_blocks) continue;  // padding of the list
      const i64 block_end = static_cast<i64>(row + 1) * params.block_q;
      block_begin = first = row * params.block_q;
      end = block_end < params.seq_q ? static_cast<int>(block_end) : params.seq_q;
      return;
    }
  }
};

// Which queries of a tile see the keys of one warp.
struct WarpQueries {
  __device__ __forceinline__ void start(const Params& params, const KeyTile& work, int warp_row,
                                        int keys) {}

  // Whether the warp has to compute the tile at all.
  __device__ __forceinline__ bool visible(const QueryTiles& tiles) const { return true; }

  // Whether some query of the tile may not see some of its keys.
  __device__ __forceinline__ bool needs_test(const QueryTiles& tiles) const {
    return tiles.partial >= 0 || tiles.first + kQueryStep > tiles.end;
  }
};

// Whether query `row` of the tile at hand sees key `kv` of the key tile.
__device__ __forceinline__ bool seen(const Params& params, const KeyTile& work,
                                     const QueryTiles& tiles, int row, int kv) {
  if (row >= tiles.end) return false;
  if (tiles.partial < 0) return true;
  const int last_key = smaller(kv, work.key_end - 1);  // keys behind the end are never stored
  const int words = (params.block_kv + 31) / 32;
  const i64 bit_row = static_cast<i64>(tiles.partial) * params.block_q + row - tiles.block_begin;
  const int key = last_key % params.block_kv;
  return (load_global(params.partial_bits + bit_row * words + key / 32) >> key % 32 & 1) != 0;
}
#else
// Blocks are numbered with the key tiles of a head next to each other, so that blocks which run at
// the same time read the same queries. The first tile comes first: under a causal mask it is the
// longest.
__device__ __forceinline__ KeyTile find_key_tile(const Params& params) {
  const int tiles = (params.seq_kv + kKeysPerBlock - 1) / kKeysPerBlock;
  const i64 head = block_index() / tiles;
  KeyTile work;
  work.batch = static_cast<int>(head / params.heads_kv);
  work.head = static_cast<int>(head % params.heads_kv);
  work.key_begin = static_cast<int>(block_index() % tiles) * kKeysPerBlock;
  work.key_end = params.seq_kv;
  return work;
}

// Walks over the query tiles of all heads that share a key tile, in ascending order.
struct QueryTiles {
  RowRange rows;
  int head, head_end;  // query head at hand, and the first that is not of the group
  int first;           // first query of the tile at hand
  bool done;

  __device__ __forceinline__ void start(const Params& params, const KeyTile& work) {
    const int last_key = smaller(work.key_begin + kKeysPerBlock, work.key_end) - 1;
    rows = visible_rows(params, work.key_begin, last_key);
    head = work.head * params.group;
    head_end = head + params.group;
    first = rows.begin / kQueryStep * kQueryStep;
    done = rows.begin >= rows.end;
  }

  __device__ __forceinline__ void advance(const Params& params, const KeyTile& work) {
    first += kQueryStep;
    if (first < rows.end) return;
    first = rows.begin / kQueryStep * kQueryStep;
    ++head;
    done = head == head_end;
  }
};

// Which queries of a tile see the keys of one warp.
struct WarpQueries {
  RowRange rows;

  __device__ __forceinline__ void start(const Params& params, const KeyTile& work, int warp_row,
                                        int keys) {
    const int first_key = work.key_begin + warp_row;
    const int last_key = smaller(first_key + keys, work.key_end) - 1;
    rows = visible_rows(params, first_key, last_key);
    if (last_key < first_key) rows.end = rows.begin;  // all of its keys lie behind the end
  }

  // Whether the warp has to compute the tile at all.
  __device__ __forceinline__ bool visible(const QueryTiles& tiles) const {
    return tiles.first < rows.end && tiles.first + kQueryStep > rows.begin;
  }

  // Whether some query of the tile may not see some of its keys.
  __device__ __forceinline__ bool needs_test(const QueryTiles& tiles) const {
    return tiles.first < rows.full_begin || tiles.first + kQueryStep > rows.full_end;
  }
};

// Whether query `row` of the tile at hand sees key `kv` of the key tile.
__device__ __forceinline__ bool seen(const Params& params, const KeyTile& work,
                                     const QueryTiles& tiles, int row, int kv) {
#if FW_MASK
  return row < params.seq_q && keep(params, row, kv);
#else
  return row < params.seq_q;
#endif
}
#endif
