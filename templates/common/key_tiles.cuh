//~ The walk over the key tiles that a query tile can see.

#if FW_BLOCKS
// Walks over the key tiles of one query tile: through the partial mask blocks, then through the
// full ones. A mask block is cut into tiles of kTileKv keys, the last of which may reach behind its
// end.
struct KeyTiles {
  const int* next;  // columns still to come
  const int* list_end;
  int full_next, full_end;  // positions of the full list, which follows the partial one
  int partial;              // number of the partial block at hand; -1 in a full block
  int block_begin;          // first key of the mask block at hand
  int first;                // first key of the tile at hand
  int end;                  // keys of the mask block end here
  bool done;

  __device__ __forceinline__ void start(const Params& params, const QueryTile& work) {
    const int row =
        (work.batch % params.mask_batch * params.mask_heads + work.head % params.mask_heads) *
            params.query_blocks +
        work.row_begin / params.block_q;
    full_next = load_global(params.full_offsets + row);
    full_end = load_global(params.full_offsets + row + 1);
    next = params.partial_columns + load_global(params.partial_offsets + row);
    list_end = params.partial_columns + load_global(params.partial_offsets + row + 1);
    partial = 0;
    done = false;
    next_block(params);
  }

  __device__ __forceinline__ void advance(const Params& params) {
    first += kTileKv;
    if (first >= end) next_block(params);
  }

  __device__ __forceinline__ void next_block(const Params& params) {
    const int columns = (params.seq_kv + params.block_kv - 1) / params.block_kv;
    while (true) {
      if (next == list_end) {
        if (partial < 0) {
          done = true;
          return;
        }
        partial = -1;
        next = params.full_columns + full_next;
        list_end = params.full_columns + full_end;
        continue;
      }
      if (partial >= 0) partial = static_cast<int>(next - params.partial_columns);
      const int column = load_global(next);
      ++next;
      if (column < 0 || column >= columns) continue;  // padding of the list
      const i64 block_end = static_cast<i64>(column + 1) * params.block_kv;
      block_begin = first = column * params.block_kv;
      end = block_end < params.seq_kv ? static_cast<int>(block_end) : params.seq_kv;
      return;
    }
  }
};

// What the rows of one warp see of a tile.
struct WarpKeys {
  __device__ __forceinline__ void start(const Params& params, const QueryTile& work, int warp_row,
                                        int rows) {}

  // Whether the warp has to compute the tile at all.
  __device__ __forceinline__ bool visible(const KeyTiles& tiles) const { return true; }

  // Whether some key of the tile may be invisible to some of its rows.
  __device__ __forceinline__ bool needs_test(const KeyTiles& tiles) const {
    return tiles.partial >= 0 || tiles.first + kTileKv > tiles.end;
  }
};

// Whether row `row` of the query tile sees key `kv` of the tile at hand.
__device__ __forceinline__ bool sees(const Params& params, const QueryTile& work,
                                     const KeyTiles& tiles, int row, int kv) {
  if (kv >= tiles.end) return false;
  if (tiles.partial < 0) return true;
  const int last_row =
      smaller(row, work.row_end - 1);  // rows behind the end are computed, never stored
  const int words = (params.block_kv + 31) / 32;
  const i64 bit_row = static_cast<i64>(tiles.partial) * params.block_q + last_row % params.block_q;
  const int key = kv - tiles.block_begin;
  return (load_global(params.partial_bits + bit_row * words + key / 32) >> key % 32 & 1) != 0;
}
#else
// Walks over the key tiles of one query tile, from the last visible one to the first: the tiles
// that cross the edge of the mask come first.
struct KeyTiles {
  KeyRange keys;
  int first;  // first key of the tile at hand
  bool done;

  __device__ __forceinline__ void start(const Params& params, const QueryTile& work) {
#if FW_PACK_HEADS
    const int last_row = smaller(work.row_begin + (kTileQ >> params.pack_shift), work.row_end) - 1;
#else
    const int last_row = smaller(work.row_begin + kTileQ, work.row_end) - 1;
#endif
    keys = visible_keys(params, work.row_begin, last_row);
    first = (keys.end - 1) / kTileKv * kTileKv;
    done = keys.begin >= keys.end;
  }

  __device__ __forceinline__ void advance(const Params& params) {
    done = first <= keys.begin;
    first -= kTileKv;
  }
};

// What the rows of one warp see of a tile.
struct WarpKeys {
  KeyRange keys;

  __device__ __forceinline__ void start(const Params& params, const QueryTile& work, int warp_row,
                                        int rows) {
    const int first_row = work.row_begin + warp_row;
    const int last_row = smaller(first_row + rows, work.row_end) - 1;
    keys = visible_keys(params, first_row, last_row);
    if (last_row < first_row) keys.end = keys.begin;  // all of its rows lie behind the end
  }

  // Whether the warp has to compute the tile at all.
  __device__ __forceinline__ bool visible(const KeyTiles& tiles) const {
    return tiles.first < keys.end && tiles.first + kTileKv > keys.begin;
  }

  // Whether some key of the tile may be invisible to some of its rows.
  __device__ __forceinline__ bool needs_test(const KeyTiles& tiles) const {
    return tiles.first < keys.full_begin || tiles.first + kTileKv > keys.full_end;
  }
};

// Whether row `row` of the query tile sees key `kv` of the tile at hand.
__device__ __forceinline__ bool sees(const Params& params, const QueryTile& work,
                                     const KeyTiles& tiles, int row, int kv) {
#if FW_MASK
  return kv < params.seq_kv && keep(params, row, kv);
#else
  return kv < params.seq_kv;
#endif
}
#endif
