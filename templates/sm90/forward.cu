//~ Forward attention for Hopper: TMA, wgmma, a producer and consumers.
#include "options.h"
#include "common/types.cuh"
#include "ptx/tma.cuh"
#include "constants.h"
#include "ptx/index.cuh"
#include "ptx/math.cuh"
#include "ptx/memory.cuh"
#include "ptx/barrier.cuh"
#include "ptx/warpgroup.cuh"
#include "products.h"
#include "mask.h"
#include "score.h"
#include "common/work.cuh"
#include "sm90/work.cuh"
#include "common/key_tiles.cuh"
#include "common/dropout.cuh"
#include "common/weights.cuh"
#include "common/softmax.cuh"
#include "common/modify_scores.cuh"
#include "common/dropout_tile.cuh"
#include "sm90/pipeline.cuh"
#include "sm90/tile_copy.cuh"
#include "sm90/produce.cuh"
#include "sm90/products.cuh"
#include "sm90/hide_scores.cuh"
#include "sm90/write.cuh"

// Brings what the query tiles of this block need: one thread by TMA, or all of the warpgroup.
template <bool kByTma>
__device__ __forceinline__ void produce_tiles(const Params& params, u32 memory) {
  const Barriers barriers = find_barriers(memory);
  Walk walk = {};
#if FW_PERSISTENT
  const i64 tiles = count_query_tiles(params);
#pragma unroll 1
  for (i64 number = block_index(); number < tiles; number += kPersistentBlocks) {
    const QueryTile work = query_tile(params, number);
    if constexpr (kByTma) {
      load_tiles(params, work, memory, barriers, walk);
    } else {
      copy_tiles(params, work, memory, barriers, walk);
    }
    walk.round ^= 1;
  }
#else
  const QueryTile work = query_tile(params, block_index());
  if constexpr (kByTma) {
    load_tiles(params, work, memory, barriers, walk);
  } else {
    copy_tiles(params, work, memory, barriers, walk);
  }
#endif
}

// The producer warpgroup. It gives most of its registers to the consumers.
__device__ __forceinline__ void produce(const Params& params, u32 memory) {
  if (params.aligned) {
    if (warp_index() % 4 == 0 && elect_lane()) produce_tiles<true>(params, memory);
  } else {
    produce_tiles<false>(params, memory);
  }
}

#if FW_DROPOUT
// Makes up for dropped weights.
__device__ __forceinline__ float numerator(const Params& params) { return params.keep_scale; }
#else
__device__ __forceinline__ float numerator(const Params& params) { return 1.0f; }
#endif

// Where a consumer is on its walk over the keys.
struct Consumer {
  int group;                  // which of the consumers
  u32 queries, keys, values;  // tiles in shared memory
  Barriers barriers;
  WarpKeys own_keys;
  KeyTiles tiles;
  Walk walk;
  RingPlace behind;  // the tile whose weights wait for their values
  float scale_log2;
  int first_row;  // of the warp
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
    queries = memory + group * kOwnBytes;
    keys = memory + kKeysOffset;
    values = memory + kValuesOffset;
    barriers = find_barriers(memory);
    walk = {};
#if FW_SOFTCAP
    scale_log2 = params.softcap_log2;
#else
    scale_log2 = magnitude(params.scale_log2);
#endif
#if FW_DROPOUT
    dropout_key = find_dropout_key(params);
#endif
#if FW_PING_PONG
    if (group == kConsumers - 1) pass_turn(group);  // the first turn
#endif
  }

  // Before the keys of a query tile.
  __device__ __forceinline__ void begin(const Params& params, const QueryTile& work) {
    own_keys.start(params, work, group * 64, 64);
    tiles.start(params, work);
    first_row = work.row_begin + group * 64 + warp_index() % 4 * 16;
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

  // Passes on tiles that no row of this warpgroup sees, up to the first that one does or, with
  // `to_the_end`, all that are left. One thread waits for them and lets them go; the others must
  // not wait at a later tile before it has, since a phase tells its parity only.
  __device__ __forceinline__ void pass_tiles(const Params& params, bool to_the_end) {
    if (tiles.done || (!to_the_end && own_keys.visible(tiles))) return;
    for (; !tiles.done && (to_the_end || !own_keys.visible(tiles)); tiles.advance(params)) {
      if (thread_index() % 128 == 0) {
        wait_barrier(barriers.keys_full + walk.at.stage * 8, walk.at.parity);
        arrive(barriers.keys_empty + walk.at.stage * 8);
        wait_barrier(barriers.values_full + walk.at.stage * 8, walk.at.parity);
        arrive(barriers.values_empty + walk.at.stage * 8);
      }
#if FW_PING_PONG
      take_turn(group);
      pass_turn(group);
#endif
      walk.at.advance();
    }
    synchronize_named(2 + group, 128);
  }

  // The scores of the first tile.
  __device__ __forceinline__ void first_scores(float (&scores)[kRowTiles][kKeyTiles][4]) {
    wait_barrier(barriers.keys_full + walk.at.stage * 8, walk.at.parity);
#if FW_PING_PONG
    take_turn(group);
#endif
    fence_products();
    start_scores(scores, queries, keys + walk.at.stage * kKeysStride);
#if FW_PING_PONG
    pass_turn(group);
#endif
    wait_products<0>();
    hold_sums(scores);
    release(barriers.keys_empty + walk.at.stage * 8);
  }

  // The scores of the tile at hand, while the values of the one behind are on their way into `out`.
  __device__ __forceinline__ void next_scores(float (&scores)[kRowTiles][kKeyTiles][4],
                                              float (&out)[kRowTiles][kDimTiles][4],
                                              const u32 (&weights)[kRowTiles][kKeySteps][4]) {
    wait_barrier(barriers.values_full + behind.stage * 8, behind.parity);
    wait_barrier(barriers.keys_full + walk.at.stage * 8, walk.at.parity);
#if FW_PING_PONG
    take_turn(group);
#endif
    fence_products();
    start_scores(scores, queries, keys + walk.at.stage * kKeysStride);
    start_output(out, weights, values + behind.stage * kValuesStride);
#if FW_PING_PONG
    pass_turn(group);
#endif
    wait_products<1>();
    hold_sums(scores);
    release(barriers.keys_empty + walk.at.stage * 8);
  }

  // Turns scores into weights. Returns in `rescale` the factor of earlier outputs.
  __device__ __forceinline__ void soften(float (&scores)[kRowTiles][kKeyTiles][4],
                                         RowState (&rows)[kRowTiles][2],
                                         float (&rescale)[kRowTiles][2], const Params& params,
                                         const QueryTile& work) const {
#if !FW_SOFTCAP
    if (params.scale_log2 < 0.0f) negate(scores);
#endif
#if FW_ALIBI
    modify_scores(scores, params, tiles, first_row, slope);
#elif FW_SOFTCAP
    modify_scores(scores, params);
#endif
    if (own_keys.needs_test(tiles)) hide_scores(scores, params, work, tiles, first_row);
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
    tiles.advance(params);
  }

  // The values behind are in `out`.
  __device__ __forceinline__ void finish_output(float (&out)[kRowTiles][kDimTiles][4]) const {
    wait_products<0>();
    hold_sums(out);
    release(barriers.values_empty + behind.stage * 8);
  }
};

// 64 rows of the output of one head. A consumer walks over the keys in tiles and keeps, for each
// row, the largest score, the sum of the weights relative to it, and the weighted sum of the
// values. The values of a tile are multiplied while the next scores become weights.
__device__ __forceinline__ void consume_tile(Consumer& consumer, const Params& params,
                                             const QueryTile& work) {
  float out[kRowTiles][kDimTiles][4] = {};
  RowState rows[kRowTiles][2] = {{{-infinity(), 0.0f}, {-infinity(), 0.0f}}};
  consumer.begin(params, work);
#if FW_PERSISTENT
  wait_barrier(consumer.barriers.queries_full, consumer.walk.round);
#else
  wait_barrier(consumer.barriers.queries_full, 0);
#endif
  consumer.pass_tiles(params, false);
  if (consumer.has_tile()) {
    float scores[kRowTiles][kKeyTiles][4], rescale[kRowTiles][2];
    u32 weights[kRowTiles][kKeySteps][4];
    consumer.first_scores(scores);
    consumer.soften(scores, rows, rescale, params, work);
    consumer.advance(weights, scores, params);
    while (consumer.has_tile()) {
      consumer.next_scores(scores, out, weights);
      consumer.soften(scores, rows, rescale, params, work);
      consumer.finish_output(out);
      rescale_output(out, rescale);
      consumer.advance(weights, scores, params);
    }
    wait_barrier(consumer.barriers.values_full + consumer.behind.stage * 8, consumer.behind.parity);
    fence_products();
    start_output(out, weights, consumer.values + consumer.behind.stage * kValuesStride);
    consumer.finish_output(out);
  }
  consumer.pass_tiles(params, true);
  write_output(out, rows, numerator(params), consumer.scale_log2, params, work, consumer.queries,
               consumer.group);
}

// A consumer warpgroup.
__device__ __forceinline__ void consume(const Params& params, u32 memory, int group) {
  Consumer consumer;
  consumer.start(params, memory, group);
#if FW_PERSISTENT
  const i64 tiles = count_query_tiles(params);
  for (i64 number = block_index(); number < tiles; number += kPersistentBlocks) {
    consume_tile(consumer, params, query_tile(params, number));
    // The output has left the place of the queries.
    synchronize_named(2 + group, 128);
    release(consumer.barriers.queries_empty);
    consumer.walk.round ^= 1;
  }
#else
  consume_tile(consumer, params, query_tile(params, block_index()));
#endif
}

#if FW_PERSISTENT
// kPersistentBlocks blocks take turns in computing kTileQ rows of the output of one head.
#else
// One block computes kTileQ rows of the output of one head.
#endif
extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    fw_forward(const __grid_constant__ Params params) {
  const u32 memory = swizzled_memory();
  if (thread_index() == 0) find_barriers(memory).make();
  synchronize_block();
  const int group = static_cast<int>(shuffle(warp_index() / 4, 0));
  if (group == kConsumers) {
    give_registers<kProducerRegisters>();
    produce(params, memory);
  } else {
    take_registers<kConsumerRegisters>();
    consume(params, memory, group);
  }
}
