// Attention backward for sm_120: fp32, head dim 64, window mask, softcap, ALiBi.
// dQ in tiles of 64 queries by 32 keys; dK and dV in tiles of 64 keys by 32 queries; 1 stage, 4
//     warps. 51.0 and 51.5 KiB of shared memory.
// Launch fw_statistics: ceil_div(batch * heads_q * seq_q, 8) blocks of 128 threads, 0 bytes of
//     dynamic shared memory.
// Launch fw_dq: ceil_div(seq_q, 64) * heads_q * batch * want_dq blocks of 128 threads, 52224 bytes
//     of dynamic shared memory.
// Launch fw_dk_dv: ceil_div(seq_kv, 64) * heads_kv * batch * max(want_dk, want_dv) blocks of 128
//     threads, 52736 bytes of dynamic shared memory.
// Workspace: batch * heads_q * seq_q * 16 bytes.
// Regenerate: flashwright emit --direction backward --dtype fp32 --head-dim 64 --mask window:-1,-1
//     --softcap 50 --alibi --target sm_120 --schedule q64.kv32.w4.st1.b1.kb64.qs32
// flashwright 0.1.0. This emitted file may be used under any licence.

using u32 = unsigned int;

using i64 = long long;

// Sixteen bytes, the widest access to memory.
struct alignas(16) Bytes16 {
  u32 word[4];
};

constexpr int kTileQ = 64;         // queries per block of fw_dq
constexpr int kTileKv = 32;        // keys per step of it
constexpr int kKeysPerBlock = 64;  // keys per block that sums over queries
constexpr int kQueryStep = 32;     // queries per step of it
constexpr int kHeadDim = 64;       // of queries and keys
constexpr int kHeadDimV = 64;      // of values and outputs
constexpr int kWarps = 4;          // per block
constexpr int kThreads = 32 * kWarps;
constexpr int kBlocksPerSm = 1;  // resident together, asked of the compiler
constexpr int kStages = 1;       // tiles of a walk in flight

constexpr int kElementBytes = 4;                             // fp32
constexpr int kMmaK = 8;                                     // depth of one tensor core step
constexpr int kRowTiles = kTileQ / (16 * kWarps);            // tiles of 16 queries that a warp owns
constexpr int kKeyTiles = kTileKv / 8;                       // accumulator tiles along the keys
constexpr int kKeyRowTiles = kKeysPerBlock / (16 * kWarps);  // tiles of 16 keys that a warp owns
constexpr int kQueryTiles = kQueryStep / 8;                  // accumulator tiles along the queries
constexpr int kRowLanes = 16;                                // lanes for the statistics of a query
constexpr int kStatisticsBytes = 16;                         // of a query: any may start a copy

constexpr float kLog2E = 1.4426950408889634f;

// Bytes of a row in shared memory: whole tensor core steps, and an odd number of 16-byte chunks,
// so that the eight rows of a matrix start in different banks.
__device__ constexpr int row_bytes(int columns) {
  return ((columns + kMmaK - 1) / kMmaK * kMmaK * kElementBytes / 16 | 1) * 16;
}

constexpr int kQueriesBytes = kTileQ * row_bytes(kHeadDim);
constexpr int kOutputsBytes = kTileQ * row_bytes(kHeadDimV);
constexpr int kStepKeysBytes = kTileKv * row_bytes(kHeadDim);
constexpr int kKeyStageBytes = kStepKeysBytes + kTileKv * row_bytes(kHeadDimV);
constexpr int kDqBytes = kQueriesBytes + kOutputsBytes + kStages * kKeyStageBytes;

constexpr int kKeysBytes = kKeysPerBlock * row_bytes(kHeadDim);
constexpr int kValuesBytes = kKeysPerBlock * row_bytes(kHeadDimV);
constexpr int kStepQueriesBytes = kQueryStep * row_bytes(kHeadDim);
constexpr int kStepOutputsBytes = kQueryStep * row_bytes(kHeadDimV);
constexpr int kStepBytes = kStepQueriesBytes + kStepOutputsBytes;
constexpr int kQueryStageBytes = kStepBytes + kQueryStep * kStatisticsBytes;
constexpr int kDkDvBytes = kKeysBytes + kValuesBytes + kStages * kQueryStageBytes;

static_assert(kDqBytes == 52224, "the launch plan says so");

static_assert(kDkDvBytes == 52736, "the launch plan says so");

using Element = float;

// What the host fills in for each launch.
struct Params {
  const Element* q;                                 // (batch, seq_q, heads_q, head_dim)
  const Element* k;                                 // (batch, seq_kv, heads_kv, head_dim)
  const Element* v;                                 // (batch, seq_kv, heads_kv, head_dim_v)
  const Element* o_given;                           // o of the forward pass
  const float* lse_given;                           // lse of the forward pass
  const Element* d_o;                               // gradient of o
  const float* d_lse;                               // gradient of lse; null: 0
  Element* dq;                                      // as q, or null
  Element* dk;                                      // as k, or null
  Element* dv;                                      // as v, or null
  void* workspace;                                  // as large as asked, 256-byte aligned
  i64 q_batch_stride, q_row_stride, q_head_stride;  // strides count elements
  i64 k_batch_stride, k_row_stride, k_head_stride;
  i64 v_batch_stride, v_row_stride, v_head_stride;
  i64 o_batch_stride, o_row_stride, o_head_stride;
  i64 d_o_batch_stride, d_o_row_stride, d_o_head_stride;
  i64 dq_batch_stride, dq_row_stride, dq_head_stride;
  i64 dk_batch_stride, dk_row_stride, dk_head_stride;
  i64 dv_batch_stride, dv_row_stride, dv_head_stride;
  i64 lse_batch_stride, lse_head_stride;
  i64 d_lse_batch_stride, d_lse_head_stride;
  int batch, heads_q, heads_kv;
  int group;  // query heads that share a key head
  int seq_q, seq_kv;
  float softmax_scale;        // factor of the scores
  float softcap_log2;         // softcap * log2(e)
  float tanh_scale;           // softmax_scale / softcap
  const float* alibi_slopes;  // (batch, heads_q); a stride may be 0
  i64 alibi_batch_stride, alibi_head_stride;
  int q_position;    // where query 0 sits among the keys
  int window_left;   // keys visible before a query
  int window_right;  // keys visible after a query
  int aligned;       // 1: every row starts on a multiple of 16 bytes
};

__device__ __forceinline__ int thread_index() { return static_cast<int>(threadIdx.x); }

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % 32; }

__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / 32; }

__device__ __forceinline__ i64 block_index() { return blockIdx.x; }

// Waits for all threads of the block; what they wrote to shared memory is then visible.
__device__ __forceinline__ void synchronize_block() { __syncthreads(); }

// The value of the lane whose number differs in the bits of `bits`.
__device__ __forceinline__ float shuffle_xor(float value, int bits) {
  return __shfl_xor_sync(0xffffffffu, value, bits);
}

__device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }

__device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }

__device__ __forceinline__ float magnitude(float a) {
  float value;
  asm("abs.f32 %0, %1;" : "=f"(value) : "f"(a));
  return value;
}

// a * b + c, rounded once.
__device__ __forceinline__ float fused_multiply_add(float a, float b, float c) {
  float value;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(value) : "f"(a), "f"(b), "f"(c));
  return value;
}

// 2^x with a relative error below 2^-22; results below 2^-126 become 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}

// tanh(x) with a relative error of a few 2^-24: an odd polynomial, since the quotient would cancel
// near 0.
__device__ __forceinline__ float tanh_exact(float x) {
  const float size = magnitude(x);
  if (size < 0.6f) {
    const float square = x * x;
    float series = fused_multiply_add(-0.00626911968f, square, 0.0211109594f);
    series = fused_multiply_add(series, square, -0.0538739488f);
    series = fused_multiply_add(series, square, 0.133329153f);
    series = fused_multiply_add(series, square, -0.333333313f);
    return fused_multiply_add(series * square, x, x);
  }
  const float above = 1.0f - 2.0f / (exp2_approx(2.88539008f * size) + 1.0f);
  return x < 0.0f ? -above : above;
}

__device__ __forceinline__ u32 float_bits(float value) {
  u32 bits;
  asm("mov.b32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ float bits_float(u32 bits) {
  float value;
  asm("mov.b32 %0, %1;" : "=f"(value) : "r"(bits));
  return value;
}

__device__ __forceinline__ float infinity() { return bits_float(0x7f800000u); }

// Rounded to 11 bits of significand.
__device__ __forceinline__ u32 round_tf32(float value) {
  u32 bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ float to_float(float element) { return element; }

// Address of the block's dynamic shared memory.
__device__ __forceinline__ u32 shared_memory() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return static_cast<u32>(__cvta_generic_to_shared(bytes));
}

__device__ __forceinline__ float load_shared_float(u32 address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
  return value;
}

__device__ __forceinline__ Bytes16 load_shared_16(u32 address) {
  Bytes16 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "r"(address));
  return v;
}

__device__ __forceinline__ void store_shared_float(u32 address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

__device__ __forceinline__ void store_shared_float2(u32 address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

template <typename Value>
__device__ __forceinline__ Value load_global(const Value* pointer) {
  return *pointer;
}

template <typename Value>
__device__ __forceinline__ void store_global(Value* pointer, Value value) {
  *pointer = value;
}

// Starts a copy of 16 bytes; where `valid` is false, zeros are written and nothing is read.
__device__ __forceinline__ void copy_async_16(u32 shared, const void* global, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}

// Closes a group: all copies this thread has started since the last group.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending groups of this thread are still in flight.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads four 8 x 8 matrices of 16-bit elements, or 8 x 4 of 32 bits. Lanes 8i..8i+7 give the
// addresses of the rows of matrix i; lane l gets the word at row g, words t of matrix i in r[i].
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// d += a * b for a 16 x 8 and an 8 x 8 matrix of tf32, floats with 11 bits of significand.
__device__ __forceinline__ void multiply_add_tf32(float (&d)[4], const u32 (&a)[4], u32 b0,
                                                  u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A float as the sum of two tf32 numbers, up to 2^-24 of it.
struct Split {
  u32 high, low;
};

__device__ __forceinline__ Split split(u32 value) {
  const u32 high = round_tf32(bits_float(value));
  return {high, round_tf32(bits_float(value) - bits_float(high))};
}

// d += a * b for a 16 x 8 and an 8 x 8 matrix of floats, as three products of their halves; that of
// the two low ones is below the rounding of d.
__device__ __forceinline__ void multiply_add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  u32 high[4], low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Split half = split(a[i]);
    high[i] = half.high;
    low[i] = half.low;
  }
  const Split first = split(b0), second = split(b1);
  multiply_add_tf32(d, low, first.high, second.high);
  multiply_add_tf32(d, high, first.low, second.low);
  multiply_add_tf32(d, high, first.high, second.high);
}

// Whether a query row may see key `kv`.
__device__ __forceinline__ bool keep(const Params& params, int row, int kv) {
  const int q = row + params.q_position;
  return kv >= q - params.window_left && kv <= q + params.window_right;
}

// Keys of a range of query rows: [begin, end) are those that some of its rows may see,
// [full_begin, full_end) those that all of them see.
struct KeyRange {
  int begin, end;
  int full_begin, full_end;
};

__device__ __forceinline__ KeyRange visible_keys(const Params& params, int first_row,
                                                 int last_row) {
  const int q_first = first_row + params.q_position;
  const int q_last = last_row + params.q_position;
  KeyRange keys;
  keys.begin = larger(0, q_first - params.window_left);
  keys.end = smaller(params.seq_kv, q_last + params.window_right + 1);
  keys.full_begin = larger(0, q_last - params.window_left);
  keys.full_end = smaller(params.seq_kv, q_first + params.window_right + 1);
  return keys;
}

// Query rows of a range of keys: [begin, end) are those that may see some of its keys,
// [full_begin, full_end) those that see all of them.
struct RowRange {
  int begin, end;
  int full_begin, full_end;
};

__device__ __forceinline__ RowRange visible_rows(const Params& params, int kv_first, int kv_last) {
  RowRange rows;
  rows.begin = larger(0, kv_first - params.window_right - params.q_position);
  rows.end = smaller(params.seq_q, kv_last + params.window_left + 1 - params.q_position);
  rows.full_begin = larger(0, kv_last - params.window_right - params.q_position);
  rows.full_end = smaller(params.seq_q, kv_first + params.window_left + 1 - params.q_position);
  return rows;
}

// What becomes of a score: capped, then ALiBi, in units of the cap. `distance` is kv - q.
__device__ __forceinline__ float modified(const Params& params, float score, float slope,
                                          float distance) {
  return fused_multiply_add(slope, distance, tanh_exact(params.tanh_scale * score));
}

// By how much a score grows under the cap when it grows by 1 before.
__device__ __forceinline__ float derivative(const Params& params, float score) {
  const float capped = tanh_exact(params.tanh_scale * score);
  return fused_multiply_add(-capped, capped, 1.0f);
}

// A tile of query rows of one head. Positions count from the first key: row i sits at i +
// q_position.
struct QueryTile {
  int batch;
  int head;
  int row_begin, row_end;  // rows [row_begin, row_end) exist
};

// Blocks are numbered with the query tiles of a head next to each other, so that blocks which run
// at the same time read the same keys. The last tile comes first: under a causal mask it is the
// longest.
__device__ __forceinline__ QueryTile find_query_tile(const Params& params) {
  const int tiles = (params.seq_q + kTileQ - 1) / kTileQ;
  const int tile = tiles - 1 - static_cast<int>(block_index() % tiles);
  const i64 head = block_index() / tiles;
  QueryTile work;
  work.batch = static_cast<int>(head / params.heads_q);
  work.head = static_cast<int>(head % params.heads_q);
  work.row_begin = tile * kTileQ;
  work.row_end = params.seq_q;
  return work;
}

// Walks over the key tiles of one query tile, from the last visible one to the first: the tiles
// that cross the edge of the mask come first.
struct KeyTiles {
  KeyRange keys;
  int first;  // first key of the tile at hand
  bool done;

  __device__ __forceinline__ void start(const Params& params, const QueryTile& work) {
    const int last_row = smaller(work.row_begin + kTileQ, work.row_end) - 1;
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
  return kv < params.seq_kv && keep(params, row, kv);
}

// A tile of keys of one key head.
struct KeyTile {
  int batch;
  int head;                // of the keys
  int key_begin, key_end;  // keys [key_begin, key_end) exist
};

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
  return row < params.seq_q && keep(params, row, kv);
}

// The slope of a head in the units of modified().
__device__ __forceinline__ float find_slope(const Params& params, const QueryTile& work,
                                            float scale_log2) {
  return load_global(params.alibi_slopes + work.batch * params.alibi_batch_stride +
                     work.head * params.alibi_head_stride) *
         kLog2E / scale_log2;
}

__device__ __forceinline__ void store_shared_element(u32 address, float value) {
  store_shared_float(address, value);
}

__device__ __forceinline__ float load_shared_element(u32 address) {
  return load_shared_float(address);
}

// Writes two neighbouring results of a row.
__device__ __forceinline__ void store_shared_pair(u32 address, float first, float second) {
  store_shared_float2(address, first, second);
}

// Address that this lane gives to load 16 rows by one K-step of queries.
template <int kColumns>
__device__ __forceinline__ u32 query_address(u32 tile, int first_row) {
  const int lane = lane_index();
  return tile + (first_row + lane % 16) * row_bytes(kColumns) + lane / 16 * 16;
}

// Address that this lane gives to load 16 keys by one K-step.
template <int kColumns>
__device__ __forceinline__ u32 key_address(u32 tile) {
  const int lane = lane_index();
  return tile + (lane % 8 + lane / 16 * 8) * row_bytes(kColumns) + lane / 8 % 2 * 16;
}

// Address that this lane reads values from: key 2t, dim g.
template <int kColumns>
__device__ __forceinline__ u32 value_address(u32 tile) {
  const int lane = lane_index();
  return tile + lane % 4 * 2 * row_bytes(kColumns) + lane / 4 * 4;
}

// Values of one K-step (eight keys) by 16 dims: b[0..1] for the first eight dims, b[2..3] for the
// others, where there are any. Slot t of the tensor core is key 2t and slot t + 4 is key 2t + 1, as
// the scores lie in their registers.
template <int kColumns>
__device__ __forceinline__ void load_values(u32 (&b)[4], u32 address, bool others) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < 2 || others)
      b[i] = float_bits(load_shared_float(address + i % 2 * row_bytes(kColumns) + i / 2 * 32));
}

// Starts the copy of kRows rows of kColumns elements. Rows from `rows` on, and the columns behind
// the head dim that round it up to whole steps of the tensor core, become zeros. Rows that do not
// start on 16 bytes are copied element by element and are there at the next barrier.
template <int kRows, int kColumns>
__device__ __forceinline__ void load_tile(u32 shared, const Element* global, i64 row_stride,
                                          int rows, bool aligned) {
  constexpr int kChunks = (kColumns + kMmaK - 1) / kMmaK * kMmaK * kElementBytes / 16;
  if (aligned) {
    // A thread keeps to one column of chunks and goes down the rows.
    constexpr int kRowsPerPass = kThreads / kChunks;
    const int chunk = thread_index() % kChunks, first_row = thread_index() / kChunks;
    const bool inside = chunk < kColumns * kElementBytes / 16;
    const Element* source = global + first_row * row_stride + chunk * (16 / kElementBytes);
    u32 target = shared + first_row * row_bytes(kColumns) + chunk * 16;
    if (kThreads % kChunks != 0 && first_row >= kRowsPerPass) return;
#pragma unroll
    for (int row = 0; row < kRows; row += kRowsPerPass) {
      if (kRows % kRowsPerPass != 0 && row + first_row >= kRows) break;
      const bool valid = inside && row + first_row < rows;
      copy_async_16(target + row * row_bytes(kColumns), source, valid);
      source += kRowsPerPass * row_stride;
    }
  } else {
    constexpr int kElements = kChunks * 16 / kElementBytes;
#pragma unroll 1
    for (int i = thread_index(); i < kRows * kElements; i += kThreads) {
      const int row = i / kElements, column = i % kElements;
      const bool valid = row < rows && column < kColumns;
      store_shared_element(shared + row * row_bytes(kColumns) + column * kElementBytes,
                           valid ? load_global(global + row * row_stride + column) : Element{});
    }
  }
}

// Writes kRows rows of kColumns elements back, those before `rows` only.
template <int kRows, int kColumns>
__device__ __forceinline__ void store_tile(Element* global, i64 row_stride, u32 shared, int rows,
                                           bool aligned) {
  if (aligned) {
    constexpr int kChunks = kColumns * kElementBytes / 16;
    for (int i = thread_index(); i < kRows * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      if (row >= rows) break;
      Element* target = global + row * row_stride + chunk * (16 / kElementBytes);
      store_global(reinterpret_cast<Bytes16*>(target),
                   load_shared_16(shared + row * row_bytes(kColumns) + chunk * 16));
    }
  } else {
#pragma unroll 1
    for (int i = thread_index(); i < kRows * kColumns; i += kThreads) {
      const int row = i / kColumns, column = i % kColumns;
      if (row >= rows) break;
      store_global(
          global + row * row_stride + column,
          load_shared_element(shared + row * row_bytes(kColumns) + column * kElementBytes));
    }
  }
}

// The tensor cores cut off, with every sum, what does not fit into it. Sums of a few steps lose
// little by that; they are then added with rounding.
constexpr int kPartSteps = 4;

// sums[m][first + n] += parts[m][n]
template <int kRows, int kTiles, int kParts>
__device__ __forceinline__ void add_parts(float (&sums)[kRows][kTiles][4],
                                          const float (&parts)[kRows][kParts][4], int first) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first + n < kTiles) sums[m][first + n][i] += parts[m][n][i];
    }
  }
}

// products += rows * columns^T over kSteps tensor core steps along the head dim.
template <int kDim, int kSteps, int kRows, int kTiles>
__device__ __forceinline__ void add_steps(float (&products)[kRows][kTiles][4], u32 rows,
                                          u32 columns) {
  float parts[kRows][kTiles][4] = {};
#pragma unroll
  for (int d = 0; d < kSteps; ++d) {
    u32 a[kRows][4];
#pragma unroll
    for (int m = 0; m < kRows; ++m) load_matrices(a[m], rows + m * 16 * row_bytes(kDim) + d * 32);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      u32 b[4];
      load_matrices(b, columns + n * 8 * row_bytes(kDim) + d * 32);
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        multiply_add(parts[m][n], a[m], b[0], b[1]);
        multiply_add(parts[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
  add_parts(products, parts, 0);
}

// products += rows * columns^T: every row of this warp by every column, along the head dim.
template <int kDim, int kRows, int kTiles>
__device__ __forceinline__ void multiply_rows(float (&products)[kRows][kTiles][4], u32 rows,
                                              u32 columns) {
  constexpr int kSteps = (kDim + kMmaK - 1) / kMmaK;
  constexpr int kWhole = kSteps / kPartSteps, kRest = kSteps % kPartSteps;
#pragma unroll 1
  for (int part = 0; part < kWhole; ++part)
    add_steps<kDim, kPartSteps>(products, rows + part * kPartSteps * 32,
                                columns + part * kPartSteps * 32);
  if constexpr (kRest > 0)
    add_steps<kDim, kRest>(products, rows + kWhole * kPartSteps * 32,
                           columns + kWhole * kPartSteps * 32);
}

// Products as left operands, one for each K-step.
template <int kRows, int kTiles>
__device__ __forceinline__ void pack_rows(u32 (&packed)[kRows][kTiles][4],
                                          const float (&products)[kRows][kTiles][4]) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      packed[m][n][0] = float_bits(products[m][n][0]);
      packed[m][n][1] = float_bits(products[m][n][2]);
      packed[m][n][2] = float_bits(products[m][n][1]);
      packed[m][n][3] = float_bits(products[m][n][3]);
    }
  }
}

// sums += factors * columns, where each column is a row of kDim elements.
template <int kDim, int kRows, int kSteps>
__device__ __forceinline__ void add_columns(float (&sums)[kRows][kDim / 8][4],
                                            const u32 (&factors)[kRows][kSteps][4], u32 columns) {
  constexpr int kTiles = kDim / 8;
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
#pragma unroll
    for (int begin = 0; begin < kSteps; begin += kPartSteps) {
      float parts[kRows][2][4] = {};
#pragma unroll
      for (int step = begin; step < begin + kPartSteps && step < kSteps; ++step) {
        u32 b[4];
        load_values<kDim>(b, columns + step * kMmaK * row_bytes(kDim) + n * 8 * kElementBytes,
                          n + 1 < kTiles);
#pragma unroll
        for (int m = 0; m < kRows; ++m) {
          multiply_add(parts[m][0], factors[m][step], b[0], b[1]);
          if (n + 1 < kTiles) multiply_add(parts[m][1], factors[m][step], b[2], b[3]);
        }
      }
      add_parts(sums, parts, n);
    }
  }
}

// What the backward pass knows of a query.
struct Statistics {
  float lse;  // in powers of two; infinity for a query that sees no key, so that its weights are 0
  float delta;  // what is subtracted from the gradients of its weights
};

// Where the statistics of a query lie in the workspace.
__device__ __forceinline__ const Bytes16* statistics_of(const Params& params, i64 batch, i64 head,
                                                        i64 row) {
  return static_cast<const Bytes16*>(params.workspace) +
         (batch * params.heads_q + head) * params.seq_q + row;
}

__device__ __forceinline__ Statistics unpack_statistics(const Bytes16& bytes) {
  return {bits_float(bytes.word[0]), bits_float(bytes.word[1])};
}

// What scores are multiplied by in the exponent of two.
__device__ __forceinline__ float score_factor(const Params& params) { return params.softcap_log2; }

// The gradient of a score over that of its plain product, softmax_scale apart.
__device__ __forceinline__ float score_gradient(const Params& params, float weight, float d_weight,
                                                float delta, float score) {
  return weight * (d_weight - delta) * derivative(params, score);
}

// The weight of a score whose key is `distance` further on than the query.
__device__ __forceinline__ float find_weight(const Params& params, float score, float lse,
                                             float slope, float distance) {
  const float changed = modified(params, score, slope, distance);
  return exp2_approx(fused_multiply_add(changed, score_factor(params), -lse));
}

// What the sums for dQ and dK are multiplied by at the end.
__device__ __forceinline__ float gradient_factor(const Params& params) {
  return params.softmax_scale;
}

// Writes the rows of this warp, multiplied, to a tile in shared memory.
template <int kDim, int kRows>
__device__ __forceinline__ void put_rows(u32 tile, const float (&sums)[kRows][kDim / 8][4],
                                         float factor, int first_row) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + m * 16 + half * 8 + lane / 4;
      const u32 address = tile + row * row_bytes(kDim) + lane % 4 * 2 * kElementBytes;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
        store_shared_pair(address + n * 8 * kElementBytes, sums[m][n][2 * half] * factor,
                          sums[m][n][2 * half + 1] * factor);
    }
  }
}

// Sum of the products of 16 bytes of elements.
__device__ __forceinline__ float dot_chunk(const Bytes16& a, const Bytes16& b) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    sum = fused_multiply_add(bits_float(a.word[i]), bits_float(b.word[i]), sum);
  return sum;
}

// This lane's part of the sum of the products of two rows of kHeadDimV elements.
__device__ __forceinline__ float dot_rows(const Element* a, const Element* b, bool aligned) {
  constexpr int kElements = 16 / kElementBytes;  // of a chunk
  float sum = 0.0f;
  if (aligned) {
#pragma unroll
    for (int at = 0; at < kHeadDimV; at += kRowLanes * kElements) {
      const int first = at + lane_index() % kRowLanes * kElements;
      if (first >= kHeadDimV) break;
      sum += dot_chunk(load_global(reinterpret_cast<const Bytes16*>(a + first)),
                       load_global(reinterpret_cast<const Bytes16*>(b + first)));
    }
  } else {
#pragma unroll 1
    for (int at = lane_index() % kRowLanes; at < kHeadDimV; at += kRowLanes)
      sum = fused_multiply_add(to_float(load_global(a + at)), to_float(load_global(b + at)), sum);
  }
  return sum;
}

// kRowLanes lanes compute the statistics of a query: its LSE in powers of two, and the sum of
// dO * O less the gradient of the LSE.
extern "C" __global__ void __launch_bounds__(kThreads)
    fw_statistics(const __grid_constant__ Params params) {
  const i64 query = block_index() * (kThreads / kRowLanes) + thread_index() / kRowLanes;
  const bool exists = query < static_cast<i64>(params.batch) * params.heads_q * params.seq_q;
  const i64 row = exists ? query % params.seq_q : 0, matrix = exists ? query / params.seq_q : 0;
  const i64 batch = matrix / params.heads_q, head = matrix % params.heads_q;
  float delta = 0.0f;
  if (exists)
    delta = dot_rows(params.o_given + batch * params.o_batch_stride + row * params.o_row_stride +
                         head * params.o_head_stride,
                     params.d_o + batch * params.d_o_batch_stride + row * params.d_o_row_stride +
                         head * params.d_o_head_stride,
                     params.aligned);
#pragma unroll
  for (int bits = kRowLanes / 2; bits > 0; bits /= 2) delta += shuffle_xor(delta, bits);
  if (!exists || lane_index() % kRowLanes != 0) return;

  float lse = load_global(params.lse_given + batch * params.lse_batch_stride +
                          head * params.lse_head_stride + row);
  if (params.d_lse != nullptr)
    delta -= load_global(params.d_lse + batch * params.d_lse_batch_stride +
                         head * params.d_lse_head_stride + row);
  if (lse == -infinity()) {
    lse = infinity();
    delta = 0.0f;
  }
  store_global(static_cast<Bytes16*>(params.workspace) + query,
               Bytes16{{float_bits(lse * kLog2E), float_bits(delta), 0u, 0u}});
}

// Starts the copy of one tile of keys and values.
__device__ __forceinline__ void load_keys(u32 shared, const Params& params, const QueryTile& work,
                                          const KeyTiles& tiles) {
  const i64 head = work.head / params.group;
  load_tile<kTileKv, kHeadDim>(shared,
                               params.k + work.batch * params.k_batch_stride +
                                   head * params.k_head_stride + tiles.first * params.k_row_stride,
                               params.k_row_stride, params.seq_kv - tiles.first, params.aligned);
  load_tile<kTileKv, kHeadDimV>(shared + kStepKeysBytes,
                                params.v + work.batch * params.v_batch_stride +
                                    head * params.v_head_stride + tiles.first * params.v_row_stride,
                                params.v_row_stride, params.seq_kv - tiles.first, params.aligned);
}

// What a warp knows of its queries.
struct WarpRows {
  Statistics statistics[kRowTiles][2];  // of this lane's rows
  float slope;
  int position;  // of this lane's first row

  __device__ __forceinline__ void start(const Params& params, const QueryTile& work,
                                        int first_row) {
    const int lane_row = first_row + lane_index() / 4;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = lane_row + m * 16 + half * 8;
        statistics[m][half] = {infinity(), 0.0f};
        if (row < work.row_end)
          statistics[m][half] =
              unpack_statistics(load_global(statistics_of(params, work.batch, work.head, row)));
      }
    }
    slope = find_slope(params, work, score_factor(params));
    position = lane_row + params.q_position;
  }
};

// Turns the gradients of the weights of a tile into those of its scores.
__device__ __forceinline__ void find_row_gradients(const float (&scores)[kRowTiles][kKeyTiles][4],
                                                   float (&gradients)[kRowTiles][kKeyTiles][4],
                                                   const WarpRows& rows, const Params& params,
                                                   int first_key) {
  const float distance = static_cast<float>(first_key + lane_index() % 4 * 2 - rows.position);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Statistics& row = rows.statistics[m][i / 2];
        const float score = scores[m][n][i];
        const int step = (n - i / 2 - 2 * m) * 8 + i % 2;
        const float weight =
            find_weight(params, score, row.lse, rows.slope, distance + static_cast<float>(step));
        gradients[m][n][i] = score_gradient(params, weight, gradients[m][n][i], row.delta, score);
      }
    }
  }
}

// Sets the gradients of hidden scores to zero. `first_row` is the first of the warp's rows.
__device__ __forceinline__ void hide_gradients(float (&gradients)[kRowTiles][kKeyTiles][4],
                                               const Params& params, const QueryTile& work,
                                               const KeyTiles& tiles, int first_row) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + m * 16 + lane / 4 + i / 2 * 8;
        const int kv = tiles.first + n * 8 + lane % 4 * 2 + i % 2;
        if (!sees(params, work, tiles, row, kv)) gradients[m][n][i] = 0.0f;
      }
    }
  }
}

// One block computes kTileQ rows of dQ of one head. It walks over the keys in tiles.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    fw_dq(const __grid_constant__ Params params) {
  const QueryTile work = find_query_tile(params);
  const u32 queries = shared_memory();
  const u32 d_outputs = queries + kQueriesBytes;
  const u32 stages = queries + kQueriesBytes + kOutputsBytes;
  const int warp_row = warp_index() * 16 * kRowTiles;
  const int rows = work.row_end - work.row_begin;
  load_tile<kTileQ, kHeadDim>(queries,
                              params.q + work.batch * params.q_batch_stride +
                                  work.head * params.q_head_stride +
                                  work.row_begin * params.q_row_stride,
                              params.q_row_stride, rows, params.aligned);
  load_tile<kTileQ, kHeadDimV>(d_outputs,
                               params.d_o + work.batch * params.d_o_batch_stride +
                                   work.head * params.d_o_head_stride +
                                   work.row_begin * params.d_o_row_stride,
                               params.d_o_row_stride, rows, params.aligned);
  KeyTiles tiles;
  tiles.start(params, work);
  commit_copies();

  const u32 row_queries = query_address<kHeadDim>(queries, warp_row);
  const u32 row_outputs = query_address<kHeadDimV>(d_outputs, warp_row);
  WarpRows warp_rows;
  warp_rows.start(params, work, work.row_begin + warp_row);
  WarpKeys warp_keys;
  warp_keys.start(params, work, warp_row, 16 * kRowTiles);
  float sums[kRowTiles][kHeadDim / 8][4] = {};

  for (; !tiles.done; tiles.advance(params)) {
    // Every warp is done with the last tile: this one takes its place.
    synchronize_block();
    load_keys(stages, params, work, tiles);
    commit_copies();
    wait_copies<0>();
    synchronize_block();
    const u32 keys = stages;
    if (!warp_keys.visible(tiles)) continue;
    float scores[kRowTiles][kKeyTiles][4] = {}, gradients[kRowTiles][kKeyTiles][4] = {};
    multiply_rows<kHeadDim>(scores, row_queries, key_address<kHeadDim>(keys));
    multiply_rows<kHeadDimV>(gradients, row_outputs, key_address<kHeadDimV>(keys + kStepKeysBytes));
    find_row_gradients(scores, gradients, warp_rows, params, tiles.first);
    if (warp_keys.needs_test(tiles))
      hide_gradients(gradients, params, work, tiles, work.row_begin + warp_row);
    u32 packed[kRowTiles][kTileKv / kMmaK][4];
    pack_rows(packed, gradients);
    add_columns<kHeadDim>(sums, packed, value_address<kHeadDim>(keys));
  }

  // The results take the place of the queries, when their last reader is done.
  wait_copies<0>();
  synchronize_block();
  put_rows<kHeadDim>(queries, sums, gradient_factor(params), warp_row);
  synchronize_block();
  store_tile<kTileQ, kHeadDim>(params.dq + work.batch * params.dq_batch_stride +
                                   work.head * params.dq_head_stride +
                                   work.row_begin * params.dq_row_stride,
                               params.dq_row_stride, queries, rows, params.aligned);
}

// Starts the copy of one tile of queries, of the gradients of their outputs, and of their
// statistics.
__device__ __forceinline__ void load_queries(u32 shared, const Params& params, const KeyTile& work,
                                             const QueryTiles& tiles) {
  const int rows = params.seq_q - tiles.first;
  load_tile<kQueryStep, kHeadDim>(shared,
                                  params.q + work.batch * params.q_batch_stride +
                                      tiles.head * params.q_head_stride +
                                      tiles.first * params.q_row_stride,
                                  params.q_row_stride, rows, params.aligned);
  load_tile<kQueryStep, kHeadDimV>(shared + kStepQueriesBytes,
                                   params.d_o + work.batch * params.d_o_batch_stride +
                                       tiles.head * params.d_o_head_stride +
                                       tiles.first * params.d_o_row_stride,
                                   params.d_o_row_stride, rows, params.aligned);
  const Bytes16* const statistics = statistics_of(params, work.batch, tiles.head, tiles.first);
  for (int i = thread_index(); i < kQueryStep; i += kThreads)
    copy_async_16(shared + kStepBytes + i * kStatisticsBytes, statistics + i, i < rows);
}

// What a warp knows of its keys with the queries at hand.
struct WarpPairs {
  int first_key;   // of the warp
  u32 statistics;  // of the queries, in shared memory
  float slope;
  float distance;  // from this lane's first query to its first key

  __device__ __forceinline__ void start(const Params& params, const KeyTile& work, int warp_row) {
    first_key = work.key_begin + warp_row;
  }

  // Goes on to the next tile of queries.
  __device__ __forceinline__ void advance(const Params& params, const KeyTile& work,
                                          const QueryTiles& tiles, u32 tile_statistics) {
    statistics = tile_statistics;
    const int lane = lane_index();
    slope = find_slope(params, {work.batch, tiles.head, 0, 0}, score_factor(params));
    distance =
        static_cast<float>(first_key + lane / 4 - tiles.first - lane % 4 * 2 - params.q_position);
  }
};

// Turns the scores of a tile into weights, and the gradients of weights into those of scores.
__device__ __forceinline__ void find_column_gradients(
    float (&scores)[kKeyRowTiles][kQueryTiles][4], float (&gradients)[kKeyRowTiles][kQueryTiles][4],
    const WarpPairs& pairs, const Params& params) {
  const u32 first = pairs.statistics + lane_index() % 4 * 2 * kStatisticsBytes;
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const Statistics column =
          unpack_statistics(load_shared_16(first + (n * 8 + j) * kStatisticsBytes));
#pragma unroll
      for (int i = 0; i < 2 * kKeyRowTiles; ++i) {
        float& score = scores[i / 2][n][i % 2 * 2 + j];
        float& gradient = gradients[i / 2][n][i % 2 * 2 + j];
        const int step = (i - n) * 8 - j;
        const float weight = find_weight(params, score, column.lse, pairs.slope,
                                         pairs.distance + static_cast<float>(step));
        gradient = score_gradient(params, weight, gradient, column.delta, score);
        score = weight;
      }
    }
  }
}

// Sets the weights of hidden pairs, and the gradients of their scores, to zero. `first_key` is the
// first of the warp's keys.
__device__ __forceinline__ void hide_pairs(float (&weights)[kKeyRowTiles][kQueryTiles][4],
                                           float (&gradients)[kKeyRowTiles][kQueryTiles][4],
                                           const Params& params, const KeyTile& work,
                                           const QueryTiles& tiles, int first_key) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kKeyRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int kv = first_key + m * 16 + lane / 4 + i / 2 * 8;
        const int row = tiles.first + n * 8 + lane % 4 * 2 + i % 2;
        if (!seen(params, work, tiles, row, kv)) weights[m][n][i] = gradients[m][n][i] = 0.0f;
      }
    }
  }
}

// Starts the copy of the keys and values that a block owns.
__device__ __forceinline__ void load_own_keys(u32 keys, const Params& params, const KeyTile& work) {
  const int rows = work.key_end - work.key_begin;
  load_tile<kKeysPerBlock, kHeadDim>(keys,
                                     params.k + work.batch * params.k_batch_stride +
                                         work.head * params.k_head_stride +
                                         work.key_begin * params.k_row_stride,
                                     params.k_row_stride, rows, params.aligned);
  load_tile<kKeysPerBlock, kHeadDimV>(keys + kKeysBytes,
                                      params.v + work.batch * params.v_batch_stride +
                                          work.head * params.v_head_stride +
                                          work.key_begin * params.v_row_stride,
                                      params.v_row_stride, rows, params.aligned);
}

// The sums of a warp, those of both gradients or of one.
template <bool kForKeys, bool kForValues>
struct KeySums {
  float dk[kKeyRowTiles][kForKeys ? kHeadDim / 8 : 1][4];
  float dv[kKeyRowTiles][kForValues ? kHeadDimV / 8 : 1][4];
};

// Adds what one tile of queries gives.
template <bool kForKeys, bool kForValues>
__device__ __forceinline__ void add_queries(KeySums<kForKeys, kForValues>& sums,
                                            const Params& params, const KeyTile& work,
                                            const QueryTiles& tiles, const WarpPairs& pairs,
                                            bool test, u32 keys, u32 queries) {
  const u32 values = keys + kKeysBytes, d_outputs = queries + kStepQueriesBytes;
  const int warp_row = warp_index() * 16 * kKeyRowTiles;
  float scores[kKeyRowTiles][kQueryTiles][4] = {}, gradients[kKeyRowTiles][kQueryTiles][4] = {};
  multiply_rows<kHeadDim>(scores, query_address<kHeadDim>(keys, warp_row),
                          key_address<kHeadDim>(queries));
  if (kForKeys && params.dk != nullptr)
    multiply_rows<kHeadDimV>(gradients, query_address<kHeadDimV>(values, warp_row),
                             key_address<kHeadDimV>(d_outputs));
  find_column_gradients(scores, gradients, pairs, params);
  if (test) hide_pairs(scores, gradients, params, work, tiles, pairs.first_key);
  u32 packed[kKeyRowTiles][kQueryStep / kMmaK][4];
  if constexpr (kForValues) {
    if (params.dv != nullptr) {
      pack_rows(packed, scores);
      add_columns<kHeadDimV>(sums.dv, packed, value_address<kHeadDimV>(d_outputs));
    }
  }
  if constexpr (kForKeys) {
    if (params.dk != nullptr) {
      pack_rows(packed, gradients);
      add_columns<kHeadDim>(sums.dk, packed, value_address<kHeadDim>(queries));
    }
  }
}

// Writes what a block has summed up. It takes the place of its keys and values.
template <bool kForKeys, bool kForValues>
__device__ __forceinline__ void write_sums(const KeySums<kForKeys, kForValues>& sums,
                                           const Params& params, const KeyTile& work, u32 keys) {
  const u32 values = keys + kKeysBytes;
  const int warp_row = warp_index() * 16 * kKeyRowTiles, rows = work.key_end - work.key_begin;
  if constexpr (kForKeys) put_rows<kHeadDim>(keys, sums.dk, gradient_factor(params), warp_row);
  if constexpr (kForValues) put_rows<kHeadDimV>(values, sums.dv, 1.0f, warp_row);
  synchronize_block();
  if (kForKeys && params.dk != nullptr)
    store_tile<kKeysPerBlock, kHeadDim>(params.dk + work.batch * params.dk_batch_stride +
                                            work.head * params.dk_head_stride +
                                            work.key_begin * params.dk_row_stride,
                                        params.dk_row_stride, keys, rows, params.aligned);
  if (kForValues && params.dv != nullptr)
    store_tile<kKeysPerBlock, kHeadDimV>(params.dv + work.batch * params.dv_batch_stride +
                                             work.head * params.dv_head_stride +
                                             work.key_begin * params.dv_row_stride,
                                         params.dv_row_stride, values, rows, params.aligned);
}

// Computes kKeysPerBlock rows of dK, of dV, or of both, of one key head: walks over the queries, in
// tiles, of all heads that share it.
template <bool kForKeys, bool kForValues>
__device__ __forceinline__ void sum_over_queries(const Params& params) {
  const KeyTile work = find_key_tile(params);
  const u32 keys = shared_memory(), stages = keys + kKeysBytes + kValuesBytes;
  const int warp_row = warp_index() * 16 * kKeyRowTiles;
  load_own_keys(keys, params, work);
  QueryTiles tiles;
  tiles.start(params, work);
  commit_copies();
  WarpQueries warp_queries;
  warp_queries.start(params, work, warp_row, 16 * kKeyRowTiles);
  WarpPairs pairs;
  pairs.start(params, work, warp_row);
  KeySums<kForKeys, kForValues> sums = {};

  for (; !tiles.done; tiles.advance(params, work)) {
    // Every warp is done with the last tile: this one takes its place.
    synchronize_block();
    load_queries(stages, params, work, tiles);
    commit_copies();
    wait_copies<0>();
    synchronize_block();
    const u32 queries = stages;
    if (!warp_queries.visible(tiles)) continue;
    pairs.advance(params, work, tiles, queries + kStepBytes);
    add_queries(sums, params, work, tiles, pairs, warp_queries.needs_test(tiles), keys, queries);
  }

  // The last reader of the keys is done.
  wait_copies<0>();
  synchronize_block();
  write_sums(sums, params, work, keys);
}

// One block computes kKeysPerBlock rows of dK and of dV.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    fw_dk_dv(const __grid_constant__ Params params) {
  sum_over_queries<true, true>(params);
}
