//~ The loops of a consumer warpgroup: over query tiles, and over the keys of each.

// One query tile, of which this consumer computes 64 rows. It walks over the keys in tiles and
// keeps, for each row, the largest score, the sum of the weights relative to it, and the weighted
// sum of the values. The values of a tile are multiplied while the next scores become weights.
// Returns false if no query tile is left.
__device__ __forceinline__ bool consume_tile(Consumer& consumer, const Params& params, u32 memory) {
#if FW_PERSISTENT || FW_BLOCKS
  const int stage = consumer.walk.queries.stage;
#endif
  float out[kRowTiles][kDimTiles][4] = {};
  RowState rows[kRowTiles][2] = {{{-infinity(), 0.0f}, {-infinity(), 0.0f}}};
  const QueryTile work = consumer.wait_for_work(memory);
#if FW_PERSISTENT
  if (work.batch == kNoTile) return false;
#endif
#if FW_BLOCKS
  consumer.tiles.done = !told_keys(memory, stage);
#endif
  consumer.begin(params, work);
#if !FW_BLOCKS
  consumer.pass_tiles(params, false);
#endif
  if (consumer.has_tile()) {
    float scores[kRowTiles][kKeyTiles][4], rescale[kRowTiles][2];
    u32 weights[kRowTiles][kKeySteps][4];
#if FW_HALF_TILES
    if (consumer.sees_half()) {
      auto& half = reinterpret_cast<float(&)[kRowTiles][kKeyTiles / 2][4]>(scores);
      consumer.first_half_scores(half);
      consumer.soften(half, rows, rescale, params, work);
#pragma unroll
      for (int n = kKeyTiles / 2; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[0][n][i] = 0.0f;
      }
    } else {
      consumer.first_scores(scores);
      consumer.soften(scores, rows, rescale, params, work);
    }
#else
    consumer.first_scores(scores);
    consumer.soften(scores, rows, rescale, params, work);
#endif
    consumer.advance(weights, scores, params);
    while (consumer.has_tile()) {
      consumer.next_scores(scores, out, weights);
      consumer.soften(scores, rows, rescale, params, work);
      consumer.finish_output(out);
      rescale_output(out, rescale);
      consumer.advance(weights, scores, params);
    }
    consumer.last_values(out, weights);
    consumer.finish_output(out);
  }
#if !FW_BLOCKS
  consumer.pass_tiles(params, true);
#endif
  write_output(out, rows, consumer.scale_log2, params, work, consumer.queries, consumer.row,
               consumer.group);
#if FW_PERSISTENT
  consumer.leave_output(stage * kConsumers + consumer.group);
#endif
  return true;
}

// A consumer warpgroup.
__device__ __forceinline__ void consume(const Params& params, u32 memory, int group) {
  Consumer consumer;
  consumer.start(params, memory, group);
#if FW_PERSISTENT
  while (consume_tile(consumer, params, memory)) {
  }
#else
  consume_tile(consumer, params, memory);
#endif
  wait_for_output();
}
