//~ Attention as three passes over a matrix of all scores in memory: the computation that tiled
//~ attention replaces, kept as a yardstick. The scores have the element type, as frameworks do.
#include "options.h"
#include "common/types.cuh"
#include "constants.h"
#include "ptx/index.cuh"
#include "ptx/math.cuh"
#include "ptx/memory.cuh"
#include "ptx/async_copy.cuh"
#include "ptx/matrix.cuh"
#include "mask.h"
#include "common/dropout.cuh"
#include "sm80/fragments.cuh"
#include "sm80/tile_copy.cuh"
#include "sm80/products.cuh"

// A row of the score matrix in memory takes whole 16-byte chunks.
__device__ __forceinline__ i64 score_stride(const Params& params) {
  return static_cast<i64>(params.seq_kv + 7) / 8 * 8;
}

// The scores of one head: (seq_q, score_stride).
__device__ __forceinline__ Element* score_matrix(const Params& params, i64 batch_head) {
  return static_cast<Element*>(params.workspace) + batch_head * params.seq_q * score_stride(params);
}

// Pass 1: one block computes kTileQ x kTileKv scores, masks them, and writes them.
extern "C" __global__ void __launch_bounds__(kThreads)
    fw_scores(const __grid_constant__ Params params) {
  const int key_tiles = (params.seq_kv + kTileKv - 1) / kTileKv;
  const int query_tiles = (params.seq_q + kTileQ - 1) / kTileQ;
  const int first_key = static_cast<int>(block_index() % key_tiles) * kTileKv;
  const int first_row = static_cast<int>(block_index() / key_tiles % query_tiles) * kTileQ;
  const i64 batch_head = block_index() / key_tiles / query_tiles;
  const i64 batch = batch_head / params.heads_q, head = batch_head % params.heads_q;
  const u32 queries = shared_memory(), keys = queries + kKeysOffset;
  load_tile<kTileQ, kHeadDim>(queries,
                              params.q + batch * params.q_batch_stride +
                                  head * params.q_head_stride + first_row * params.q_row_stride,
                              params.q_row_stride, params.seq_q - first_row, params.aligned);
  load_tile<kTileKv, kHeadDim>(keys,
                               params.k + batch * params.k_batch_stride +
                                   head / params.group * params.k_head_stride +
                                   first_key * params.k_row_stride,
                               params.k_row_stride, params.seq_kv - first_key, params.aligned);
  commit_copies();
  wait_copies<0>();
  synchronize_block();

  float scores[kRowTiles][kKeyTiles][4] = {};
  const int warp_row = warp_index() * 16 * kRowTiles;
  multiply_queries_keys(scores, query_address<kHeadDim>(queries, warp_row),
                        key_address<kHeadDim>(keys));

  Element* const matrix = score_matrix(params, batch_head);
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + warp_row + m * 16 + lane / 4 + half * 8;
        const int kv = first_key + n * 8 + lane % 4 * 2;
        if (row >= params.seq_q || kv >= params.seq_kv) continue;
        float first = scores[m][n][2 * half] * params.softmax_scale;
        float second = scores[m][n][2 * half + 1] * params.softmax_scale;
#if FW_MASK
        if (!keep(params, row, kv)) first = -infinity();
        if (!keep(params, row, kv + 1)) second = -infinity();
#endif
        // A row has room for a whole number of pairs; the key behind the last one is never read.
        store_global_pair(matrix + row * score_stride(params) + kv, first, second, true);
      }
    }
  }
}

// Pass 2: one warp turns a row of scores into weights, and writes its LSE.
extern "C" __global__ void __launch_bounds__(kThreads)
    fw_softmax(const __grid_constant__ Params params) {
  const i64 row = block_index() * kWarps + warp_index();  // over batch, head and query
  if (row >= static_cast<i64>(params.batch) * params.heads_q * params.seq_q) return;
  const i64 batch_head = row / params.seq_q;
  const int query = static_cast<int>(row % params.seq_q);
  Element* const scores = score_matrix(params, batch_head) + query * score_stride(params);
  const int lane = lane_index();

  float max = -infinity();
  for (int kv = lane; kv < params.seq_kv; kv += 32)
    max = larger_float(max, to_float(load_global(scores + kv)));
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) max = larger_float(max, shuffle_xor(max, bits));
  const float shift = max == -infinity() ? 0.0f : max;

  float sum = 0.0f;
  for (int kv = lane; kv < params.seq_kv; kv += 32)
    sum += exp2_approx((to_float(load_global(scores + kv)) - shift) * kLog2E);
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) sum += shuffle_xor(sum, bits);
  const bool empty = sum == 0.0f;  // no visible key; a NaN is not empty
#if FW_DROPOUT
  const u64 key = find_dropout_key(params);
  const float factor = empty ? 0.0f : params.keep_scale / sum;
  for (int first = 0; first < params.seq_kv;
       first += 1024) {  // each lane draws the bits of 32 keys
    const u32 drawn = keep_word(key, static_cast<u32>(batch_head), query, first / 32 + lane,
                                params.drop_threshold);
    for (int word = 0; word < 32; ++word) {
      const int kv = first + word * 32 + lane;
      const bool kept = (shuffle(drawn, word) >> lane & 1) != 0;
      if (kv >= params.seq_kv) continue;
      const float weight =
          exp2_approx((to_float(load_global(scores + kv)) - shift) * kLog2E) * factor;
      store_global(scores + kv, to_element(kept ? weight : 0.0f));
    }
  }
#else
  const float factor = empty ? 0.0f : 1.0f / sum;
  for (int kv = lane; kv < params.seq_kv; kv += 32) {
    const float weight =
        exp2_approx((to_float(load_global(scores + kv)) - shift) * kLog2E) * factor;
    store_global(scores + kv, to_element(weight));
  }
#endif
  if (params.lse == nullptr || lane != 0) return;
  store_global(params.lse + batch_head / params.heads_q * params.lse_batch_stride +
                   batch_head % params.heads_q * params.lse_head_stride + query,
               empty ? -infinity() : shift + log2_approx(sum) * kLn2);
}

// Pass 3: one block multiplies kTileQ rows of weights by the values.
extern "C" __global__ void __launch_bounds__(kThreads)
    fw_output(const __grid_constant__ Params params) {
  const int query_tiles = (params.seq_q + kTileQ - 1) / kTileQ;
  const int first_row = static_cast<int>(block_index() % query_tiles) * kTileQ;
  const i64 batch_head = block_index() / query_tiles;
  const i64 batch = batch_head / params.heads_q, head = batch_head % params.heads_q;
  const int rows = params.seq_q - first_row;
  const u32 weights = shared_memory(), values = weights + kValuesOffset;
  const int warp_row = warp_index() * 16 * kRowTiles;
  const Element* const matrix = score_matrix(params, batch_head) + first_row * score_stride(params);
  const Element* const value_rows =
      params.v + batch * params.v_batch_stride + head / params.group * params.v_head_stride;

  float out[kRowTiles][kDimTiles][4] = {};
  for (int first_key = 0; first_key < params.seq_kv; first_key += kTileKv) {
    synchronize_block();  // the last tile has been read
    const int keys = params.seq_kv - first_key;
    load_columns<kTileQ, kTileKv>(weights, matrix + first_key, score_stride(params), rows, keys);
    load_tile<kTileKv, kHeadDimV>(values, value_rows + first_key * params.v_row_stride,
                                  params.v_row_stride, keys, params.aligned);
    commit_copies();
    wait_copies<0>();
    synchronize_block();
    u32 fragments[kRowTiles][kKeySteps][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int step = 0; step < kKeySteps; ++step)
        load_weights(fragments[m][step], weights, warp_row + m * 16, step);
    }
    multiply_weights_values(out, fragments, value_address<kHeadDimV>(values));
  }

  const int lane = lane_index();
  Element* const output = params.o + batch * params.o_batch_stride + head * params.o_head_stride;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kDimTiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + m * 16 + lane / 4 + half * 8;
        if (row >= rows) continue;
        store_global_pair(output + (first_row + row) * params.o_row_stride + n * 8 + lane % 4 * 2,
                          out[m][n][2 * half], out[m][n][2 * half + 1], params.aligned);
      }
    }
  }
}
