//~ Forward attention for GPUs with cp.async and mma.sync.
#include "options.h"
#include "common/types.cuh"
#include "constants.h"
#include "ptx/index.cuh"
#include "ptx/math.cuh"
#include "ptx/memory.cuh"
#include "ptx/async_copy.cuh"
#include "ptx/matrix.cuh"
#include "mask.h"
#include "score.h"
#include "common/work.cuh"
#include "common/key_tiles.cuh"
#include "common/dropout.cuh"
#include "sm80/fragments.cuh"
#include "common/weights.cuh"
#include "sm80/tile_copy.cuh"
#include "common/softmax.cuh"
#include "common/modify_scores.cuh"
#include "common/dropout_tile.cuh"
#include "sm80/products.cuh"

// Divides the outputs by their row sums and writes them, and the LSE, through shared memory.
// `numerator` makes up for dropped weights.
__device__ __forceinline__ void write_output(const float (&out)[kRowTiles][kDimTiles][4],
                                             const RowState (&rows)[kRowTiles][2], float numerator,
                                             float scale_log2, const Params& params,
                                             const QueryTile& work, u32 tile) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = quad_sum(rows[m][half].sum);
      const bool empty = sum == 0.0f;  // no visible key; a NaN is not empty
      const float factor = empty ? 0.0f : numerator / sum;
      const int row = (warp_index() * kRowTiles + m) * 16 + half * 8 + lane / 4;
      const u32 address = tile + row * row_bytes(kHeadDimV) + lane % 4 * 2 * kElementBytes;
#pragma unroll
      for (int n = 0; n < kDimTiles; ++n)
        store_shared_pair(address + n * 8 * kElementBytes, out[m][n][2 * half] * factor,
                          out[m][n][2 * half + 1] * factor);
      if (params.lse != nullptr && lane % 4 == 0 && work.row_begin + row < work.row_end) {
        const float log2_sum = fused_multiply_add(rows[m][half].max, scale_log2, log2_approx(sum));
        store_global(params.lse + work.batch * params.lse_batch_stride +
                         work.head * params.lse_head_stride + work.row_begin + row,
                     empty ? -infinity() : log2_sum * kLn2);
      }
    }
  }
  synchronize_block();
  store_tile<kTileQ, kHeadDimV>(
      params.o + work.batch * params.o_batch_stride + work.head * params.o_head_stride +
          work.row_begin * params.o_row_stride,
      params.o_row_stride, tile, work.row_end - work.row_begin, params.aligned);
}

// Starts the copy of one tile of keys (or of values).
__device__ __forceinline__ void load_keys(u32 shared, const Params& params, const QueryTile& work,
                                          const KeyTiles& tiles) {
  const i64 head = work.head / params.group;
  load_tile<kTileKv, kHeadDim>(shared,
                               params.k + work.batch * params.k_batch_stride +
                                   head * params.k_head_stride + tiles.first * params.k_row_stride,
                               params.k_row_stride, params.seq_kv - tiles.first, params.aligned);
}

__device__ __forceinline__ void load_values_tile(u32 shared, const Params& params,
                                                 const QueryTile& work, const KeyTiles& tiles) {
  const i64 head = work.head / params.group;
  load_tile<kTileKv, kHeadDimV>(shared,
                                params.v + work.batch * params.v_batch_stride +
                                    head * params.v_head_stride + tiles.first * params.v_row_stride,
                                params.v_row_stride, params.seq_kv - tiles.first, params.aligned);
}

// One block computes kTileQ rows of the output of one head. It walks over the keys in tiles and
// keeps, for each row, the largest score, the sum of the weights relative to it, and the weighted
// sum of the values.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    fw_forward(const __grid_constant__ Params params) {
  const QueryTile work = find_query_tile(params);
  const u32 queries = shared_memory();
  const u32 keys = queries + kKeysOffset;
  const u32 values = queries + kValuesOffset;
  const int warp_row = warp_index() * 16 * kRowTiles;

  // Queries and the first tiles of keys and values start on their way.
  load_tile<kTileQ, kHeadDim>(queries,
                              params.q + work.batch * params.q_batch_stride +
                                  work.head * params.q_head_stride +
                                  work.row_begin * params.q_row_stride,
                              params.q_row_stride, work.row_end - work.row_begin, params.aligned);
#if FW_Q_IN_REGISTERS
  // The queries move on to registers, and the keys take their place.
  commit_copies();
  wait_copies<0>();
  synchronize_block();
  u32 warp_queries[kRowTiles][kDimSteps][4];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int d = 0; d < kDimSteps; ++d)
      load_matrices(warp_queries[m][d],
                    query_address<kHeadDim>(queries, warp_row + m * 16) + d * 32);
  }
  synchronize_block();
#else
  const u32 warp_queries = query_address<kHeadDim>(queries, warp_row);
#endif
  KeyTiles tiles;
  tiles.start(params, work);
  KeyTiles loads = tiles;  // runs ahead of the computation
#if FW_ONE_STAGE
  if (!loads.done) load_keys(keys, params, work, loads);
  commit_copies();
#else
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (!loads.done) {
      load_keys(keys + stage * kKeysBytes, params, work, loads);
      load_values_tile(values + stage * kValuesBytes, params, work, loads);
      loads.advance(params);
    }
    commit_copies();
  }
  int stage = 0;
#endif

  WarpKeys warp_keys;
  warp_keys.start(params, work, warp_row, 16 * kRowTiles);
#if FW_SOFTCAP
  const float scale_log2 = params.softcap_log2;
#elif FW_NEGATIVE_SCALE
  const float scale_log2 = -params.scale_log2;  // and negated scores
#else
  const float scale_log2 = params.scale_log2;
#endif
#if FW_ALIBI
  const float slope = find_slope(params, work, scale_log2);
#endif
#if FW_DROPOUT
  const u64 dropout_key = find_dropout_key(params);
  const u32 dropout_head = static_cast<u32>(work.batch) * params.heads_q + work.head;
#endif
  float out[kRowTiles][kDimTiles][4] = {};
  RowState rows[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) rows[m][0] = rows[m][1] = {-infinity(), 0.0f};

  for (; !tiles.done; tiles.advance(params)) {
#if FW_ONE_STAGE
    // The keys are there, and every warp is done with the last values: theirs may be overwritten.
    wait_copies<0>();
    synchronize_block();
    const u32 tile_values = values;  // the only stage
    load_values_tile(values, params, work, loads);
    commit_copies();

    const bool visible = warp_keys.visible(tiles);
    float scores[kRowTiles][kKeyTiles][4] = {};
    if (visible) multiply_queries_keys(scores, warp_queries, key_address<kHeadDim>(keys));
    // The values are there, and every warp is done with the keys: the next ones may overwrite them.
    wait_copies<0>();
    synchronize_block();
    loads.advance(params);
    if (!loads.done) load_keys(keys, params, work, loads);
    commit_copies();
    if (!visible) continue;
#else
    // This tile is there, and every warp is done with the last one: its stage takes the next tile.
    wait_copies<kStages - 2>();
    synchronize_block();
    const u32 tile_keys = keys + stage * kKeysBytes, tile_values = values + stage * kValuesBytes;
    if (!loads.done) {
      const int free_stage = stage == 0 ? kStages - 1 : stage - 1;
      load_keys(keys + free_stage * kKeysBytes, params, work, loads);
      load_values_tile(values + free_stage * kValuesBytes, params, work, loads);
      loads.advance(params);
    }
    commit_copies();
    stage = stage + 1 == kStages ? 0 : stage + 1;

    if (!warp_keys.visible(tiles)) continue;
    float scores[kRowTiles][kKeyTiles][4] = {};
    multiply_queries_keys(scores, warp_queries, key_address<kHeadDim>(tile_keys));
#endif
#if FW_NEGATIVE_SCALE
    negate(scores);
#endif
#if FW_ALIBI
    modify_scores(scores, params, tiles, work.row_begin + warp_row, slope);
#elif FW_SOFTCAP
    modify_scores(scores, params);
#endif
    if (warp_keys.needs_test(tiles))
      mask_scores(scores, params, work, tiles, work.row_begin + warp_row);
    float rescale[kRowTiles][2];
    online_softmax(scores, rows, rescale, scale_log2);
    rescale_output(out, rescale);
    u32 weights[kRowTiles][kKeySteps][4];
    pack_weights(weights, scores);
#if FW_DROPOUT
    drop_weights(weights, dropout_key, dropout_head, params.drop_threshold,
                 work.row_begin + warp_row, tiles.first);
#endif
    multiply_weights_values(out, weights, value_address<kHeadDimV>(tile_values));
  }

  // The results take the place of the queries; what follows the last tile must not overtake its
  // readers.
  wait_copies<0>();
  synchronize_block();
#if FW_DROPOUT
  write_output(out, rows, params.keep_scale, scale_log2, params, work, queries);
#else
  write_output(out, rows, 1.0f, scale_log2, params, work, queries);
#endif
}
