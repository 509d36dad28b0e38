// Attention forward for sm_80: bf16, head dim 8, of values 64, no mask.
// Tiles of 128 queries by 16 keys, 1 stage, 4 warps, queries in registers. 18.0 KiB of shared
//     memory.
// Launch fw_forward: ceil_div(seq_q, 128) * heads_q * batch blocks of 128 threads, 18432 bytes of
//     dynamic shared memory.
// Regenerate: flashwright emit --dtype bf16 --head-dim 8 --head-dim-v 64 --target sm_80 --schedule
//     q128.kv16.w4.st1.qr1.b2
// flashwright 0.1.0. This emitted file may be used under any licence.

using u16 = unsigned short;

using u32 = unsigned int;

using i64 = long long;

// Sixteen bytes, the widest access to memory.
struct alignas(16) Bytes16 {
  u32 word[4];
};

constexpr int kTileQ = 128;    // query rows per block
constexpr int kTileKv = 16;    // keys per step
constexpr int kHeadDim = 8;    // of queries and keys
constexpr int kHeadDimV = 64;  // of values and outputs
constexpr int kWarps = 4;      // per block
constexpr int kThreads = 32 * kWarps;
constexpr int kBlocksPerSm = 2;  // resident together, asked of the compiler
constexpr int kStages = 1;       // key and value tiles in flight

constexpr int kElementBytes = 2;                           // bf16
constexpr int kMmaK = 16;                                  // depth of one tensor core step
constexpr int kRowTiles = kTileQ / (16 * kWarps);          // tiles of 16 rows that a warp owns
constexpr int kKeyTiles = kTileKv / 8;                     // accumulator tiles along the keys
constexpr int kKeySteps = kTileKv / kMmaK;                 // tensor core steps along the keys
constexpr int kDimTiles = kHeadDimV / 8;                   // accumulator tiles along the head dim
constexpr int kDimSteps = (kHeadDim + kMmaK - 1) / kMmaK;  // tensor core steps along it

constexpr float kLn2 = 0.6931471805599453f;
constexpr float kLargeExponent = 256.0f;  // from here on one rounding would show

// Bytes of a row in shared memory: whole tensor core steps, and an odd number of 16-byte chunks,
// so that the eight rows of a matrix start in different banks.
__device__ constexpr int row_bytes(int columns) {
  return ((columns + kMmaK - 1) / kMmaK * kMmaK * kElementBytes / 16 | 1) * 16;
}

constexpr int kKeysBytes = kTileKv * row_bytes(kHeadDim);  // one stage
constexpr int kKeysOffset = 0;                             // the queries have left by then
constexpr int kValuesOffset = kKeysOffset + kStages * kKeysBytes;
constexpr int kSharedBytes = kTileQ * row_bytes(kHeadDimV);  // for the output at the end

static_assert(kSharedBytes == 18432, "the launch plan says so");

using Element = u16;

// What the host fills in for each launch.
struct Params {
  const Element* q;                                 // (batch, seq_q, heads_q, head_dim)
  const Element* k;                                 // (batch, seq_kv, heads_kv, head_dim)
  const Element* v;                                 // (batch, seq_kv, heads_kv, head_dim_v)
  Element* o;                                       // (batch, seq_q, heads_q, head_dim_v)
  float* lse;                                       // (batch, heads_q, seq_q), natural log, or null
  i64 q_batch_stride, q_row_stride, q_head_stride;  // strides count elements
  i64 k_batch_stride, k_row_stride, k_head_stride;
  i64 v_batch_stride, v_row_stride, v_head_stride;
  i64 o_batch_stride, o_row_stride, o_head_stride;
  i64 lse_batch_stride, lse_head_stride;
  int heads_q;
  int group;  // query heads that share a key head
  int seq_q, seq_kv;
  float scale_log2;  // softmax_scale * log2(e)
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

// True in every lane when `condition` holds in some lane of the warp.
__device__ __forceinline__ bool any_lane(bool condition) {
  return __any_sync(0xffffffffu, condition);
}

__device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }

// The larger of two numbers; a NaN loses against a number.
__device__ __forceinline__ float larger_float(float a, float b) {
  float value;
  asm("max.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
  return value;
}

__device__ __forceinline__ float magnitude(float a) {
  float value;
  asm("abs.f32 %0, %1;" : "=f"(value) : "f"(a));
  return value;
}

// a * b, rounded, and never fused with what follows.
__device__ __forceinline__ float multiply(float a, float b) {
  float value;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
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

// log2(x) with an absolute error below 2^-22 near 1 and a relative one elsewhere.
__device__ __forceinline__ float log2_approx(float x) {
  float value;
  asm("lg2.approx.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}

__device__ __forceinline__ float bits_float(u32 bits) {
  float value;
  asm("mov.b32 %0, %1;" : "=f"(value) : "r"(bits));
  return value;
}

__device__ __forceinline__ float infinity() { return bits_float(0x7f800000u); }

// Two floats rounded to a pair of elements, the first in the low half.
__device__ __forceinline__ u32 pack_pair(float first, float second) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

// Address of the block's dynamic shared memory.
__device__ __forceinline__ u32 shared_memory() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return static_cast<u32>(__cvta_generic_to_shared(bytes));
}

__device__ __forceinline__ u16 load_shared_u16(u32 address) {
  u16 value;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address));
  return value;
}

__device__ __forceinline__ Bytes16 load_shared_16(u32 address) {
  Bytes16 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "r"(address));
  return v;
}

__device__ __forceinline__ void store_shared_u16(u32 address, u16 value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}

__device__ __forceinline__ void store_shared_u32(u32 address, u32 value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
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

// The same, each matrix transposed; 16-bit elements only.
__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// d += a * b for a 16 x 16 and a 16 x 8 matrix. d holds (row g, columns 2t and 2t+1), then row g
// + 8.
__device__ __forceinline__ void multiply_add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Keys of a range of query rows: [begin, end) are those that some of its rows may see,
// [full_begin, full_end) those that all of them see.
struct KeyRange {
  int begin, end;
  int full_begin, full_end;
};

__device__ __forceinline__ KeyRange visible_keys(const Params& params, int first_row,
                                                 int last_row) {
  KeyRange keys;
  keys.begin = 0;
  keys.end = params.seq_kv;
  keys.full_begin = 0;
  keys.full_end = params.seq_kv;
  return keys;
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
  return kv < params.seq_kv;
}

__device__ __forceinline__ void store_shared_element(u32 address, u16 value) {
  store_shared_u16(address, value);
}

__device__ __forceinline__ u16 load_shared_element(u32 address) { return load_shared_u16(address); }

// Writes two neighbouring results of a row.
__device__ __forceinline__ void store_shared_pair(u32 address, float first, float second) {
  store_shared_u32(address, pack_pair(first, second));
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

// Address that this lane gives to load one K-step of 16 keys by 16 dims, transposed.
template <int kColumns>
__device__ __forceinline__ u32 value_address(u32 tile) {
  const int lane = lane_index();
  return tile + lane % 16 * row_bytes(kColumns) + lane / 16 * 16;
}

// Values of one K-step (16 keys) by 16 dims: b[0..1] for the first eight dims, b[2..3] for the
// others.
template <int kColumns>
__device__ __forceinline__ void load_values(u32 (&b)[4], u32 address) {
  load_matrices_transposed(b, address);
}

// The weights as left operands, one for each K-step: the accumulators of two key tiles, rounded.
__device__ __forceinline__ void pack_weights(u32 (&packed)[kRowTiles][kKeySteps][4],
                                             const float (&weights)[kRowTiles][kKeyTiles][4]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      packed[m][n / 2][n % 2 * 2] = pack_pair(weights[m][n][0], weights[m][n][1]);
      packed[m][n / 2][n % 2 * 2 + 1] = pack_pair(weights[m][n][2], weights[m][n][3]);
    }
  }
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

// What a row has seen so far.
struct RowState {
  float max;  // largest score, unscaled
  float sum;  // this lane's part of sum(2^(scale_log2 * (score - max)))
};

// The largest value among the four lanes of a quad.
__device__ __forceinline__ float quad_max(float value) {
  value = larger_float(value, shuffle_xor(value, 1));
  return larger_float(value, shuffle_xor(value, 2));
}

// The sum over the four lanes of a quad.
__device__ __forceinline__ float quad_sum(float value) {
  value += shuffle_xor(value, 1);
  return value + shuffle_xor(value, 2);
}

// Hides the scores of keys that a row must not see. `first_row` is the first of the warp's rows.
__device__ __forceinline__ void mask_scores(float (&scores)[kRowTiles][kKeyTiles][4],
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
        if (!sees(params, work, tiles, row, kv)) scores[m][n][i] = -infinity();
      }
    }
  }
}

// The error of one rounding grows with the product. Where it would show, the maximum is subtracted
// from the scores first, which is exact.
template <int kTiles>
__device__ __forceinline__ void subtract_max(float (&scores)[kRowTiles][kTiles][4],
                                             const RowState (&rows)[kRowTiles][2],
                                             const float (&max)[kRowTiles][2],
                                             float (&shift)[kRowTiles][2],
                                             float (&rescale)[kRowTiles][2], float scale_log2) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float reference = max[m][half] == -infinity() ? 0.0f : max[m][half];
      shift[m][half] = 0.0f;
      rescale[m][half] = exp2_approx((rows[m][half].max - reference) * scale_log2);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        scores[m][n][2 * half] -= reference;
        scores[m][n][2 * half + 1] -= reference;
      }
    }
  }
}

// Turns scores into weights 2^(scale_log2 * (score - max)) and updates the rows. Returns in
// `rescale` by what earlier sums and outputs of a row have to be multiplied, as its maximum may
// have grown. All rows go through each step together: their chains of instructions hide each
// other's latency.
template <int kTiles>
__device__ __forceinline__ void online_softmax(float (&scores)[kRowTiles][kTiles][4],
                                               RowState (&rows)[kRowTiles][2],
                                               float (&rescale)[kRowTiles][2], float scale_log2) {
  float max[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      max[m][half] = rows[m][half].max;
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        max[m][half] = larger_float(
            max[m][half], larger_float(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
    }
  }
  // The weights are relative to the rounded product scale_log2 * max, and so is the rescaling: a
  // maximum that has not grown gives a factor of exactly 1.
  float shift[kRowTiles][2];  // 0 while a row has seen no key
  bool large = false;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      max[m][half] = quad_max(max[m][half]);
      shift[m][half] = max[m][half] == -infinity() ? 0.0f : multiply(max[m][half], scale_log2);
      rescale[m][half] = exp2_approx(multiply(rows[m][half].max, scale_log2) - shift[m][half]);
      large = large || magnitude(shift[m][half]) > kLargeExponent;
    }
  }
  if (any_lane(large)) subtract_max(scores, rows, max, shift, rescale, scale_log2);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[m][n][i] =
              exp2_approx(fused_multiply_add(scores[m][n][i], scale_log2, -shift[m][half]));
          sum += scores[m][n][i];
        }
      }
      rows[m][half].max = max[m][half];
      rows[m][half].sum = fused_multiply_add(rows[m][half].sum, rescale[m][half], sum);
    }
  }
}

// Multiplies the outputs of all rows.
__device__ __forceinline__ void rescale_output(float (&out)[kRowTiles][kDimTiles][4],
                                               const float (&rescale)[kRowTiles][2]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kDimTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[m][n][i] *= rescale[m][i / 2];
    }
  }
}

// scores = Q * K^T for the rows of this warp, whose queries are in registers.
__device__ __forceinline__ void multiply_queries_keys(float (&scores)[kRowTiles][kKeyTiles][4],
                                                      const u32 (&queries)[kRowTiles][kDimSteps][4],
                                                      u32 keys) {
#pragma unroll
  for (int d = 0; d < kDimSteps; ++d) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      u32 b[4];
      load_matrices(b, keys + n * 8 * row_bytes(kHeadDim) + d * 32);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_add(scores[m][n], queries[m][d], b[0], b[1]);
        multiply_add(scores[m][n + 1], queries[m][d], b[2], b[3]);
      }
    }
  }
}

// out += weights * V for the rows of this warp.
__device__ __forceinline__ void multiply_weights_values(
    float (&out)[kRowTiles][kDimTiles][4], const u32 (&weights)[kRowTiles][kKeySteps][4],
    u32 values) {
#pragma unroll
  for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
    for (int n = 0; n < kDimTiles; n += 2) {
      u32 b[4];
      load_values<kHeadDimV>(b,
                             values + step * kMmaK * row_bytes(kHeadDimV) + n * 8 * kElementBytes);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_add(out[m][n], weights[m][step], b[0], b[1]);
        if (n + 1 < kDimTiles) multiply_add(out[m][n + 1], weights[m][step], b[2], b[3]);
      }
    }
  }
}

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
  KeyTiles tiles;
  tiles.start(params, work);
  KeyTiles loads = tiles;  // runs ahead of the computation
  if (!loads.done) load_keys(keys, params, work, loads);
  commit_copies();

  WarpKeys warp_keys;
  warp_keys.start(params, work, warp_row, 16 * kRowTiles);
  const float scale_log2 = params.scale_log2;
  float out[kRowTiles][kDimTiles][4] = {};
  RowState rows[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) rows[m][0] = rows[m][1] = {-infinity(), 0.0f};

  for (; !tiles.done; tiles.advance(params)) {
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
    if (warp_keys.needs_test(tiles))
      mask_scores(scores, params, work, tiles, work.row_begin + warp_row);
    float rescale[kRowTiles][2];
    online_softmax(scores, rows, rescale, scale_log2);
    rescale_output(out, rescale);
    u32 weights[kRowTiles][kKeySteps][4];
    pack_weights(weights, scores);
    multiply_weights_values(out, weights, value_address<kHeadDimV>(tile_values));
  }

  // The results take the place of the queries; what follows the last tile must not overtake its
  // readers.
  wait_copies<0>();
  synchronize_block();
  write_output(out, rows, 1.0f, scale_log2, params, work, queries);
}
