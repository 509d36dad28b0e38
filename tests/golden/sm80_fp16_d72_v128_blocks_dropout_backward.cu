// Attention backward for sm_90a: fp16, head dim 72, of values 128, block-sparse mask, dropout.
// dQ in tiles of 64 queries by 32 keys; dK and dV in tiles of 64 keys by 16 queries; 2 stages, 4
//     warps. 56.0 and 42.5 KiB of shared memory.
// Launch fw_statistics: ceil_div(batch * heads_q * seq_q, 8) blocks of 128 threads, 0 bytes of
//     dynamic shared memory.
// Launch fw_dq: query_blocks * ceil_div(block_q, 64) * heads_q * batch * want_dq blocks of 128
//     threads, 57344 bytes of dynamic shared memory.
// Launch fw_dk_dv: ceil_div(seq_kv, block_kv) * ceil_div(block_kv, 64) * heads_kv * batch *
//     max(want_dk, want_dv) blocks of 128 threads, 43520 bytes of dynamic shared memory.
// Workspace: batch * heads_q * seq_q * 16 bytes.
// Regenerate: flashwright emit --direction backward --dtype fp16 --head-dim 72 --head-dim-v 128
//     --mask blocks --dropout 0.1 --target sm_90a --schedule q64.kv32.w4.st2.b1.kb64.qs16
// flashwright 0.1.0. This emitted file may be used under any licence.

using u16 = unsigned short;

using u32 = unsigned int;

using u64 = unsigned long long;

using i64 = long long;

// Sixteen bytes, the widest access to memory.
struct alignas(16) Bytes16 {
  u32 word[4];
};

constexpr int kTileQ = 64;         // queries per block of fw_dq
constexpr int kTileKv = 32;        // keys per step of it
constexpr int kKeysPerBlock = 64;  // keys per block that sums over queries
constexpr int kQueryStep = 16;     // queries per step of it
constexpr int kHeadDim = 72;       // of queries and keys
constexpr int kHeadDimV = 128;     // of values and outputs
constexpr int kWarps = 4;          // per block
constexpr int kThreads = 32 * kWarps;
constexpr int kBlocksPerSm = 1;  // resident together, asked of the compiler
constexpr int kStages = 2;       // tiles of a walk in flight

constexpr int kElementBytes = 2;                             // fp16
constexpr int kMmaK = 16;                                    // depth of one tensor core step
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

static_assert(kDqBytes == 57344, "the launch plan says so");

static_assert(kDkDvBytes == 43520, "the launch plan says so");

using Element = u16;

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
  float softmax_scale;               // factor of the scores
  float scale_log2;                  // softmax_scale * log2(e)
  int block_q;                       // queries of a mask block
  int block_kv;                      // keys of a mask block
  int query_blocks;                  // mask blocks along the queries
  int mask_batch;                    // batch entries with lists of their own, or 1
  int mask_heads;                    // heads with lists of their own, or 1
  const int* full_offsets;           // (mask_batch, mask_heads, query_blocks) + 1
  const int* full_columns;           // key blocks that are visible throughout
  const int* partial_offsets;        // (mask_batch, mask_heads, query_blocks) + 1
  const int* partial_columns;        // key blocks with a bit for each element
  const u32* partial_bits;           // (partial blocks, block_q, ceil(block_kv / 32))
  const int* full_query_offsets;     // (mask_batch, mask_heads, key_blocks) + 1
  const int* full_query_rows;        // query blocks that see all of a key block
  const int* partial_query_offsets;  // (mask_batch, mask_heads, key_blocks) + 1
  const int* partial_query_rows;     // query blocks that see a part of it
  const int* partial_query_places;   // where that block stands in partial_columns
  u32 drop_threshold;                // of 256: a weight is dropped when its byte is below
  float keep_scale;                  // 256 / (256 - drop_threshold)
  u64 dropout_key;                   // seed + offset * 0x9E3779B97F4A7C15
  const u64* rng_state;              // {seed, offset} in device memory; null: use dropout_key
  int aligned;                       // 1: every row starts on a multiple of 16 bytes
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

__device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }

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

// Two floats rounded to a pair of elements, the first in the low half.
__device__ __forceinline__ u32 pack_pair(float first, float second) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

__device__ __forceinline__ float to_float(u16 element) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(element));
  return value;
}

// True in the bits where at least two of the three words are true.
__device__ __forceinline__ u32 majority(u32 a, u32 b, u32 c) { return (a & b) | (a & c) | (b & c); }

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
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A tile of query rows of one head. Positions count from the first key: row i sits at i +
// q_position.
struct QueryTile {
  int batch;
  int head;
  int row_begin, row_end;  // rows [row_begin, row_end) exist
};

// Blocks are numbered with the query tiles of a head next to each other, so that blocks which run
// at the same time read the same keys. A query tile never reaches into the next mask block.
__device__ __forceinline__ QueryTile find_query_tile(const Params& params) {
  const int tiles_per_block = (params.block_q + kTileQ - 1) / kTileQ;
  const int tiles = params.query_blocks * tiles_per_block;
  const int tile = static_cast<int>(block_index() % tiles);
  const i64 head = block_index() / tiles;
  const i64 block_begin = static_cast<i64>(tile / tiles_per_block) * params.block_q;
  const i64 block_end = block_begin + params.block_q;
  QueryTile work;
  work.batch = static_cast<int>(head / params.heads_q);
  work.head = static_cast<int>(head % params.heads_q);
  work.row_begin = static_cast<int>(block_begin) + tile % tiles_per_block * kTileQ;
  work.row_end = block_end < params.seq_q ? static_cast<int>(block_end) : params.seq_q;
  return work;
}

// Walks over the key tiles of one query tile: through the partial mask blocks, then through the
// full ones. A mask block is cut into tiles of kTileKv keys, the last of which may reach behind its
// end.
struct KeyTiles {
  const int* next;  // columns still to come
  const int* list_end;
  int full_next, full_end;  // positions of the full list, which follows the partial one
  int partial;              // number of the partial block at hand; -1 in a full block
  int block_begin;          // first key of the mask block at hand
  int first;                // first key of the tile at hand
  int end;                  // keys of the mask block end here
  bool done;

  __device__ __forceinline__ void start(const Params& params, const QueryTile& work) {
    const int row =
        (work.batch % params.mask_batch * params.mask_heads + work.head % params.mask_heads) *
            params.query_blocks +
        work.row_begin / params.block_q;
    full_next = load_global(params.full_offsets + row);
    full_end = load_global(params.full_offsets + row + 1);
    next = params.partial_columns + load_global(params.partial_offsets + row);
    list_end = params.partial_columns + load_global(params.partial_offsets + row + 1);
    partial = 0;
    done = false;
    next_block(params);
  }

  __device__ __forceinline__ void advance(const Params& params) {
    first += kTileKv;
    if (first >= end) next_block(params);
  }

  __device__ __forceinline__ void next_block(const Params& params) {
    const int columns = (params.seq_kv + params.block_kv - 1) / params.block_kv;
    while (true) {
      if (next == list_end) {
        if (partial < 0) {
          done = true;
          return;
        }
        partial = -1;
        next = params.full_columns + full_next;
        list_end = params.full_columns + full_end;
        continue;
      }
      if (partial >= 0) partial = static_cast<int>(next - params.partial_columns);
      const int column = load_global(next);
      ++next;
      if (column < 0 || column >= columns) continue;  // padding of the list
      const i64 block_end = static_cast<i64>(column + 1) * params.block_kv;
      block_begin = first = column * params.block_kv;
      end = block_end < params.seq_kv ? static_cast<int>(block_end) : params.seq_kv;
      return;
    }
  }
};

// What the rows of one warp see of a tile.
struct WarpKeys {
  __device__ __forceinline__ void start(const Params& params, const QueryTile& work, int warp_row,
                                        int rows) {}

  // Whether the warp has to compute the tile at all.
  __device__ __forceinline__ bool visible(const KeyTiles& tiles) const { return true; }

  // Whether some key of the tile may be invisible to some of its rows.
  __device__ __forceinline__ bool needs_test(const KeyTiles& tiles) const {
    return tiles.partial >= 0 || tiles.first + kTileKv > tiles.end;
  }
};

// Whether row `row` of the query tile sees key `kv` of the tile at hand.
__device__ __forceinline__ bool sees(const Params& params, const QueryTile& work,
                                     const KeyTiles& tiles, int row, int kv) {
  if (kv >= tiles.end) return false;
  if (tiles.partial < 0) return true;
  const int last_row =
      smaller(row, work.row_end - 1);  // rows behind the end are computed, never stored
  const int words = (params.block_kv + 31) / 32;
  const i64 bit_row = static_cast<i64>(tiles.partial) * params.block_q + last_row % params.block_q;
  const int key = kv - tiles.block_begin;
  return (load_global(params.partial_bits + bit_row * words + key / 32) >> key % 32 & 1) != 0;
}

// A tile of keys of one key head.
struct KeyTile {
  int batch;
  int head;                // of the keys
  int key_begin, key_end;  // keys [key_begin, key_end) exist
};

// Blocks are numbered with the key tiles of a head next to each other, so that blocks which run at
// the same time read the same queries. A key tile never reaches into the next mask block.
__device__ __forceinline__ KeyTile find_key_tile(const Params& params) {
  const int tiles_per_block = (params.block_kv + kKeysPerBlock - 1) / kKeysPerBlock;
  const int key_blocks = (params.seq_kv + params.block_kv - 1) / params.block_kv;
  const int tiles = key_blocks * tiles_per_block;
  const int tile = static_cast<int>(block_index() % tiles);
  const i64 head = block_index() / tiles;
  const i64 block_begin = static_cast<i64>(tile / tiles_per_block) * params.block_kv;
  const i64 block_end = block_begin + params.block_kv;
  KeyTile work;
  work.batch = static_cast<int>(head / params.heads_kv);
  work.head = static_cast<int>(head % params.heads_kv);
  work.key_begin = static_cast<int>(block_begin) + tile % tiles_per_block * kKeysPerBlock;
  work.key_end = block_end < params.seq_kv ? static_cast<int>(block_end) : params.seq_kv;
  return work;
}

// Walks over the query tiles of all heads that share a key tile: for each head through the partial
// mask blocks, then through the full ones. A mask block is cut into tiles of kQueryStep queries,
// the last of which may reach behind its end.
struct QueryTiles {
  int head, head_end;  // query head at hand, and the first that is not of the group
  int list;            // number of the lists of the head at hand
  int next, list_end;  // positions of the list at hand still to come
  bool full;           // which list that is
  int partial;         // number of the partial block at hand; -1 in a full block
  int block_begin;     // first query of the mask block at hand
  int first;           // first query of the tile at hand
  int end;             // queries of the mask block end here
  bool done;

  __device__ __forceinline__ void start(const Params& params, const KeyTile& work) {
    head = work.head * params.group;
    head_end = head + params.group;
    done = false;
    open_head(params, work);
    next_block(params, work);
  }

  __device__ __forceinline__ void advance(const Params& params, const KeyTile& work) {
    first += kQueryStep;
    if (first >= end) next_block(params, work);
  }

  __device__ __forceinline__ void open_head(const Params& params, const KeyTile& work) {
    const int key_blocks = (params.seq_kv + params.block_kv - 1) / params.block_kv;
    list = (work.batch % params.mask_batch * params.mask_heads + head % params.mask_heads) *
               key_blocks +
           work.key_begin / params.block_kv;
    full = false;
    next = load_global(params.partial_query_offsets + list);
    list_end = load_global(params.partial_query_offsets + list + 1);
  }

  __device__ __forceinline__ void next_block(const Params& params, const KeyTile& work) {
    while (true) {
      if (next == list_end) {
        if (!full) {
          full = true;
          next = load_global(params.full_query_offsets + list);
          list_end = load_global(params.full_query_offsets + list + 1);
          continue;
        }
        ++head;
        done = head == head_end;
        if (done) return;
        open_head(params, work);
        continue;
      }
      const int row =
          load_global((full ? params.full_query_rows : params.partial_query_rows) + next);
      partial = full ? -1 : load_global(params.partial_query_places + next);
      ++next;
      if (row < 0 || row >= params.query_blocks) continue;  // padding of the list
      const i64 block_end = static_cast<i64>(row + 1) * params.block_q;
      block_begin = first = row * params.block_q;
      end = block_end < params.seq_q ? static_cast<int>(block_end) : params.seq_q;
      return;
    }
  }
};

// Which queries of a tile see the keys of one warp.
struct WarpQueries {
  __device__ __forceinline__ void start(const Params& params, const KeyTile& work, int warp_row,
                                        int keys) {}

  // Whether the warp has to compute the tile at all.
  __device__ __forceinline__ bool visible(const QueryTiles& tiles) const { return true; }

  // Whether some query of the tile may not see some of its keys.
  __device__ __forceinline__ bool needs_test(const QueryTiles& tiles) const {
    return tiles.partial >= 0 || tiles.first + kQueryStep > tiles.end;
  }
};

// Whether query `row` of the tile at hand sees key `kv` of the key tile.
__device__ __forceinline__ bool seen(const Params& params, const KeyTile& work,
                                     const QueryTiles& tiles, int row, int kv) {
  if (row >= tiles.end) return false;
  if (tiles.partial < 0) return true;
  const int last_key = smaller(kv, work.key_end - 1);  // keys behind the end are never stored
  const int words = (params.block_kv + 31) / 32;
  const i64 bit_row = static_cast<i64>(tiles.partial) * params.block_q + row - tiles.block_begin;
  const int key = last_key % params.block_kv;
  return (load_global(params.partial_bits + bit_row * words + key / 32) >> key % 32 & 1) != 0;
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

// The keep bits of 32 keys from `first_key` on. A tile of a mask block may start anywhere.
__device__ __forceinline__ u32 keep_bits(u64 key, u32 head, u32 query, u32 first_key,
                                         u32 threshold) {
  const u32 bits = keep_word(key, head, query, first_key / 32, threshold);
  const u32 skipped = first_key % 32;
  if (skipped == 0) return bits;
  return bits >> skipped | keep_word(key, head, query, first_key / 32 + 1, threshold)
                               << (32 - skipped);
}

// The keep bits of 16 or 32 neighbouring keys.
__device__ __forceinline__ u32 key_bits(u64 key, u32 head, u32 query, u32 first_key,
                                        u32 threshold) {
  return keep_bits(key, head, query, first_key, threshold);
}

// The key of the launch: from the state in memory, if there is one, so that a captured graph draws
// new bits at every replay.
__device__ __forceinline__ u64 find_dropout_key(const Params& params) {
  if (params.rng_state == nullptr) return params.dropout_key;
  return load_global(params.rng_state) + load_global(params.rng_state + 1) * 0x9E3779B97F4A7C15ull;
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

// products += rows * columns^T: every row of this warp by every column, along the head dim.
template <int kDim, int kRows, int kTiles>
__device__ __forceinline__ void multiply_rows(float (&products)[kRows][kTiles][4], u32 rows,
                                              u32 columns) {
  constexpr int kSteps = (kDim + kMmaK - 1) / kMmaK;
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
        multiply_add(products[m][n], a[m], b[0], b[1]);
        multiply_add(products[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Products as left operands, one for each K-step: the accumulators of two tiles, rounded.
template <int kRows, int kTiles>
__device__ __forceinline__ void pack_rows(u32 (&packed)[kRows][kTiles / 2][4],
                                          const float (&products)[kRows][kTiles][4]) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      packed[m][n / 2][n % 2 * 2] = pack_pair(products[m][n][0], products[m][n][1]);
      packed[m][n / 2][n % 2 * 2 + 1] = pack_pair(products[m][n][2], products[m][n][3]);
    }
  }
}

// sums += factors * columns, where each column is a row of kDim elements.
template <int kDim, int kRows, int kSteps>
__device__ __forceinline__ void add_columns(float (&sums)[kRows][kDim / 8][4],
                                            const u32 (&factors)[kRows][kSteps][4], u32 columns) {
  constexpr int kTiles = kDim / 8;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      u32 b[4];
      load_values<kDim>(b, columns + step * kMmaK * row_bytes(kDim) + n * 8 * kElementBytes);
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        multiply_add(sums[m][n], factors[m][step], b[0], b[1]);
        if (n + 1 < kTiles) multiply_add(sums[m][n + 1], factors[m][step], b[2], b[3]);
      }
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
__device__ __forceinline__ float score_factor(const Params& params) { return params.scale_log2; }

// The gradient of a score, softmax_scale apart.
__device__ __forceinline__ float score_gradient(const Params& params, float weight, float d_weight,
                                                float delta, float score) {
  return weight * (d_weight - delta);
}

// The weight of a score.
__device__ __forceinline__ float find_weight(const Params& params, float score, float lse) {
  return exp2_approx(fused_multiply_add(score, score_factor(params), -lse));
}

// What the sums for dQ and dK are multiplied by at the end.
__device__ __forceinline__ float gradient_factor(const Params& params) {
  return params.softmax_scale * params.keep_scale;
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
  for (int i = 0; i < 8; ++i) {
    const u16 first = static_cast<u16>(a.word[i / 2] >> i % 2 * 16);
    const u16 second = static_cast<u16>(b.word[i / 2] >> i % 2 * 16);
    sum = fused_multiply_add(to_float(first), to_float(second), sum);
  }
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
  delta = delta / params.keep_scale;  // the gradients of kept weights are multiplied at the end
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
  }
};

// Sets the gradients of dropped weights to zero. The four lanes of a quad share the keep words of
// their rows: each draws a quarter of them.
__device__ __forceinline__ void drop_gradients(float (&d_weights)[kRowTiles][kKeyTiles][4], u64 key,
                                               u32 head, u32 threshold, int first_row,
                                               int first_key) {
  constexpr int kWords = (kTileKv + 31) / 32;   // of one row
  constexpr int kDraws = (2 * kWords + 3) / 4;  // words a lane draws for two rows
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    u32 drawn[kDraws];
#pragma unroll
    for (int i = 0; i < kDraws; ++i) {
      const int word = i * 4 + lane % 4;  // word / 2 counts along the keys, word % 2 tells the row
      const int row = first_row + m * 16 + lane / 4 + word % 2 * 8;
      drawn[i] = keep_bits(key, head, row, first_key + word / 2 * 32, threshold);
    }
#pragma unroll
    for (int word = 0; word < 2 * kWords; ++word) {
      const u32 kept = shuffle(drawn[word / 4], lane / 4 * 4 + word % 4) >> lane % 4 * 2;
#pragma unroll
      for (int n = word / 2 * 4; n < word / 2 * 4 + 4 && n < kKeyTiles; ++n) {
        if ((kept >> n % 4 * 8 & 1) == 0) d_weights[m][n][word % 2 * 2] = 0.0f;
        if ((kept >> n % 4 * 8 & 2) == 0) d_weights[m][n][word % 2 * 2 + 1] = 0.0f;
      }
    }
  }
}

// Turns the gradients of the weights of a tile into those of its scores.
__device__ __forceinline__ void find_row_gradients(const float (&scores)[kRowTiles][kKeyTiles][4],
                                                   float (&gradients)[kRowTiles][kKeyTiles][4],
                                                   const WarpRows& rows, const Params& params,
                                                   int first_key) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Statistics& row = rows.statistics[m][i / 2];
        const float score = scores[m][n][i];
        const float weight = find_weight(params, score, row.lse);
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
  KeyTiles loads = tiles;  // runs ahead of the computation
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (!loads.done) {
      load_keys(stages + stage * kKeyStageBytes, params, work, loads);
      loads.advance(params);
    }
    commit_copies();
  }
  int stage = 0;

  const u32 row_queries = query_address<kHeadDim>(queries, warp_row);
  const u32 row_outputs = query_address<kHeadDimV>(d_outputs, warp_row);
  WarpRows warp_rows;
  warp_rows.start(params, work, work.row_begin + warp_row);
  WarpKeys warp_keys;
  warp_keys.start(params, work, warp_row, 16 * kRowTiles);
  const u64 dropout_key = find_dropout_key(params);
  const u32 dropout_head = static_cast<u32>(work.batch) * params.heads_q + work.head;
  float sums[kRowTiles][kHeadDim / 8][4] = {};

  for (; !tiles.done; tiles.advance(params)) {
    // This tile is there, and every warp is done with the last one: its stage takes the next tile.
    wait_copies<kStages - 2>();
    synchronize_block();
    const u32 keys = stages + stage * kKeyStageBytes;
    if (!loads.done) {
      const int free_stage = stage == 0 ? kStages - 1 : stage - 1;
      load_keys(stages + free_stage * kKeyStageBytes, params, work, loads);
      loads.advance(params);
    }
    commit_copies();
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (!warp_keys.visible(tiles)) continue;
    float scores[kRowTiles][kKeyTiles][4] = {}, gradients[kRowTiles][kKeyTiles][4] = {};
    multiply_rows<kHeadDim>(scores, row_queries, key_address<kHeadDim>(keys));
    multiply_rows<kHeadDimV>(gradients, row_outputs, key_address<kHeadDimV>(keys + kStepKeysBytes));
    drop_gradients(gradients, dropout_key, dropout_head, params.drop_threshold,
                   work.row_begin + warp_row, tiles.first);
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
  u64 dropout_key;
  u32 drawn[(kQueryStep + 31) / 32];  // keep bits of some queries for the keys of the warp

  __device__ __forceinline__ void start(const Params& params, const KeyTile& work, int warp_row) {
    first_key = work.key_begin + warp_row;
    dropout_key = find_dropout_key(params);
  }

  // Goes on to the next tile of queries.
  __device__ __forceinline__ void advance(const Params& params, const KeyTile& work,
                                          const QueryTiles& tiles, u32 tile_statistics) {
    statistics = tile_statistics;
    draw(params, static_cast<u32>(work.batch) * params.heads_q + tiles.head, tiles.first);
  }

  // Each lane draws the bits of every 32nd query.
  __device__ __forceinline__ void draw(const Params& params, u32 head, int first_row) {
#pragma unroll
    for (int i = 0; i < (kQueryStep + 31) / 32; ++i)
      drawn[i] = key_bits(dropout_key, head, first_row + i * 32 + lane_index(), first_key,
                          params.drop_threshold);
  }

  // Bits of query 8n + 2t + j of the tile: that of key 8i + g of the warp is bit 8i.
  __device__ __forceinline__ u32 kept(int n, int j) const {
    const int lane = lane_index();
    return shuffle(drawn[n / 4], n % 4 * 8 + lane % 4 * 2 + j) >> lane / 4;
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
      const u32 kept = pairs.kept(n, j);
#pragma unroll
      for (int i = 0; i < 2 * kKeyRowTiles; ++i) {
        float& score = scores[i / 2][n][i % 2 * 2 + j];
        float& gradient = gradients[i / 2][n][i % 2 * 2 + j];
        const float weight = find_weight(params, score, column.lse);
        const bool keep = (kept >> i * 8 & 1) != 0;
        gradient = score_gradient(params, weight, keep ? gradient : 0.0f, column.delta, score);
        score = keep ? weight : 0.0f;
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
  if constexpr (kForValues) put_rows<kHeadDimV>(values, sums.dv, params.keep_scale, warp_row);
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
  QueryTiles loads = tiles;  // runs ahead of the computation
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (!loads.done) {
      load_queries(stages + stage * kQueryStageBytes, params, work, loads);
      loads.advance(params, work);
    }
    commit_copies();
  }
  int stage = 0;
  WarpQueries warp_queries;
  warp_queries.start(params, work, warp_row, 16 * kKeyRowTiles);
  WarpPairs pairs;
  pairs.start(params, work, warp_row);
  KeySums<kForKeys, kForValues> sums = {};

  for (; !tiles.done; tiles.advance(params, work)) {
    // This tile is there, and every warp is done with the last one: its stage takes the next tile.
    wait_copies<kStages - 2>();
    synchronize_block();
    const u32 queries = stages + stage * kQueryStageBytes;
    if (!loads.done) {
      const int free_stage = stage == 0 ? kStages - 1 : stage - 1;
      load_queries(stages + free_stage * kQueryStageBytes, params, work, loads);
      loads.advance(params, work);
    }
    commit_copies();
    stage = stage + 1 == kStages ? 0 : stage + 1;
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
