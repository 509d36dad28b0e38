// Unfused attention forward for sm_80: fp32, head dim 128, no mask, dropout.
// Tiles of 32 queries by 32 keys, 2 warps; all scores pass through memory.
// Launch fw_scores: ceil_div(seq_q, 32) * ceil_div(seq_kv, 32) * heads_q * batch blocks of 64
//     threads, 33792 bytes of dynamic shared memory.
// Launch fw_softmax: ceil_div(batch * heads_q * seq_q, 2) blocks of 64 threads, 0 bytes of dynamic
//     shared memory.
// Launch fw_output: ceil_div(seq_q, 32) * heads_q * batch blocks of 64 threads, 21504 bytes of
//     dynamic shared memory.
// Workspace: batch * heads_q * seq_q * ceil_div(seq_kv, 8) * 32 bytes.
// flashwright 0.1.0. This emitted file may be used under any licence.

using u32 = unsigned int;

using u64 = unsigned long long;

using i64 = long long;

constexpr int kTileQ = 32;      // query rows per block
constexpr int kTileKv = 32;     // keys per step
constexpr int kHeadDim = 128;   // of queries and keys
constexpr int kHeadDimV = 128;  // of values and outputs
constexpr int kWarps = 2;       // per block
constexpr int kThreads = 32 * kWarps;

constexpr int kElementBytes = 4;                           // fp32
constexpr int kMmaK = 8;                                   // depth of one tensor core step
constexpr int kRowTiles = kTileQ / (16 * kWarps);          // tiles of 16 rows that a warp owns
constexpr int kKeyTiles = kTileKv / 8;                     // accumulator tiles along the keys
constexpr int kKeySteps = kTileKv / kMmaK;                 // tensor core steps along the keys
constexpr int kDimTiles = kHeadDimV / 8;                   // accumulator tiles along the head dim
constexpr int kDimSteps = (kHeadDim + kMmaK - 1) / kMmaK;  // tensor core steps along it

constexpr float kLn2 = 0.6931471805599453f;
constexpr float kLog2E = 1.4426950408889634f;

// Bytes of a row in shared memory: whole tensor core steps, and an odd number of 16-byte chunks,
// so that the eight rows of a matrix start in different banks.
__device__ constexpr int row_bytes(int columns) {
  return ((columns + kMmaK - 1) / kMmaK * kMmaK * kElementBytes / 16 | 1) * 16;
}

constexpr int kKeysOffset = kTileQ * row_bytes(kHeadDim);  // behind the queries
constexpr int kScoresBytes = kKeysOffset + kTileKv * row_bytes(kHeadDim);
constexpr int kValuesOffset = kTileQ * row_bytes(kTileKv);  // behind the weights
constexpr int kOutputBytes = kValuesOffset + kTileKv * row_bytes(kHeadDimV);

static_assert(kScoresBytes == 33792, "the launch plan says so");

static_assert(kOutputBytes == 21504, "the launch plan says so");

using Element = float;

// What the host fills in for each launch.
struct Params {
  const Element* q;                                 // (batch, seq_q, heads_q, head_dim)
  const Element* k;                                 // (batch, seq_kv, heads_kv, head_dim)
  const Element* v;                                 // (batch, seq_kv, heads_kv, head_dim_v)
  Element* o;                                       // (batch, seq_q, heads_q, head_dim_v)
  float* lse;                                       // (batch, heads_q, seq_q), natural log, or null
  void* workspace;                                  // as large as asked, 256-byte aligned
  i64 q_batch_stride, q_row_stride, q_head_stride;  // strides count elements
  i64 k_batch_stride, k_row_stride, k_head_stride;
  i64 v_batch_stride, v_row_stride, v_head_stride;
  i64 o_batch_stride, o_row_stride, o_head_stride;
  i64 lse_batch_stride, lse_head_stride;
  int batch, heads_q;
  int group;  // query heads that share a key head
  int seq_q, seq_kv;
  float softmax_scale;   // factor of the scores
  u32 drop_threshold;    // of 256: a weight is dropped when its byte is below
  float keep_scale;      // 256 / (256 - drop_threshold)
  u64 dropout_key;       // seed + offset * 0x9E3779B97F4A7C15
  const u64* rng_state;  // {seed, offset} in device memory; null: use dropout_key
  int aligned;           // 1: every row starts on a multiple of 16 bytes
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

// The value of another lane.
__device__ __forceinline__ u32 shuffle(u32 value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

// The larger of two numbers; a NaN loses against a number.
__device__ __forceinline__ float larger_float(float a, float b) {
  float value;
  asm("max.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
  return value;
}

// 2^x with a relative error below 2^-22; results below 2^-126 become 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}

// log2(x) with an absolute error below 2^-22 near 1 and a relative one elsewhere.
__device__ __forceinline__ float log2_approx(float x) {
  float value;
  asm("lg2.approx.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
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

__device__ __forceinline__ float to_element(float value) { return value; }

__device__ __forceinline__ float to_float(float element) { return element; }

// True in the bits where at least two of the three words are true.
__device__ __forceinline__ u32 majority(u32 a, u32 b, u32 c) { return (a & b) | (a & c) | (b & c); }

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

__device__ __forceinline__ void store_shared_float(u32 address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
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

// Eight random words: Philox 4x32 with seven rounds (Salmon et al., 2011), called twice. The two
// counters, and so the first half of a round, differ in their last word alone.
struct Philox {
  u32 word[2][4];
};

__device__ __forceinline__ Philox philox(u32 query, u32 key_word, u32 head, u64 key) {
  u32 key0 = static_cast<u32>(key), key1 = static_cast<u32>(key >> 32);
  Philox x = {{{query, key_word, head, 0}, {query, key_word, head, 1}}};
#pragma unroll
  for (int round = 0; round < 7; ++round) {
#pragma unroll
    for (int call = 0; call < 2; ++call) {
      u32(&word)[4] = x.word[call];
      const u64 product0 = static_cast<u64>(word[0]) * 0xD2511F53u;
      const u64 product1 = static_cast<u64>(word[2]) * 0xCD9E8D57u;
      word[0] = static_cast<u32>(product1 >> 32) ^ word[1] ^ key0;
      word[1] = static_cast<u32>(product1);
      word[2] = static_cast<u32>(product0 >> 32) ^ word[3] ^ key1;
      word[3] = static_cast<u32>(product0);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return x;
}

// Bit j is set when key 32 * key_word + j is kept for this query. Each of the 32 keys has drawn one
// byte, spread over the bits j of eight words; it is dropped when the byte is below the threshold.
__device__ __forceinline__ u32 keep_word(u64 key, u32 head, u32 query, u32 key_word,
                                         u32 threshold) {
  const Philox drawn = philox(query, key_word, head, key);
  u32 borrow = 0;  // of byte - threshold, for 32 bytes at once, from the lowest bit up
#pragma unroll
  for (int bit = 0; bit < 8; ++bit) {
    const u32 plane = drawn.word[bit < 4 ? 1 : 0][bit < 4 ? 3 - bit : 7 - bit];
    const u32 limit = static_cast<u32>(static_cast<int>(threshold << (31 - bit)) >> 31);
    borrow = majority(~plane, limit, borrow);
  }
  return ~borrow;
}

// The key of the launch: from the state in memory, if there is one, so that a captured graph draws
// new bits at every replay.
__device__ __forceinline__ u64 find_dropout_key(const Params& params) {
  if (params.rng_state == nullptr) return params.dropout_key;
  return load_global(params.rng_state) + load_global(params.rng_state + 1) * 0x9E3779B97F4A7C15ull;
}

// Two neighbouring elements.
struct alignas(8) Pair {
  float first, second;
};

__device__ __forceinline__ void store_shared_element(u32 address, float value) {
  store_shared_float(address, value);
}

// Writes two neighbouring results to memory, at once where their address allows it.
__device__ __forceinline__ void store_global_pair(float* target, float first, float second,
                                                  bool aligned) {
  if (aligned) {
    store_global(reinterpret_cast<Pair*>(target), Pair{first, second});
  } else {
    store_global(target, first);
    store_global(target + 1, second);
  }
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

// Weights of 16 rows by one K-step from a tile of kTileKv columns in shared memory, keys in the
// order of load_values.
__device__ __forceinline__ void load_weights(u32 (&a)[4], u32 tile, int first_row, int step) {
  const int lane = lane_index();
  const u32 address =
      tile + (first_row + lane / 4) * row_bytes(kTileKv) + (step * 8 + lane % 4 * 2) * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    a[i] = float_bits(load_shared_float(address + i % 2 * 8 * row_bytes(kTileKv) + i / 2 * 4));
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

// Starts the copy of a kRows x kColumns part of a matrix whose rows start on 16 bytes. What lies
// behind `rows` or `columns` becomes zeros.
template <int kRows, int kColumns>
__device__ __forceinline__ void load_columns(u32 shared, const Element* global, i64 row_stride,
                                             int rows, int columns) {
  constexpr int kElements = 16 / kElementBytes;  // of a chunk
  constexpr int kChunks = kColumns / kElements;
  for (int i = thread_index(); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, column = i % kChunks * kElements;
    const u32 target = shared + row * row_bytes(kColumns) + column * kElementBytes;
    if (row < rows && column + kElements <= columns) {
      copy_async_16(target, global + row * row_stride + column, true);
      continue;
    }
    for (int j = 0; j < kElements; ++j) {
      const bool valid = row < rows && column + j < columns;
      store_shared_element(target + j * kElementBytes,
                           valid ? load_global(global + row * row_stride + column + j) : Element{});
    }
  }
}

// The tensor cores cut off, with every sum, what does not fit into it. Sums of a few steps lose
// little by that; they are then added with rounding.
constexpr int kPartSteps = 4;

// sums[m][first + n] += parts[m][n]
template <int kTiles, int kParts>
__device__ __forceinline__ void add_parts(float (&sums)[kRowTiles][kTiles][4],
                                          const float (&parts)[kRowTiles][kParts][4], int first) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first + n < kTiles) sums[m][first + n][i] += parts[m][n][i];
    }
  }
}

// scores += Q * K^T over kSteps tensor core steps along the head dimension.
template <int kSteps>
__device__ __forceinline__ void add_products(float (&scores)[kRowTiles][kKeyTiles][4], u32 queries,
                                             u32 keys) {
  float parts[kRowTiles][kKeyTiles][4] = {};
#pragma unroll
  for (int d = 0; d < kSteps; ++d) {
    u32 a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
      load_matrices(a[m], queries + m * 16 * row_bytes(kHeadDim) + d * 32);
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      u32 b[4];
      load_matrices(b, keys + n * 8 * row_bytes(kHeadDim) + d * 32);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_add(parts[m][n], a[m], b[0], b[1]);
        multiply_add(parts[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
  add_parts(scores, parts, 0);
}

// scores = Q * K^T for the rows of this warp.
__device__ __forceinline__ void multiply_queries_keys(float (&scores)[kRowTiles][kKeyTiles][4],
                                                      u32 queries, u32 keys) {
  constexpr int kWhole = kDimSteps / kPartSteps, kRest = kDimSteps % kPartSteps;
#pragma unroll 1
  for (int part = 0; part < kWhole; ++part)
    add_products<kPartSteps>(scores, queries + part * kPartSteps * 32,
                             keys + part * kPartSteps * 32);
  if constexpr (kRest > 0)
    add_products<kRest>(scores, queries + kWhole * kPartSteps * 32,
                        keys + kWhole * kPartSteps * 32);
}

// out += weights * V for the rows of this warp.
__device__ __forceinline__ void multiply_weights_values(
    float (&out)[kRowTiles][kDimTiles][4], const u32 (&weights)[kRowTiles][kKeySteps][4],
    u32 values) {
#pragma unroll
  for (int n = 0; n < kDimTiles; n += 2) {
#pragma unroll
    for (int begin = 0; begin < kKeySteps; begin += kPartSteps) {
      float parts[kRowTiles][2][4] = {};
#pragma unroll
      for (int step = begin; step < begin + kPartSteps && step < kKeySteps; ++step) {
        u32 b[4];
        load_values<kHeadDimV>(b,
                               values + step * kMmaK * row_bytes(kHeadDimV) + n * 8 * kElementBytes,
                               n + 1 < kDimTiles);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          multiply_add(parts[m][0], weights[m][step], b[0], b[1]);
          if (n + 1 < kDimTiles) multiply_add(parts[m][1], weights[m][step], b[2], b[3]);
        }
      }
      add_parts(out, parts, n);
    }
  }
}

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
