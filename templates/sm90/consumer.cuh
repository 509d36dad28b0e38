//~ A consumer on its way: the steps that both loops over tiles are made of.

// Where a consumer is on its walk over the keys.
struct Consumer {
  int group;                  // which of the consumers
  int row;                    // the first of its rows in the query tile
  u32 queries, keys, values;  // tiles in shared memory
  Barriers barriers;
#if FW_PERSISTENT
  u32 output_sent;  // barrier of the place that the last output leaves from; 0 before there is one
#endif
  WarpKeys own_keys;
  KeyTiles tiles;
#if FW_BLOCKS
  bool last;  // tile of keys
#endif
#if FW_Q_IN_REGISTERS
  // The queries as left operands.
  u32 operands[kDimSteps][4];
#endif
  Walk walk;
  RingPlace<kStages> behind;  // the tile whose weights wait for their values
  float scale_log2;
  int first_row;  // as hide_scores() counts
#if FW_ALIBI
  float slope;
#endif
#if FW_DROPOUT
  u64 dropout_key;
  u32 dropout_head;
#endif

  // Before the first query tile.
  __device__ __forceinline__ void start(const Params& params, u32 memory, int own_group) {
    group = own_group;
    queries = memory;
    keys = memory + kKeysOffset;
    values = memory + kValuesOffset;
    barriers = find_barriers(memory);
    walk = {};
#if FW_PERSISTENT
    output_sent = 0;
#endif
#if FW_SOFTCAP
    scale_log2 = params.softcap_log2;
#elif FW_NEGATIVE_SCALE
    scale_log2 = -params.scale_log2;  // and negated scores
#else
    scale_log2 = params.scale_log2;
#endif
#if FW_DROPOUT
    dropout_key = find_dropout_key(params);
#endif
#if FW_PING_PONG
    if (group == kConsumers - 1) pass_turn(group);  // the first turn
#endif
  }

  // Until the queries of the next tile are there. Returns which tile it is.
  __device__ __forceinline__ QueryTile wait_for_work(u32 memory) {
    const int number = queries_number(walk.queries, group);
    queries = memory + number * kOwnBytes;
#if FW_PERSISTENT
    // Or these queries would never come.
    if (output_sent == barriers.queries_empty + number * 8) clear_output();
#endif
    wait_barrier(barriers.queries_full + number * 8, walk.queries.parity);
    const QueryTile work = told_work(memory, walk.queries.stage);
    row = row_of(walk.queries, group);
    walk.queries.advance();
    return work;
  }

  // Before the keys of a query tile.
  __device__ __forceinline__ void begin(const Params& params, const QueryTile& work) {
#if FW_PACK_HEADS
    row >>= params.pack_shift;  // the first of its queries
    own_keys.start(params, work, row, rows_of_head(params));
    first_row = work.row_begin + row;
#else
    own_keys.start(params, work, row, 64);
    first_row = work.row_begin + row + warp_index() % 4 * 16;
#endif
#if FW_Q_IN_REGISTERS
    load_operands(operands, queries);
#endif
#if !FW_BLOCKS
    tiles.start(params, work);
#endif
#if FW_ALIBI
    slope = find_slope(params, work, scale_log2);
#endif
#if FW_DROPOUT
    dropout_head = static_cast<u32>(work.batch) * params.heads_q + work.head;
#endif
  }

  // Whether some of its rows see the tile at hand.
  __device__ __forceinline__ bool has_tile() const {
    return !tiles.done && own_keys.visible(tiles);
  }

#if !FW_BLOCKS
  // Passes on tiles that no row of this warpgroup sees, up to the first that one does or, with
  // `to_the_end`, all that are left. One thread waits for them and lets them go; the others must
  // not wait at a later tile before it has, since a phase tells its parity only.
  __device__ __forceinline__ void pass_tiles(const Params& params, bool to_the_end) {
    if (tiles.done || (!to_the_end && own_keys.visible(tiles))) return;
    for (; !tiles.done && (to_the_end || !own_keys.visible(tiles)); tiles.advance(params)) {
#if FW_PING_PONG
      // First the turn: with one stage, the values of this tile come once another consumer has
      // multiplied the last.
      take_turn(group);
      pass_turn(group);
#endif
      if (thread_index() % 128 == 0) {
        wait_barrier(barriers.keys_full + walk.at.stage * 8, walk.at.parity);
        arrive_empty(barriers.keys_empty + walk.at.stage * 8);
        wait_barrier(barriers.values_full + walk.at.stage * 8, walk.at.parity);
        arrive_empty(barriers.values_empty + walk.at.stage * 8);
      }
      walk.at.advance();
    }
    synchronize_named(2 + group, 128);
  }
#endif

  // Until the keys of the tile at hand are there.
  __device__ __forceinline__ void wait_for_keys() {
    wait_barrier(barriers.keys_full + walk.at.stage * 8, walk.at.parity);
#if FW_BLOCKS
    const ToldTile told = told_tile(keys - kKeysOffset, walk.at.stage);
    tiles.first = told.first;
    tiles.end = told.end;
    tiles.block_begin = told.block_begin;
    tiles.partial = told.partial;
    last = told.last;
#endif
  }

#if FW_BLOCKS
  // Each warp for itself, as each has read what the stage holds.
  __device__ __forceinline__ void release_keys() const {
    synchronize_warp();
    if (lane_index() == 0) arrive(barriers.keys_empty + walk.at.stage * 8);
  }
#else
  __device__ __forceinline__ void release_keys() const {
    release_stage(barriers.keys_empty + walk.at.stage * 8);
  }
#endif

  // The scores of the first tile.
  __device__ __forceinline__ void first_scores(float (&scores)[kRowTiles][kKeyTiles][4]) {
    wait_for_keys();
#if FW_PING_PONG
    take_turn(group);
#endif
    fence_products();
#if FW_Q_IN_REGISTERS
    start_scores(scores, operands, keys + walk.at.stage * kKeysStride);
#else
    start_scores(scores, queries, keys + walk.at.stage * kKeysStride);
#endif
#if FW_PING_PONG
    pass_turn(group);
#endif
#if FW_PERSISTENT
    clear_output();
#endif
    wait_products<0>();
    hold_sums(scores);
#if FW_Q_IN_REGISTERS
    hold_operands(operands);
#endif
    release_keys();
  }

#if FW_HALF_TILES
  // Whether all keys of the first tile that some of its rows see are in the first half.
  __device__ __forceinline__ bool sees_half() const {
    return own_keys.keys.end - tiles.first <= kTileKv / 2;
  }

  // The scores of the first half of the first tile; the others are as good as hidden.
  __device__ __forceinline__ void first_half_scores(float (&scores)[kRowTiles][kKeyTiles / 2][4]) {
    wait_for_keys();
#if FW_PING_PONG
    take_turn(group);
#endif
    fence_products();
    start_half_scores(scores, queries, keys + walk.at.stage * kKeysStride);
#if FW_PING_PONG
    pass_turn(group);
#endif
#if FW_PERSISTENT
    clear_output();
#endif
    wait_products<0>();
    hold_sums(scores);
    release_keys();
  }
#endif

  // The scores of the tile at hand, while the values of the one behind are on their way into `out`.
  __device__ __forceinline__ void next_scores(float (&scores)[kRowTiles][kKeyTiles][4],
                                              float (&out)[kRowTiles][kDimTiles][4],
                                              const u32 (&weights)[kRowTiles][kKeySteps][4]) {
    wait_barrier(barriers.values_full + behind.stage * 8, behind.parity);
    wait_for_keys();
#if FW_PING_PONG
    take_turn(group);
#endif
    fence_products();
#if FW_Q_IN_REGISTERS
    start_scores(scores, operands, keys + walk.at.stage * kKeysStride);
#else
    start_scores(scores, queries, keys + walk.at.stage * kKeysStride);
#endif
    start_output(out, weights, values + behind.stage * kValuesStride);
#if FW_PING_PONG
    pass_turn(group);
#endif
#if FW_PERSISTENT
    clear_output();
#endif
    wait_products<1>();
    hold_sums(scores);
#if FW_Q_IN_REGISTERS
    hold_operands(operands);
#endif
    release_keys();
  }

  // Turns scores into weights. Returns in `rescale` the factor of earlier outputs.
  template <int kTiles>
  __device__ __forceinline__ void soften(float (&scores)[kRowTiles][kTiles][4],
                                         RowState (&rows)[kRowTiles][2],
                                         float (&rescale)[kRowTiles][2], const Params& params,
                                         const QueryTile& work) const {
#if FW_NEGATIVE_SCALE
    negate(scores);
#endif
#if FW_ALIBI
    modify_scores(scores, params, tiles, first_row, slope);
#elif FW_SOFTCAP
    modify_scores(scores, params);
#endif
    if (own_keys.needs_test(tiles))
      hide_scores(scores, params, work, tiles, first_row, -infinity());
    online_softmax(scores, rows, rescale, scale_log2);
  }

  // Rounds the weights for their values, and goes on to the next tile.
  __device__ __forceinline__ void advance(u32 (&weights)[kRowTiles][kKeySteps][4],
                                          const float (&scores)[kRowTiles][kKeyTiles][4],
                                          const Params& params) {
    pack_weights(weights, scores);
#if FW_DROPOUT
    drop_weights(weights, dropout_key, dropout_head, params.drop_threshold, first_row, tiles.first);
#endif
    behind = walk.at;
    walk.at.advance();
#if FW_BLOCKS
    tiles.done = last;
#else
    tiles.advance(params);
#endif
  }

#if FW_PERSISTENT
  // An output is on its way; the place it leaves from is that of queries to come.
  __device__ __forceinline__ void leave_output(int number) {
    clear_output();  // of one before it, where a tile without visible keys followed at once
    output_sent = barriers.queries_empty + number * 8;
  }

  // Lets queries come to where the last output was, once that has left. Each warp for itself.
  __device__ __forceinline__ void clear_output() {
    if (lane_index() == 0 && output_sent != 0) {
      if (thread_index() % 128 == 0) wait_stores_read<0>();
      arrive(output_sent);
    }
    output_sent = 0;
  }
#endif

  // Starts to multiply the values behind, when no scores follow.
  __device__ __forceinline__ void last_values(float (&out)[kRowTiles][kDimTiles][4],
                                              const u32 (&weights)[kRowTiles][kKeySteps][4]) const {
    wait_barrier(barriers.values_full + behind.stage * 8, behind.parity);
    fence_products();
    start_output(out, weights, values + behind.stage * kValuesStride);
  }

  // The values behind are in `out`.
  __device__ __forceinline__ void finish_output(float (&out)[kRowTiles][kDimTiles][4]) const {
    wait_products<0>();
    hold_sums(out);
    release_stage(barriers.values_empty + behind.stage * 8);
  }
};
