//~ Attention without a mask: S = Q K^T, O = softmax(S) V, with 64 query rows for each of two
//~ warpgroups. While a tile's weights are computed, the products of the tile before with its values
//~ run. Blocks take one work item after another, so every barrier goes through many phases.

struct Params {
  TensorMap q, k, v, o;  // (dim, row, head, batch)
  int query_tiles, heads;
  int group;  // heads of queries for each head of keys
  int items;  // query tiles of all heads
  int blocks;
  int seq_kv;
  float scale_log2;
};

constexpr int kHeadDim = 64;
constexpr int kHeadDimV = 80;
constexpr int kTileQ = 128;
constexpr int kTileKv = 64;
constexpr int kStages = 2;
constexpr int kGroups = 2;                       // warpgroups that compute
constexpr int kThreads = 128 * (kGroups + 1);
constexpr int kQueriesBytes = kTileQ * 128;      // one slab
constexpr int kKeysBytes = kTileKv * 128;        // one slab
constexpr int kValuesBytes = 2 * kTileKv * 128;  // two slabs, the second one in part
constexpr int kOutBytes = 2 * 64 * 128;          // of a warpgroup, likewise
constexpr int kKeys = kQueriesBytes;
constexpr int kValues = kKeys + kStages * kKeysBytes;
constexpr int kOut = kValues + kStages * kValuesBytes;
constexpr int kQueriesFull = kOut + kGroups * kOutBytes;
constexpr int kQueriesEmpty = kQueriesFull + 8;
constexpr int kKeysFull = kQueriesEmpty + 8;
constexpr int kKeysEmpty = kKeysFull + kStages * 8;
constexpr int kValuesFull = kKeysEmpty + kStages * 8;
constexpr int kValuesEmpty = kValuesFull + kStages * 8;
constexpr int kSharedBytes = kValuesEmpty + kStages * 8;

static_assert(kSharedBytes == 98384, "what the test launches with");

// A stage, and the parity of the phase in which it is full.
struct Ring {
  int stage;
  u32 parity;

  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

struct Item {
  int row, head, batch;
};

__device__ __forceinline__ Item find_item(const Params& params, int item) {
  const int head = item / params.query_tiles;
  return {item % params.query_tiles * kTileQ, head % params.heads, head / params.heads};
}

__device__ __forceinline__ void make_barriers(u32 memory) {
  init_barrier(memory + kQueriesFull, 1);
  init_barrier(memory + kQueriesEmpty, kGroups);
  for (int stage = 0; stage < kStages; ++stage) {
    init_barrier(memory + kKeysFull + stage * 8, 1);
    init_barrier(memory + kKeysEmpty + stage * 8, kGroups);
    init_barrier(memory + kValuesFull + stage * 8, 1);
    init_barrier(memory + kValuesEmpty + stage * 8, kGroups);
  }
  publish_barriers();
}

__device__ __forceinline__ void load_keys(const Params& params, u32 memory, Ring& ring,
                                          const Item& item, int key) {
  const u32 full = memory + kKeysFull + ring.stage * 8;
  wait_barrier(memory + kKeysEmpty + ring.stage * 8, ring.parity ^ 1);
  arrive_expecting(full, kKeysBytes);
  load_box(memory + kKeys + ring.stage * kKeysBytes, params.k, full, 0, key,
           item.head / params.group, item.batch);
  ring.advance();
}

__device__ __forceinline__ void load_values(const Params& params, u32 memory, Ring& ring,
                                            const Item& item, int key) {
  const u32 full = memory + kValuesFull + ring.stage * 8;
  const u32 stage = memory + kValues + ring.stage * kValuesBytes;
  wait_barrier(memory + kValuesEmpty + ring.stage * 8, ring.parity ^ 1);
  arrive_expecting(full, kValuesBytes);
  for (int slab = 0; slab < 2; ++slab)
    load_box(stage + slab * kTileKv * 128, params.v, full, slab * 64, key,
             item.head / params.group, item.batch);
  ring.advance();
}

// What the one loading thread does: everything in the order in which it is needed.
__device__ __forceinline__ void load_tiles(const Params& params, u32 memory) {
  Ring keys = {0, 0}, values = {0, 0};
  u32 parity = 0;  // of the queries
  for (int at = static_cast<int>(block_index()); at < params.items; at += params.blocks) {
    const Item item = find_item(params, at);
    wait_barrier(memory + kQueriesEmpty, parity ^ 1);
    arrive_expecting(memory + kQueriesFull, kQueriesBytes);
    load_box(memory, params.q, memory + kQueriesFull, 0, item.row, item.head, item.batch);
    parity ^= 1;
    load_keys(params, memory, keys, item, 0);
    for (int key = kTileKv; key < params.seq_kv; key += kTileKv) {
      load_keys(params, memory, keys, item, key);
      load_values(params, memory, values, item, key - kTileKv);
    }
    load_values(params, memory, values, item, (params.seq_kv - 1) / kTileKv * kTileKv);
  }
}

// Starts scores = Q K^T.
__device__ __forceinline__ void start_scores(float (&scores)[kTileKv / 2], u32 queries, u32 keys) {
#pragma unroll
  for (int k = 0; k < kHeadDim; k += 16) {
    const u64 a = tile_descriptor<128>(queries + k * 2, 1024, 0);
    const u64 b = tile_descriptor<128>(keys + k * 2, 1024, 0);
    if (k == 0)
      wgmma_ss_n64_kk_first(scores, a, b);
    else
      wgmma_ss_n64_kk(scores, a, b);
  }
  commit_products();
}

// Starts out += P V.
__device__ __forceinline__ void start_output(float (&out)[kHeadDimV / 2],
                                             const u32 (&weights)[kTileKv / 16][4], u32 values) {
#pragma unroll
  for (int k = 0; k < kTileKv; k += 16)
    wgmma_rs_n80_m(out, weights[k / 16],
                   tile_descriptor<128>(values + k * 128, 1024, kTileKv * 128));
  commit_products();
}

// Hides what lies behind the last key.
__device__ __forceinline__ void mask_scores(float (&scores)[kTileKv / 2], int keys) {
#pragma unroll
  for (int i = 0; i < kTileKv / 2; ++i)
    if (i / 4 * 8 + lane_index() % 4 * 2 + i % 2 >= keys) scores[i] = -infinity();
}

// Of one row: the largest score so far, and the sum of this lane's weights relative to it.
struct RowState {
  float max, sum;
};

// Scores become weights; `rescale` is what earlier weights have to be multiplied with.
__device__ __forceinline__ void online_softmax(float (&scores)[kTileKv / 2], RowState (&rows)[2],
                                               float (&rescale)[2], float scale_log2) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float max = rows[half].max;
#pragma unroll
    for (int n = 0; n < kTileKv / 8; ++n)
      max = larger_float(max,
                         larger_float(scores[4 * n + 2 * half], scores[4 * n + 2 * half + 1]));
    max = larger_float(max, shuffle_xor(max, 1));
    max = larger_float(max, shuffle_xor(max, 2));
    rescale[half] = exp2_approx((rows[half].max - max) * scale_log2);
    rows[half].max = max;
    float sum = rows[half].sum * rescale[half];
#pragma unroll
    for (int n = 0; n < kTileKv / 8; ++n)
#pragma unroll
      for (int i = 4 * n + 2 * half; i < 4 * n + 2 * half + 2; ++i) {
        scores[i] = exp2_approx(fused_multiply_add(scores[i], scale_log2, -max * scale_log2));
        sum += scores[i];
      }
    rows[half].sum = sum;
  }
}

// Weights as the left operand of the next product.
__device__ __forceinline__ void pack_weights(u32 (&weights)[kTileKv / 16][4],
                                             const float (&scores)[kTileKv / 2]) {
#pragma unroll
  for (int i = 0; i < kTileKv / 4; ++i)
    weights[i / 4][i % 4] = pack_pair(scores[2 * i], scores[2 * i + 1]);
}

__device__ __forceinline__ void rescale_output(float (&out)[kHeadDimV / 2],
                                               const float (&rescale)[2]) {
#pragma unroll
  for (int i = 0; i < kHeadDimV / 2; ++i) out[i] *= rescale[i / 2 % 2];
}

// Tells the loading thread that this warpgroup is done with what the barrier guards.
__device__ __forceinline__ void release(u32 empty) {
  if (thread_index() % 128 == 0) arrive(empty);
}

// Divides by the sums of the weights, rounds, and stores 64 rows.
__device__ __forceinline__ void write_output(const Params& params, float (&out)[kHeadDimV / 2],
                                             const RowState (&rows)[2], u32 memory,
                                             const Item& item, int group) {
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = rows[half].sum;
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    factor[half] = 1.0f / sum;
  }
  rescale_output(out, factor);
  const bool leader = warp_index() % 4 == 0 && elect_lane();
  if (leader) wait_stores_read<0>();
  synchronize_named(3 + group, 128);
  const u32 tile = memory + kOut + group * kOutBytes;
  const int lane = lane_index(), row = warp_index() % 4 * 16 + lane % 16;
#pragma unroll
  for (int n = 0; n < kHeadDimV / 8; n += 2) {
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = pack_pair(out[4 * n + 2 * i], out[4 * n + 2 * i + 1]);
    const int chunk = n % 8 + lane / 16;
    store_matrices(tile + n / 8 * 64 * 128 + row * 128 + ((chunk ^ row % 8) << 4), words);
  }
  fence_async_shared();
  synchronize_named(3 + group, 128);
  if (!leader) return;
  for (int slab = 0; slab < 2; ++slab)
    store_box(params.o, tile + slab * 64 * 128, slab * 64, item.row + group * 64, item.head,
              item.batch);
  commit_stores();
}

// All tiles of keys for 64 query rows. No product is in flight where the loop turns around.
__device__ __forceinline__ void attend(const Params& params, u32 memory, Ring& keys, Ring& values,
                                       float (&out)[kHeadDimV / 2], RowState (&rows)[2],
                                       int group) {
  const u32 queries = memory + group * 64 * 128;
  float scores[kTileKv / 2], rescale[2];
  u32 weights[kTileKv / 16][4];
  wait_barrier(memory + kKeysFull + keys.stage * 8, keys.parity);
  fence_products();
  start_scores(scores, queries, memory + kKeys + keys.stage * kKeysBytes);
  wait_products<0>();
  hold(scores);
  release(memory + kKeysEmpty + keys.stage * 8);
  keys.advance();
  if (params.seq_kv < kTileKv) mask_scores(scores, params.seq_kv);
  online_softmax(scores, rows, rescale, params.scale_log2);
  pack_weights(weights, scores);
  for (int key = kTileKv; key < params.seq_kv; key += kTileKv) {
    wait_barrier(memory + kKeysFull + keys.stage * 8, keys.parity);
    // The warpgroups take turns to start products, so that one computes weights meanwhile.
    synchronize_named(1 + group, 256);
    fence_products();
    start_scores(scores, queries, memory + kKeys + keys.stage * kKeysBytes);
    wait_barrier(memory + kValuesFull + values.stage * 8, values.parity);
    fence_products();  // once more: behind a wait the compiler asks for its own
    start_output(out, weights, memory + kValues + values.stage * kValuesBytes);
    arrive_named(2 - group, 256);
    wait_products<1>();
    hold(scores);
    release(memory + kKeysEmpty + keys.stage * 8);
    keys.advance();
    if (params.seq_kv - key < kTileKv) mask_scores(scores, params.seq_kv - key);
    online_softmax(scores, rows, rescale, params.scale_log2);
    wait_products<0>();
    hold(out);
    release(memory + kValuesEmpty + values.stage * 8);
    values.advance();
    pack_weights(weights, scores);
    rescale_output(out, rescale);
  }
  release(memory + kQueriesEmpty);
  wait_barrier(memory + kValuesFull + values.stage * 8, values.parity);
  fence_products();
  start_output(out, weights, memory + kValues + values.stage * kValuesBytes);
  wait_products<0>();
  hold(out);
  release(memory + kValuesEmpty + values.stage * 8);
  values.advance();
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    fw_pipeline(const __grid_constant__ Params params) {
  const u32 memory = swizzled_memory();
  if (thread_index() == 0) make_barriers(memory);
  synchronize_block();
  // From a shuffle, so that the compiler knows that a warp agrees on it.
  const int group = static_cast<int>(shuffle(static_cast<u32>(warp_index()), 0)) / 4;
  if (group == kGroups) {
    give_registers<24>();
    if (warp_index() % 4 == 0 && elect_lane()) load_tiles(params, memory);
    return;
  }
  take_registers<240>();
  if (group == 1) arrive_named(1, 256);  // the first turn
  Ring keys = {0, 0}, values = {0, 0};
  u32 parity = 0;
  for (int at = static_cast<int>(block_index()); at < params.items; at += params.blocks) {
    float out[kHeadDimV / 2] = {};
    RowState rows[2] = {{-infinity(), 0.0f}, {-infinity(), 0.0f}};
    wait_barrier(memory + kQueriesFull, parity);
    parity ^= 1;
    attend(params, memory, keys, values, out, rows, group);
    write_output(params, out, rows, memory, find_item(params, at), group);
  }
  if (warp_index() % 4 == 0 && elect_lane()) wait_stores<0>();
}
