//~ What the producer tells of the tile of keys in a stage.

#if FW_BLOCKS
// The producer walks through the lists of blocks and tells the consumers what each stage holds:
// they have no registers to spare for a walk of their own.
struct ToldTile {
  int first, end, block_begin, partial;  // as in KeyTiles
  bool last;                             // of the query tile
};

// Before the keys are announced.
__device__ __forceinline__ void tell_tile(u32 memory, int stage, const ToldTile& tile) {
  const u32 place = memory + kTilesOffset + stage * 32;
  store_shared_u32(place, tile.first);
  store_shared_u32(place + 4, tile.end);
  store_shared_u32(place + 8, tile.block_begin);
  store_shared_u32(place + 12, tile.partial);
  store_shared_u16(place + 16, tile.last ? 1 : 0);
}

// Once the keys are full. The lane that reads is the one that gives the stage back.
__device__ __forceinline__ ToldTile told_tile(u32 memory, int stage) {
  const u32 place = memory + kTilesOffset + stage * 32;
  Bytes16 words = {};
  u32 last = 0;
  if (lane_index() == 0) {
    words = load_shared_16(place);
    last = load_shared_u16(place + 16);
  }
  return {static_cast<int>(shuffle(words.word[0], 0)), static_cast<int>(shuffle(words.word[1], 0)),
          static_cast<int>(shuffle(words.word[2], 0)), static_cast<int>(shuffle(words.word[3], 0)),
          shuffle(last, 0) != 0};
}
#endif
