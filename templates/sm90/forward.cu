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
#include "common/work.cuh"
#include "common/key_tiles.cuh"
#include "common/dropout.cuh"
#include "common/weights.cuh"
#include "common/softmax.cuh"
#include "common/dropout_tile.cuh"
#include "sm90/pipeline.cuh"
#include "sm90/tile_copy.cuh"
#include "sm90/produce.cuh"
#include "sm90/products.cuh"
#include "sm90/hide_scores.cuh"
#include "sm90/write.cuh"

// The producer warpgroup. It gives most of its registers to the consumers.
__device__ __forceinline__ void produce(const Params& params, const QueryTile& work, u32 memory,
                                        const Barriers& barriers) {
  if (params.aligned) {
    if (warp_index() % 4 == 0 && elect_lane()) load_tiles(params, work, memory, barriers);
  } else {
    copy_tiles(params, work, memory, barriers);
  }
}

// What a consumer knows of the tile at hand, and what it does with its scores.
struct Softmax {
  WarpKeys own_keys;
  float scale_log2;
  int first_row;  // of the warp
#if FW_DROPOUT
  u64 dropout_key;
  u32 dropout_head;
#endif

  __device__ __forceinline__ void start(const Params& params, const QueryTile& work, int group) {
    own_keys.start(params, work, group * 64, 64);
    scale_log2 = magnitude(params.scale_log2);
    first_row = work.row_begin + group * 64 + warp_index() % 4 * 16;
#if FW_DROPOUT
    dropout_key = find_dropout_key(params);
    dropout_head = static_cast<u32>(work.batch) * params.heads_q + work.head;
#endif
  }

  // Turns the scores of a tile into weights. Returns in `rescale` the factor of earlier outputs.
  __device__ __forceinline__ void apply(float (&scores)[kRowTiles][kKeyTiles][4],
                                        RowState (&rows)[kRowTiles][2],
                                        float (&rescale)[kRowTiles][2], const Params& params,
                                        const QueryTile& work, const KeyTiles& tiles) const {
    if (params.scale_log2 < 0.0f) negate(scores);
    if (own_keys.needs_test(tiles)) hide_scores(scores, params, work, tiles, first_row);
    online_softmax(scores, rows, rescale, scale_log2);
  }

  // Rounds the weights for the second product.
  __device__ __forceinline__ void pack(u32 (&weights)[kRowTiles][kKeySteps][4],
                                       const float (&scores)[kRowTiles][kKeyTiles][4],
                                       const Params& params, int first_key) const {
    pack_weights(weights, scores);
#if FW_DROPOUT
    drop_weights(weights, dropout_key, dropout_head, params.drop_threshold, first_row, first_key);
#endif
  }
};

#if FW_DROPOUT
// Makes up for dropped weights.
__device__ __forceinline__ float numerator(const Params& params) { return params.keep_scale; }
#else
__device__ __forceinline__ float numerator(const Params& params) { return 1.0f; }
#endif

// Passes on tiles that no row of this warpgroup sees, up to the first that one does or, with
// `to_the_end`, all that are left. One thread waits for them and lets them go; the others must not
// wait at a later tile before it has, since a phase tells its parity only.
__device__ __forceinline__ void pass_tiles(KeyTiles& tiles, RingPlace& at, const Params& params,
                                           const WarpKeys& own_keys, const Barriers& barriers,
                                           int group, bool to_the_end) {
  if (tiles.done || (!to_the_end && own_keys.visible(tiles))) return;
  for (; !tiles.done && (to_the_end || !own_keys.visible(tiles)); tiles.advance(params)) {
    if (thread_index() % 128 == 0) {
      wait_barrier(barriers.keys_full + at.stage * 8, at.parity);
      arrive(barriers.keys_empty + at.stage * 8);
      wait_barrier(barriers.values_full + at.stage * 8, at.parity);
      arrive(barriers.values_empty + at.stage * 8);
    }
    at.advance();
  }
  synchronize_named(2 + group, 128);
}

// A consumer warpgroup: 64 rows of the output of one head. It walks over the keys in tiles and
// keeps, for each row, the largest score, the sum of the weights relative to it, and the weighted
// sum of the values. The values of a tile are multiplied while the next scores become weights.
__device__ __forceinline__ void consume(const Params& params, const QueryTile& work, u32 memory,
                                        const Barriers& barriers, int group) {
  const u32 queries = memory + group * kOwnBytes;
  const u32 keys = memory + kKeysOffset, values = memory + kValuesOffset;
  Softmax softmax;
  softmax.start(params, work, group);
  float out[kRowTiles][kDimTiles][4] = {};
  RowState rows[kRowTiles][2] = {{{-infinity(), 0.0f}, {-infinity(), 0.0f}}};
  KeyTiles tiles;
  tiles.start(params, work);
  RingPlace at = {0, 0};
  wait_barrier(barriers.queries_full, 0);
  pass_tiles(tiles, at, params, softmax.own_keys, barriers, group, false);
  if (!tiles.done) {
    float scores[kRowTiles][kKeyTiles][4], rescale[kRowTiles][2];
    u32 weights[kRowTiles][kKeySteps][4];
    wait_barrier(barriers.keys_full + at.stage * 8, at.parity);
    fence_products();
    start_scores(scores, queries, keys + at.stage * kKeysStride);
    wait_products<0>();
    hold_sums(scores);
    release(barriers.keys_empty + at.stage * 8);
    softmax.apply(scores, rows, rescale, params, work, tiles);
    softmax.pack(weights, scores, params, tiles.first);
    RingPlace behind = at;  // the tile whose weights wait for their values
    at.advance();
    tiles.advance(params);
    while (!tiles.done && softmax.own_keys.visible(tiles)) {
      wait_barrier(barriers.values_full + behind.stage * 8, behind.parity);
      wait_barrier(barriers.keys_full + at.stage * 8, at.parity);
      fence_products();
      start_scores(scores, queries, keys + at.stage * kKeysStride);
      start_output(out, weights, values + behind.stage * kValuesStride);
      wait_products<1>();
      hold_sums(scores);
      release(barriers.keys_empty + at.stage * 8);
      softmax.apply(scores, rows, rescale, params, work, tiles);
      wait_products<0>();
      hold_sums(out);
      release(barriers.values_empty + behind.stage * 8);
      rescale_output(out, rescale);
      softmax.pack(weights, scores, params, tiles.first);
      behind = at;
      at.advance();
      tiles.advance(params);
    }
    wait_barrier(barriers.values_full + behind.stage * 8, behind.parity);
    fence_products();
    start_output(out, weights, values + behind.stage * kValuesStride);
    wait_products<0>();
    hold_sums(out);
    release(barriers.values_empty + behind.stage * 8);
  }
  pass_tiles(tiles, at, params, softmax.own_keys, barriers, group, true);
  write_output(out, rows, numerator(params), softmax.scale_log2, params, work, queries, group);
}

// One block computes kTileQ rows of the output of one head.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    fw_forward(const __grid_constant__ Params params) {
  const QueryTile work = find_query_tile(params);
  const u32 memory = swizzled_memory();
  const Barriers barriers = find_barriers(memory);
  if (thread_index() == 0) barriers.make();
  synchronize_block();
  const int group = static_cast<int>(shuffle(warp_index() / 4, 0));
  if (group == kConsumers) {
    give_registers<kProducerRegisters>();
    produce(params, work, memory, barriers);
  } else {
    take_registers<kConsumerRegisters>();
    consume(params, work, memory, barriers, group);
  }
}
