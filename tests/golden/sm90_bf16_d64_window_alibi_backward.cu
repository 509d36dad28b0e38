// Attention backward for sm_90a: bf16, head dim 64, window mask, ALiBi.
// Gradients of 128 keys at a time, which meet 80 queries in a step, then of 128 queries, which
//     meet 96 keys in a step; 2 stages; a producer and 2 consumer warpgroups. 73.4 and 80.1 KiB of
//     shared memory.
// Launch fw_backward_rows: ceil_div(seq_q * heads_q * batch, 32) blocks of 256 threads, 0 bytes of
//     dynamic shared memory. It may start while the kernel before it still runs.
// Launch fw_backward_keys: want_dk * ceil_div(seq_kv, 128) * heads_kv * batch blocks of 384
//     threads, 75160 bytes of dynamic shared memory. It may start while the kernel before it still
//     runs.
// Launch fw_backward_values: want_dv * (1 - want_dk) * ceil_div(seq_kv, 128) * heads_kv * batch
//     blocks of 384 threads, 75160 bytes of dynamic shared memory. It may start while the kernel
//     before it still runs.
// Launch fw_backward_queries: want_dq * ceil_div(seq_q, 128) * heads_q * batch blocks of 384
//     threads, 82072 bytes of dynamic shared memory. It may start while the kernel before it still
//     runs.
// Workspace: 8 * seq_q * heads_q * batch bytes.
// Tensor map q_map: boxes of 16 rows by 64 columns of 64, swizzle 128.
// Tensor map k_map: boxes of 32 rows by 64 columns of 64, swizzle 128.
// Tensor map v_map: boxes of 32 rows by 64 columns of 64, swizzle 128.
// Tensor map d_o_map: boxes of 16 rows by 64 columns of 64, swizzle 128.
// Tensor map dq_map: boxes of 64 rows by 64 columns of 64, swizzle 128.
// Tensor map dk_map: boxes of 64 rows by 64 columns of 64, swizzle 128.
// Tensor map dv_map: boxes of 64 rows by 64 columns of 64, swizzle 128.
// Regenerate: flashwright emit --direction backward --dtype bf16 --head-dim 64 --mask window:-1,-1
//     --alibi --target sm_90a --schedule q128.kv96.w12.st2.b1.qs80
// flashwright 0.1.0. This emitted file may be used under any licence.

using u16 = unsigned short;

using u32 = unsigned int;

using u64 = unsigned long long;

using i64 = long long;

// Sixteen bytes, the widest access to memory.
struct alignas(16) Bytes16 {
  u32 word[4];
};

// Describes a tensor in global memory, its box and its swizzle; made by the driver.
struct alignas(64) TensorMap {
  u64 word[16];
};

constexpr int kConsumers = 2;  // warpgroups of 64 rows; one more produces
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr int kKeysThreads = kThreads;   // of fw_backward_keys
constexpr int kBlocksPerSm = 1;          // resident together
constexpr int kStages = 2;               // tiles in flight
constexpr int kTileQ = 64 * kConsumers;  // queries of a block of fw_backward_queries
constexpr int kTileKv = 96;              // keys that they meet in a step
constexpr int kKeyStages = 2;            // of these in flight
constexpr int kValueStages = 2;
constexpr int kKeysPerBlock = 64 * kConsumers;  // keys of a block of fw_backward_keys
constexpr int kQueryStep = 80;                  // queries that they meet in a step
constexpr int kPartQueries = 80;                // of these whose scores are computed at once
constexpr int kHeadDim = 64;                    // of queries and keys
constexpr int kHeadDimV = 64;                   // of values and outputs
constexpr int kProducerRegisters = 40;          // of each thread
constexpr int kConsumerRegisters = 232;

constexpr int kPrepareThreads = 256;  // of a block of fw_backward_rows
constexpr int kRowThreads = 8;        // of each row
constexpr int kRowsPerBlock = kPrepareThreads / kRowThreads;

constexpr int kElementBytes = 2;  // bf16
constexpr int kPaddedDim = 64;    // whole slabs
constexpr int kPaddedDimV = 64;
constexpr int kDepth = (kHeadDim + 15) / 16 * 16;  // of products: whole tensor core steps
constexpr int kDepthV = (kHeadDimV + 15) / 16 * 16;
constexpr int kSwizzle = 128;      // bytes of a slab of queries or keys
constexpr int kSwizzleV = 128;     // of values or gradients of outputs
constexpr int kQueryBoxRows = 16;  // of a copy by TMA
constexpr int kKeyBoxRows = 32;
constexpr int kRowTiles = 1;            // tiles of 16 rows that a warp owns
constexpr int kKeyTiles = kTileKv / 8;  // columns of accumulators along the keys

constexpr float kLog2E = 1.4426950408889634f;

constexpr int kOwnKeysBytes = 64 * kPaddedDim * kElementBytes;  // of one consumer
constexpr int kOwnValuesBytes = 64 * kPaddedDimV * kElementBytes;
constexpr int kStepQueriesBytes = kQueryStep * kPaddedDim * kElementBytes;  // one stage
constexpr int kStepOutputsBytes = kQueryStep * kPaddedDimV * kElementBytes;
constexpr int kOwnKeysStride = 8192;  // multiples of 1024
constexpr int kOwnValuesOffset = 16384;
constexpr int kOwnValuesStride = 8192;
constexpr int kStepQueriesOffset = 32768;
constexpr int kStepQueriesStride = 10240;
constexpr int kStepOutputsOffset = 53248;  // gradients of outputs
constexpr int kStepOutputsStride = 10240;
constexpr int kRowsOffset = 73728;  // numbers of query rows
constexpr int kRowsStride = 640;
constexpr int kStepsOffset = 75008;  // which queries those are
constexpr int kKeysBarriersOffset = 75088;
constexpr int kKeysSharedBytes = kKeysBarriersOffset + 8 * (1 + 4 * kStages);

constexpr int kOwnQueriesBytes = 64 * kPaddedDim * kElementBytes;  // of one consumer
constexpr int kOwnOutputsBytes = 64 * kPaddedDimV * kElementBytes;
constexpr int kStepKeysBytes = kTileKv * kPaddedDim * kElementBytes;  // one stage
constexpr int kStepValuesBytes = kTileKv * kPaddedDimV * kElementBytes;
constexpr int kOwnQueriesStride = 8192;  // multiples of 1024
constexpr int kOwnOutputsOffset = 16384;
constexpr int kOwnOutputsStride = 8192;
constexpr int kStepKeysOffset = 32768;
constexpr int kStepKeysStride = 12288;
constexpr int kStepValuesOffset = 57344;
constexpr int kStepValuesStride = 12288;
constexpr int kQueriesBarriersOffset = 82000;
constexpr int kQueriesSharedBytes = kQueriesBarriersOffset + 8 * (1 + 4 * kStages);
static_assert(kKeysSharedBytes == 75160, "the launch plan says so");
static_assert(kQueriesSharedBytes == 82072, "the launch plan says so");

using Element = u16;

// What the host fills in for each launch.
struct Params {
  TensorMap q_map;                                  // boxes of q for TMA
  TensorMap k_map;                                  // boxes of k
  TensorMap v_map;                                  // boxes of v
  TensorMap d_o_map;                                // boxes of d_o
  TensorMap dq_map;                                 // boxes of dq
  TensorMap dk_map;                                 // boxes of dk
  TensorMap dv_map;                                 // boxes of dv
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
  i64 q_batch_stride, q_row_stride, q_head_stride;  // strides count elements
  i64 k_batch_stride, k_row_stride, k_head_stride;
  i64 v_batch_stride, v_row_stride, v_head_stride;
  i64 o_batch_stride, o_row_stride, o_head_stride;
  i64 lse_batch_stride, lse_head_stride;
  i64 d_o_batch_stride, d_o_row_stride, d_o_head_stride;
  i64 d_lse_batch_stride, d_lse_head_stride;
  i64 dq_batch_stride, dq_row_stride, dq_head_stride;
  i64 dk_batch_stride, dk_row_stride, dk_head_stride;
  i64 dv_batch_stride, dv_row_stride, dv_head_stride;
  int batch, heads_q, heads_kv;
  int group;  // query heads that share a key head
  int seq_q, seq_kv;
  float softmax_scale;        // factor of the scores
  float scale_log2;           // softmax_scale * log2(e)
  const float* alibi_slopes;  // (batch, heads_q); a stride may be 0
  i64 alibi_batch_stride, alibi_head_stride;
  int q_position;    // where query 0 sits among the keys
  int window_left;   // keys visible before a query
  int window_right;  // keys visible after a query
  int aligned;       // 1: every row starts on a multiple of 16 bytes
  void* workspace;   // as large as asked, 256-byte aligned
};

__device__ __forceinline__ int thread_index() { return static_cast<int>(threadIdx.x); }

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % 32; }

__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / 32; }

__device__ __forceinline__ i64 block_index() { return blockIdx.x; }

// Waits for all threads of the block; what they wrote to shared memory is then visible.
__device__ __forceinline__ void synchronize_block() { __syncthreads(); }

// Waits for all lanes of the warp; what they wrote to shared memory is then visible.
__device__ __forceinline__ void synchronize_warp() { __syncwarp(); }

// The value of the lane whose number differs in the bits of `bits`.
__device__ __forceinline__ float shuffle_xor(float value, int bits) {
  return __shfl_xor_sync(0xffffffffu, value, bits);
}

// The value of another lane.
__device__ __forceinline__ u32 shuffle(u32 value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

__device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }

__device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }

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

__device__ __forceinline__ float to_float(u16 element) {
  return bits_float(static_cast<u32>(element) << 16);
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

__device__ __forceinline__ void store_shared_float(u32 address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
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

// Shared memory whose address is a multiple of 1024: a swizzled tile starts where its pattern does.
__device__ __forceinline__ u32 swizzled_memory() {
  extern __shared__ __align__(1024) unsigned char tiles[];
  return static_cast<u32>(__cvta_generic_to_shared(tiles));
}

// Starts to load the box that begins at element (x, y, z, w), x along the row. What lies outside of
// the tensor becomes 0 and counts all the same: `barrier` gets the bytes of the whole box. For this
// and all other boxes x is a multiple of 16 bytes, even outside: else the instruction is illegal.
__device__ __forceinline__ void load_box(u32 shared, const TensorMap& map, u32 barrier, int x,
                                         int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// Starts to store a box. What lies behind the ends of the tensor is left out, if its rows are
// multiples of 16 bytes; nothing may lie before it: x, y, z and w are at least 0. Belongs to the
// open group of stores of this thread.
__device__ __forceinline__ void store_box(const TensorMap& map, u32 shared, int x, int y, int z,
                                          int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          &map),
      "r"(shared), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// Closes the group of the stores that this thread has started.
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most kPending groups still read from shared memory.
template <int kPending>
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Makes an mbarrier of 8 bytes whose phases end after `count` arrivals. Once for each barrier, then
// publish_barriers() by the same thread and a barrier for all who use it.
__device__ __forceinline__ void init_barrier(u32 barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Lets the asynchronous proxy and the cluster see the barriers this thread has made.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and lets the phase wait for `bytes` that asynchronous copies will bring.
__device__ __forceinline__ void arrive_expecting(u32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Waits for the end of the phase of this parity: 0 for the first, 1 for the second, 0 for the
// third. A new barrier counts as having ended a phase of parity 1.
__device__ __forceinline__ void wait_barrier(u32 barrier, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Waits at barrier kBarrier (1 to 15) until kThreads threads have come, those of arrive_named()
// counted.
template <int kBarrier, int kThreads>
__device__ __forceinline__ void synchronize_named() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// The same with a barrier that is known only when the kernel runs.
__device__ __forceinline__ void synchronize_named(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// What this thread has written to shared memory can then be read by TMA and wgmma, after a barrier.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// True in one lane of a full warp, always the same one.
__device__ __forceinline__ bool elect_lane() {
  u32 elected;
  asm volatile(
      "{\n"
      ".reg .pred chosen;\n"
      "elect.sync _|chosen, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, chosen;\n"
      "}"
      : "=r"(elected)::"memory");
  return elected != 0;
}

// Registers of each thread of a warpgroup from here on, a multiple of 8; all its warps call it.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Waits for the kernels before this one in the stream and what they wrote.
__device__ __forceinline__ void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// The next kernel in the stream may start, up to its wait.
__device__ __forceinline__ void start_next_kernel() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Before the first product that uses registers written by other instructions.
__device__ __forceinline__ void fence_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Closes the group of the products started since the last one.
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending groups are in flight. The registers of those before may then be
// used, and the shared memory they read may be written.
template <int kPending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps what follows from using the accumulators before this point.
template <int kCount>
__device__ __forceinline__ void hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Describes a tile of 16-bit elements in shared memory, stored in slabs whose rows are as long as
// the swizzle: 128, 64 or 32 bytes. `next_rows`: bytes from eight rows to the next eight;
// `next_slab`: bytes from slab to slab, which only a tile that is read across its rows needs.
template <int kSwizzle>
__device__ __forceinline__ u64 tile_descriptor(u32 address, int next_rows, int next_slab) {
  constexpr u64 kMode = kSwizzle == 128 ? 1 : kSwizzle == 64 ? 2 : 3;
  return kMode << 62 | static_cast<u64>(next_rows >> 4 & 0x3fff) << 32 |
         static_cast<u64>(next_slab >> 4 & 0x3fff) << 16 | (address >> 4 & 0x3fff);
}

// The same tile some bytes further on. Steps that are known when the kernel is compiled cost one
// addition: they change the lower word only, as shared memory ends before the sum could overflow.
__device__ __forceinline__ u64 advance_descriptor(u64 descriptor, int bytes) {
  const u32 low = static_cast<u32>(descriptor) + (bytes >> 4);
  return descriptor >> 32 << 32 | low;
}

// Stores four 8 x 8 matrices of 16-bit elements. Lanes 8i..8i+7 give the addresses of the rows of
// matrix i; lane l gives the two elements of row l / 4 from column l % 4 * 2 on in r[i].
__device__ __forceinline__ void store_matrices(u32 address, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// d = a * b: 64 x 16, K-major, by 16 x 80, K-major.
__device__ __forceinline__ void wgmma_ss_n80_kk_first(float (&d)[40], u64 a, u64 b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.u32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
      "%38, %39}, "
      "%40, %41, accumulate, 1, 1, 0, 0;\n"
      "}"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
        "=f"(d[7]), "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]),
        "=f"(d[14]), "=f"(d[15]), "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]),
        "=f"(d[21]), "=f"(d[22]), "=f"(d[23]), "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]),
        "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31]), "=f"(d[32]), "=f"(d[33]), "=f"(d[34]),
        "=f"(d[35]), "=f"(d[36]), "=f"(d[37]), "=f"(d[38]), "=f"(d[39])
      : "l"(a), "l"(b)
      : "memory");
}

__device__ __forceinline__ void multiply_first_scores(float (&d)[40], u64 a, u64 b) {
  wgmma_ss_n80_kk_first(d, a, b);
}

// d += a * b: 64 x 16, K-major, by 16 x 80, K-major.
__device__ __forceinline__ void wgmma_ss_n80_kk(float (&d)[40], u64 a, u64 b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.eq.u32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
      "%38, %39}, "
      "%40, %41, accumulate, 1, 1, 0, 0;\n"
      "}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
      : "l"(a), "l"(b)
      : "memory");
}

__device__ __forceinline__ void multiply_scores(float (&d)[40], u64 a, u64 b) {
  wgmma_ss_n80_kk(d, a, b);
}

// d = a * b: 64 x 16, K-major, by 16 x 96, K-major.
__device__ __forceinline__ void wgmma_ss_n96_kk_first(float (&d)[48], u64 a, u64 b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.u32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
      "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
      "%48, %49, accumulate, 1, 1, 0, 0;\n"
      "}"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
        "=f"(d[7]), "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]),
        "=f"(d[14]), "=f"(d[15]), "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]),
        "=f"(d[21]), "=f"(d[22]), "=f"(d[23]), "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]),
        "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31]), "=f"(d[32]), "=f"(d[33]), "=f"(d[34]),
        "=f"(d[35]), "=f"(d[36]), "=f"(d[37]), "=f"(d[38]), "=f"(d[39]), "=f"(d[40]), "=f"(d[41]),
        "=f"(d[42]), "=f"(d[43]), "=f"(d[44]), "=f"(d[45]), "=f"(d[46]), "=f"(d[47])
      : "l"(a), "l"(b)
      : "memory");
}

__device__ __forceinline__ void multiply_first_scores(float (&d)[48], u64 a, u64 b) {
  wgmma_ss_n96_kk_first(d, a, b);
}

// d += a * b: 64 x 16, K-major, by 16 x 96, K-major.
__device__ __forceinline__ void wgmma_ss_n96_kk(float (&d)[48], u64 a, u64 b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.eq.u32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
      "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
      "%48, %49, accumulate, 1, 1, 0, 0;\n"
      "}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
      : "l"(a), "l"(b)
      : "memory");
}

__device__ __forceinline__ void multiply_scores(float (&d)[48], u64 a, u64 b) {
  wgmma_ss_n96_kk(d, a, b);
}

// d += a * b: 64 x 16, in registers, by 16 x 64, MN-major.
__device__ __forceinline__ void wgmma_rs_n64_m(float (&d)[32], const u32 (&a)[4], u64 b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.eq.u32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, accumulate, 1, 1, 1;\n"
      "}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
      : "memory");
}

__device__ __forceinline__ void multiply_weights(float (&d)[32], const u32 (&a)[4], u64 b) {
  wgmma_rs_n64_m(d, a, b);
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

// What becomes of a score: ALiBi, with a slope in units of the scores. `distance` is kv - q.
__device__ __forceinline__ float modified(const Params& params, float score, float slope,
                                          float distance) {
  return fused_multiply_add(slope, distance, score);
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

// The slope of a head in the units of modified().
__device__ __forceinline__ float find_slope(const Params& params, const QueryTile& work,
                                            float scale_log2) {
  return load_global(params.alibi_slopes + work.batch * params.alibi_batch_stride +
                     work.head * params.alibi_head_stride) *
         kLog2E / scale_log2;
}

// Modifies the scores of a tile. `first_row` is the first of the warp's rows. Eight rows further
// down and eight keys further on the distance is the same: few have to be computed.
template <int kTiles>
__device__ __forceinline__ void modify_scores(float (&scores)[kRowTiles][kTiles][4],
                                              const Params& params, const KeyTiles& tiles,
                                              int first_row, float slope) {
  const int lane = lane_index();
  const int q = first_row + lane / 4 + params.q_position;
  const float distance = static_cast<float>(tiles.first + lane % 4 * 2 - q);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int step = (n - i / 2 - 2 * m) * 8 + i % 2;
        scores[m][n][i] =
            modified(params, scores[m][n][i], slope, distance + static_cast<float>(step));
      }
    }
  }
}

// The sum of the products of eight elements of two rows.
__device__ __forceinline__ float product_of_eight(const Element* a, const Element* b) {
  float sum = 0.0f;
  if ((reinterpret_cast<u64>(a) | reinterpret_cast<u64>(b)) % 16 == 0) {
    const Bytes16 x = load_global(reinterpret_cast<const Bytes16*>(a));
    const Bytes16 y = load_global(reinterpret_cast<const Bytes16*>(b));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const u16 left = static_cast<u16>(x.word[i / 2] >> i % 2 * 16);
      const u16 right = static_cast<u16>(y.word[i / 2] >> i % 2 * 16);
      sum = fused_multiply_add(to_float(left), to_float(right), sum);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      sum = fused_multiply_add(to_float(load_global(a + i)), to_float(load_global(b + i)), sum);
  }
  return sum;
}

__device__ __forceinline__ int padded_rows(const Params& params) { return params.seq_q; }

// Makes them: a thread for eight elements of an output row, kRowThreads for a row. A row that sees
// no key gets an infinite LSE, which makes all of its weights zero.
__device__ __forceinline__ void prepare_rows(const Params& params) {
  const int place = thread_index() % kRowThreads;
  const i64 number = block_index() * kRowsPerBlock + thread_index() / kRowThreads;
  const int rows = padded_rows(params);
  const i64 all_heads = number / rows;  // of all batch entries
  const int row = static_cast<int>(number % rows);
  const int head = static_cast<int>(all_heads % params.heads_q);
  const int batch = static_cast<int>(all_heads / params.heads_q);
  const bool exists = batch < params.batch && row < params.seq_q;
  float sum = 0.0f;
  if (exists && place * 8 < kHeadDimV) {
    const Element* o = params.o_given + batch * params.o_batch_stride +
                       head * params.o_head_stride + row * params.o_row_stride;
    const Element* d_o = params.d_o + batch * params.d_o_batch_stride +
                         head * params.d_o_head_stride + row * params.d_o_row_stride;
    sum = product_of_eight(o + place * 8, d_o + place * 8);
  }
#pragma unroll
  for (int step = kRowThreads / 2; step > 0; step /= 2) sum += shuffle_xor(sum, step);
  if (!exists || place != 0) return;
  const float lse = load_global(params.lse_given + batch * params.lse_batch_stride +
                                head * params.lse_head_stride + row);
  if (params.d_lse != nullptr)
    sum -= load_global(params.d_lse + batch * params.d_lse_batch_stride +
                       head * params.d_lse_head_stride + row);
  float* statistics = static_cast<float*>(params.workspace) + 2 * (all_heads * params.seq_q + row);
  store_global(statistics, lse == -infinity() ? infinity() : lse * kLog2E);
  store_global(statistics + 1, lse == -infinity() ? 0.0f : sum);
}

// A place in a ring of kCount stages, and the parity of the phase that its barriers are in.
template <int kCount>
struct RingPlace {
  int stage;
  u32 parity;

  __device__ __forceinline__ void advance() {
    ++stage;
    if (stage == kCount) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// One thread of a warpgroup speaks for it: its wait has covered the products of all.
__device__ __forceinline__ void release(u32 barrier) {
  if (thread_index() % 128 == 0) arrive(barrier);
}

// What all threads of the warpgroup have written is there.
__device__ __forceinline__ void announce(u32 barrier) {
  fence_async_shared();
  synchronize_named<1, 128>();
  release(barrier);
}

// Where an element of a tile lies: in one of the slabs of kSwizzle bytes by all rows, in which the
// 16-byte chunks of a row are swizzled.
template <int kRows, int kSwizzle>
__device__ __forceinline__ u32 element_address(u32 tile, int row, int column) {
  constexpr int kSlab = kSwizzle / 2;  // elements
  const u32 address =
      tile + (column / kSlab * kRows + row) * kSwizzle + column % kSlab * kElementBytes;
  return address ^ (address >> 3 & (kSwizzle - 16));
}

// The same by the threads of a warpgroup, element by element, for rows that start anywhere. All
// lanes of a warp make the same rounds: after a loop that some leave earlier they may arrive at a
// barrier in two parts, and then it counts the warp twice.
template <int kRows, int kColumns, int kPadded, int kSwizzle>
__device__ __forceinline__ void copy_rows(u32 tile, const Element* source, i64 row_stride,
                                          int rows) {
#pragma unroll 1
  for (int first = 0; first < kRows; first += 128) {
    const int row = first + thread_index() % 128;
    if (row >= kRows) continue;
    const Element* from = source + row * row_stride;
#pragma unroll 1
    for (int column = 0; column < kPadded; ++column) {
      const bool exists = row < rows && column < kColumns;
      store_shared_u16(element_address<kRows, kSwizzle>(tile, row, column),
                       exists ? load_global(from + column) : static_cast<Element>(0));
    }
  }
}

// All lanes know the address; one of them tells the compiler so, which then keeps descriptors where
// products read them: in uniform registers.
__device__ __forceinline__ u32 uniform_address(u32 address) { return shuffle(address, 0); }

// The output has left shared memory. The thread that stored it knows.
__device__ __forceinline__ void wait_for_output() {
  if (thread_index() % 128 == 0) wait_stores_read<0>();
}

// Hides the scores of keys that a row must not see, those before the first and behind the last that
// it sees: they become `hidden`. `first_row` is the first of the warp's rows.
template <int kTiles>
__device__ __forceinline__ void hide_scores(float (&scores)[kRowTiles][kTiles][4],
                                            const Params& params, const QueryTile& work,
                                            const KeyTiles& tiles, int first_row, float hidden) {
  const int lane = lane_index();
  const int first_key = tiles.first + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + lane / 4 + half * 8;
    const KeyRange keys = visible_keys(params, row, row);
    const int begin = keys.begin - first_key;
    const int end = keys.end - first_key;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (n * 8 + i < begin) scores[0][n][2 * half + i] = hidden;
        if (n * 8 + i >= end) scores[0][n][2 * half + i] = hidden;
      }
    }
  }
}

// The mbarriers of a block, those of the first stage. Full: the tile has arrived. Empty: all who
// read it are done.
struct Barriers {
  u32 own_full;
  u32 first_full, first_empty, second_full, second_empty;

  // `tellers`: who arrive when the first tile of a stage is there.
  __device__ __forceinline__ void make(int tellers) const {
    init_barrier(own_full, 1);
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(first_full + stage * 8, tellers);
      init_barrier(first_empty + stage * 8, 4 * kConsumers);  // warps
      init_barrier(second_full + stage * 8, 1);
      init_barrier(second_empty + stage * 8, kConsumers);
    }
    publish_barriers();
  }
};

__device__ __forceinline__ Barriers find_barriers(u32 place) {
  Barriers barriers;
  barriers.own_full = place;
  barriers.first_full = place + 8;
  barriers.first_empty = barriers.first_full + kStages * 8;
  barriers.second_full = barriers.first_empty + kStages * 8;
  barriers.second_empty = barriers.second_full + kStages * 8;
  return barriers;
}

// The first tile of a stage, and what is told with it, has been read: each warp for itself.
__device__ __forceinline__ void release_first(const Barriers& barriers, int stage) {
  synchronize_warp();
  if (lane_index() == 0) arrive(barriers.first_empty + stage * 8);
}

// Gives back the second tile of a stage that a consumer has no use for. Without a product, which
// all four warps take part in, only a barrier tells that none of them still waits for the tile.
template <int kCount>
__device__ __forceinline__ void pass_second(const Barriers& barriers, const RingPlace<kCount>& at,
                                            int group) {
  wait_barrier(barriers.second_full + at.stage * 8, at.parity);
  synchronize_named(2 + group, 128);
  release(barriers.second_empty + at.stage * 8);
}

// Starts the copy of a tile, in boxes of kBoxRows rows; what lies behind the end of the tensor
// becomes 0. Loops stay loops: a producer has few registers.
template <int kRows, int kBoxRows, int kColumns, int kSwizzle>
__device__ __forceinline__ void load_tile(u32 tile, const TensorMap& map, u32 barrier, int row,
                                          int head, int batch) {
  constexpr int kSlab = kSwizzle / 2;
#pragma unroll 1
  for (int column = 0; column < kColumns; column += kSlab) {
#pragma unroll 1
    for (int part = 0; part < kRows; part += kBoxRows)
      load_box(tile + (column / kSlab * kRows + part) * kSwizzle, map, barrier, column, row + part,
               head, batch);
  }
}

// Starts sums = a b^T: 64 rows of a and kRows of b, each of kDepth elements. `b` lies among
// kTileRows rows.
template <int kRows, int kDepth, int kSwizzle, int kTileRows = kRows>
__device__ __forceinline__ void start_product(float (&sums)[kRows / 2], u32 a, u32 b) {
  const u64 a_tile = tile_descriptor<kSwizzle>(uniform_address(a), 8 * kSwizzle, 0);
  const u64 b_tile = tile_descriptor<kSwizzle>(uniform_address(b), 8 * kSwizzle, 0);
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) {
    constexpr int kSteps = kSwizzle / 32;  // of a slab
    const int slab = step / kSteps, offset = step % kSteps * 32;
    const u64 a_step = advance_descriptor(a_tile, slab * 64 * kSwizzle + offset);
    const u64 b_step = advance_descriptor(b_tile, slab * kTileRows * kSwizzle + offset);
    if (step == 0) {
      multiply_first_scores(sums, a_step, b_step);
    } else {
      multiply_scores(sums, a_step, b_step);
    }
  }
  commit_products();
}

// Starts sums += weights b: 64 rows of weights, in registers, by the kRows rows of b, which lie
// among kTileRows.
template <int kRows, int kSwizzle, int kTileRows = kRows, int kSums>
__device__ __forceinline__ void start_gradient(float (&sums)[kSums],
                                               const u32 (&weights)[kRows / 16][4], u32 b) {
  const u64 tile =
      tile_descriptor<kSwizzle>(uniform_address(b), 8 * kSwizzle, kTileRows * kSwizzle);
#pragma unroll
  for (int step = 0; step < kRows / 16; ++step)
    multiply_weights(sums, weights[step], advance_descriptor(tile, step * 16 * kSwizzle));
  commit_products();
}

// Rounds sums to pairs of elements: left operands of 64 rows by kColumns.
template <int kColumns>
__device__ __forceinline__ void pack(u32 (&packed)[kColumns / 16][4],
                                     const float (&sums)[kColumns / 2]) {
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i)
    packed[i / 4][i % 4] = pack_pair(sums[2 * i], sums[2 * i + 1]);
}

__device__ __forceinline__ float numerator(const Params& params) { return 1.0f; }

// Lays the rows down in a tile of its own.
template <int kColumns, int kSwizzle>
__device__ __forceinline__ void lay_down(const float (&sums)[kColumns / 2], float factor,
                                         u32 tile) {
  const int lane = lane_index();
  const int row = warp_index() % 4 * 16 + lane % 16;
#pragma unroll
  for (int n = 0; n < kColumns / 8; n += 2) {
    u32 words[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (n + i / 2 < kColumns / 8)
        words[i] = pack_pair(sums[4 * n + 2 * i] * factor, sums[4 * n + 2 * i + 1] * factor);
    store_matrices(element_address<64, kSwizzle>(tile, row, n * 8 + lane / 16 * 8), words);
  }
}

// Where 64 rows of a gradient go.
struct Target {
  const TensorMap& map;
  Element* rows;  // those of the head
  i64 row_stride;
  int batch, head;
  int first, end;  // the first row, and where rows end
  int whole_end;   // where the rows of the tensor end
};

// Writes 64 rows that a consumer has summed up, times a factor, through a tile of its own: by TMA,
// or element by element where rows start anywhere or end before the tile does.
template <int kColumns, int kSwizzle>
__device__ __forceinline__ void write_rows(const float (&sums)[kColumns / 2], float factor,
                                           u32 tile, const Target& target, bool aligned,
                                           int group) {
  lay_down<kColumns, kSwizzle>(sums, factor, tile);
  // TMA leaves out what lies behind the end of the tensor, but not what another block computes.
  const bool by_tma =
      aligned && (target.first + 64 <= target.end || target.end == target.whole_end);
  if (by_tma) fence_async_shared();
  synchronize_named(2 + group, 128);
  if (by_tma) {
    if (thread_index() % 128 != 0) return;
    constexpr int kSlab = kSwizzle / 2;
    constexpr int kPadded = (kColumns + 15) / 16 * 16;
#pragma unroll 1
    for (int column = 0; column < kPadded; column += kSlab)
      store_box(target.map, tile + column / kSlab * 64 * kSwizzle, column, target.first,
                target.head, target.batch);
    commit_stores();
    return;
  }
#pragma unroll 1
  for (int i = thread_index() % 128; i < 64 * kColumns; i += 128) {
    const int row = i / kColumns, column = i % kColumns;
    if (target.first + row < target.end)
      store_global(target.rows + (target.first + row) * target.row_stride + column,
                   load_shared_u16(element_address<64, kSwizzle>(tile, row, column)));
  }
}

// The step that a stage holds.
struct Step {
  int first;  // query
  int head;   // of the queries; kNoHead: no step is left
  int test;   // 1: some query may not see some key
  int end;    // queries end here
};
constexpr int kNoHead = -1;

__device__ __forceinline__ void tell_step(u32 place, const Step& step) {
  store_shared_u32(place, step.first);
  store_shared_u32(place + 4, step.head);
  store_shared_u32(place + 8, step.test);
  store_shared_u32(place + 12, step.end);
}

__device__ __forceinline__ Step told_step(u32 place) {
  const Bytes16 words = load_shared_16(place);
  Step step;
  step.first = static_cast<int>(shuffle(words.word[0], 0));
  step.head = static_cast<int>(shuffle(words.word[1], 0));
  step.test = static_cast<int>(shuffle(words.word[2], 0));
  step.end = static_cast<int>(shuffle(words.word[3], 0));
  return step;
}

// Where what belongs to query i of a step lies among the others. A lane of a consumer reads four of
// them at once: those of its columns in two tiles of accumulators.
__device__ __forceinline__ int row_place(int i) {
  return i / 16 * 16 + i % 8 / 2 * 4 + i / 8 % 2 * 2 + i % 2;
}

// Starts the copy of keys and values.
__device__ __forceinline__ void load_own_keys(const Params& params, const KeyTile& work, u32 memory,
                                              const Barriers& barriers) {
  arrive_expecting(barriers.own_full, kKeysPerBlock / 64 * (kOwnKeysBytes + kOwnValuesBytes));
#pragma unroll 1
  for (int part = 0; part < kKeysPerBlock / 64; ++part) {
    load_tile<64, kKeyBoxRows, kPaddedDim, kSwizzle>(memory + part * kOwnKeysStride, params.k_map,
                                                     barriers.own_full, work.key_begin + part * 64,
                                                     work.head, work.batch);
    load_tile<64, kKeyBoxRows, kPaddedDimV, kSwizzleV>(
        memory + kOwnValuesOffset + part * kOwnValuesStride, params.v_map, barriers.own_full,
        work.key_begin + part * 64, work.head, work.batch);
  }
}

// Starts the copies of a step, once their places are empty.
__device__ __forceinline__ void load_step_queries(const Params& params, const KeyTile& work,
                                                  const QueryTiles& tiles, u32 memory, int stage,
                                                  u32 full) {
  arrive_expecting(full, kStepQueriesBytes);
  load_tile<kQueryStep, kQueryBoxRows, kPaddedDim, kSwizzle>(
      memory + kStepQueriesOffset + stage * kStepQueriesStride, params.q_map, full, tiles.first,
      tiles.head, work.batch);
}

__device__ __forceinline__ void load_step_outputs(const Params& params, const KeyTile& work,
                                                  const QueryTiles& tiles, u32 memory, int stage,
                                                  u32 full) {
  arrive_expecting(full, kStepOutputsBytes);
  load_tile<kQueryStep, kQueryBoxRows, kPaddedDimV, kSwizzleV>(
      memory + kStepOutputsOffset + stage * kStepOutputsStride, params.d_o_map, full, tiles.first,
      tiles.head, work.batch);
}

// Brings what TMA can address: one thread.
__device__ __forceinline__ void load_queries(const Params& params, const KeyTile& work, u32 memory,
                                             const Barriers& barriers) {
  load_own_keys(params, work, memory, barriers);
  RingPlace<kStages> at = {};
  QueryTiles tiles;
  tiles.start(params, work);
#pragma unroll 1
  for (; !tiles.done; tiles.advance(params, work)) {
    const u32 first_full = barriers.first_full + at.stage * 8;
    const u32 second_full = barriers.second_full + at.stage * 8;
    wait_barrier(barriers.first_empty + at.stage * 8, at.parity ^ 1);
    load_step_queries(params, work, tiles, memory, at.stage, first_full);
    wait_barrier(barriers.second_empty + at.stage * 8, at.parity ^ 1);
    load_step_outputs(params, work, tiles, memory, at.stage, second_full);
    at.advance();
  }
  wait_barrier(barriers.first_empty + at.stage * 8, at.parity ^ 1);
  arrive(barriers.first_full + at.stage * 8);
}

// What three warps write for a step: which it is, and for each query two numbers of its row.
__device__ __forceinline__ void tell_rows(const Params& params, const KeyTile& work,
                                          const QueryTiles& tiles, u32 memory, int stage) {
  const int thread = thread_index() % 128 - 32;
  const int end = params.seq_q;
  if (thread == 0) {
    Step step;
    step.first = tiles.first;
    step.head = tiles.head;
    WarpQueries queries;
    queries.start(params, work, 0, kKeysPerBlock);
    const bool past_end = work.key_begin + kKeysPerBlock > work.key_end;
    step.test = past_end || queries.needs_test(tiles) ? 1 : 0;
    step.end = end;
    tell_step(memory + kStepsOffset + stage * 32, step);
  }
  const float* statistics =
      static_cast<const float*>(params.workspace) +
      2 * ((static_cast<i64>(work.batch) * params.heads_q + tiles.head) * params.seq_q +
           tiles.first);
  const u32 rows = memory + kRowsOffset + stage * kRowsStride;
#pragma unroll 1
  for (int i = thread; i < kQueryStep; i += 96) {
    const bool exists = tiles.first + i < end;
    const u32 place = rows + row_place(i) * 4;
    store_shared_float(place, exists ? load_global(statistics + 2 * i) : infinity());
    store_shared_float(place + kQueryStep * 4, exists ? load_global(statistics + 2 * i + 1) : 0.0f);
  }
}

// The same until no step is left. Each warp for itself.
__device__ __forceinline__ void tell_all_rows(const Params& params, const KeyTile& work, u32 memory,
                                              const Barriers& barriers) {
  RingPlace<kStages> at = {};
  QueryTiles tiles;
  tiles.start(params, work);
#pragma unroll 1
  while (true) {
    wait_barrier(barriers.first_empty + at.stage * 8, at.parity ^ 1);
    if (tiles.done) break;
    tell_rows(params, work, tiles, memory, at.stage);
    synchronize_warp();
    if (lane_index() == 0) arrive(barriers.first_full + at.stage * 8);
    tiles.advance(params, work);
    at.advance();
  }
  if (thread_index() % 128 == 32) tell_step(memory + kStepsOffset + at.stage * 32, {0, kNoHead});
  synchronize_warp();
  if (lane_index() == 0) arrive(barriers.first_full + at.stage * 8);
}

// All of that by all threads of the warpgroup, for rows that start anywhere.
__device__ __forceinline__ void copy_queries(const Params& params, const KeyTile& work, u32 memory,
                                             const Barriers& barriers) {
  const Element* k = params.k + work.batch * params.k_batch_stride +
                     work.head * params.k_head_stride + work.key_begin * params.k_row_stride;
  const Element* v = params.v + work.batch * params.v_batch_stride +
                     work.head * params.v_head_stride + work.key_begin * params.v_row_stride;
#pragma unroll 1
  for (int part = 0; part < kKeysPerBlock / 64; ++part) {
    const int rows = params.seq_kv - work.key_begin - part * 64;
    copy_rows<64, kHeadDim, kPaddedDim, kSwizzle>(memory + part * kOwnKeysStride,
                                                  k + part * 64 * params.k_row_stride,
                                                  params.k_row_stride, rows);
    copy_rows<64, kHeadDimV, kPaddedDimV, kSwizzleV>(
        memory + kOwnValuesOffset + part * kOwnValuesStride, v + part * 64 * params.v_row_stride,
        params.v_row_stride, rows);
  }
  announce(barriers.own_full);
  RingPlace<kStages> at = {};
  QueryTiles tiles;
  tiles.start(params, work);
#pragma unroll 1
  for (; !tiles.done; tiles.advance(params, work)) {
    const int rows = params.seq_q - tiles.first;
    wait_barrier(barriers.first_empty + at.stage * 8, at.parity ^ 1);
    if (thread_index() % 128 >= 32) tell_rows(params, work, tiles, memory, at.stage);
    copy_rows<kQueryStep, kHeadDim, kPaddedDim, kSwizzle>(
        memory + kStepQueriesOffset + at.stage * kStepQueriesStride,
        params.q + work.batch * params.q_batch_stride + tiles.head * params.q_head_stride +
            tiles.first * params.q_row_stride,
        params.q_row_stride, rows);
    fence_async_shared();
    synchronize_warp();
    if (lane_index() == 0) arrive(barriers.first_full + at.stage * 8);
    wait_barrier(barriers.second_empty + at.stage * 8, at.parity ^ 1);
    copy_rows<kQueryStep, kHeadDimV, kPaddedDimV, kSwizzleV>(
        memory + kStepOutputsOffset + at.stage * kStepOutputsStride,
        params.d_o + work.batch * params.d_o_batch_stride + tiles.head * params.d_o_head_stride +
            tiles.first * params.d_o_row_stride,
        params.d_o_row_stride, rows);
    announce(barriers.second_full + at.stage * 8);
    at.advance();
  }
  wait_barrier(barriers.first_empty + at.stage * 8, at.parity ^ 1);
  if (thread_index() % 128 == 32) tell_step(memory + kStepsOffset + at.stage * 32, {0, kNoHead});
  synchronize_warp();
  if (lane_index() == 0) arrive(barriers.first_full + at.stage * 8);
}

// The producer warpgroup.
__device__ __forceinline__ void produce_queries(const Params& params, u32 memory) {
  const KeyTile work = find_key_tile(params);
  const Barriers barriers = find_barriers(memory + kKeysBarriersOffset);
  if (!params.aligned) {
    copy_queries(params, work, memory, barriers);
  } else if (warp_index() % 4 != 0) {
    tell_all_rows(params, work, memory, barriers);
  } else if (elect_lane()) {
    load_queries(params, work, memory, barriers);
  }
}

// Clears the weights of keys that a query does not see. `key` is the lane's first.
__device__ __forceinline__ void hide_weights(float (&weights)[kPartQueries / 2],
                                             const Params& params, const KeyTile& work,
                                             const Step& step, int key) {
  const int first = step.first + lane_index() % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int own = key + half * 8;
    const RowRange queries = visible_rows(params, own, own);
    const int begin = queries.begin - first;
    const int end = own < work.key_end ? queries.end - first : begin;
#pragma unroll
    for (int n = 0; n < kPartQueries / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (n * 8 + i < begin || n * 8 + i >= end) weights[4 * n + 2 * half + i] = 0.0f;
    }
  }
}

// A consumer on its way.
struct KeysConsumer {
  int group;                          // which of the consumers
  int part;                           // which 64 keys of the block are its own
  u32 keys, values;                   // those, in shared memory
  u32 queries, outputs, rows, steps;  // the first stage of each
  Barriers barriers;
  KeyTile work;
  int key;                  // the first of the lane
  WarpQueries own_queries;  // that see some of the 64 keys
  RingPlace<kStages> at;
  float scale_log2;

  __device__ __forceinline__ void start(const Params& params, u32 memory, int own_group) {
    group = own_group;
    part = kKeysPerBlock == 64 ? 0 : group;
    work = find_key_tile(params);
    keys = memory + part * kOwnKeysStride;
    values = memory + kOwnValuesOffset + part * kOwnValuesStride;
    queries = memory + kStepQueriesOffset;
    outputs = memory + kStepOutputsOffset;
    rows = memory + kRowsOffset;
    steps = memory + kStepsOffset;
    barriers = find_barriers(memory + kKeysBarriersOffset);
    key = work.key_begin + part * 64 + warp_index() % 4 * 16 + lane_index() / 4;
    own_queries.start(params, work, part * 64, 64);
    at = {};
    scale_log2 = params.scale_log2;
  }

  // Whether some query of a step sees one of the keys.
  __device__ __forceinline__ bool is_seen(const Step& step) const {
    return step.first < own_queries.rows.end && step.first + kQueryStep > own_queries.rows.begin;
  }

  // Where the numbers of the rows of the step at hand lie.
  __device__ __forceinline__ u32 numbers() const { return rows + at.stage * kRowsStride; }

  // Four of them: of the queries of the lane in two tiles of accumulators from 2 * pair on.
  __device__ __forceinline__ Bytes16 row_words(u32 numbers, int list, int pair) const {
    return load_shared_16(numbers + (list * kQueryStep + pair * 16 + lane_index() % 4 * 4) * 4);
  }

  // Turns scores into weights, and rounds these for the products with gradients of outputs.
  __device__ __forceinline__ void soften(float (&scores)[kPartQueries / 2],
                                         u32 (&packed)[kPartQueries / 16][4], const Params& params,
                                         const Step& step, u32 numbers) const {
    const float slope = find_slope(params, {work.batch, step.head, 0, 0}, scale_log2);
    const float distance =
        static_cast<float>(key - step.first - lane_index() % 4 * 2 - params.q_position);
#pragma unroll
    for (int i = 0; i < kPartQueries / 2; ++i) {
      const int further = i % 4 / 2 * 8 - i / 4 * 8 - i % 2;
      scores[i] = modified(params, scores[i], slope, distance + static_cast<float>(further));
    }
#pragma unroll
    for (int pair = 0; pair < kPartQueries / 16; ++pair) {
      const Bytes16 lse = row_words(numbers, 0, pair);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& score = scores[8 * pair + i];
        score = exp2_approx(
            fused_multiply_add(score, scale_log2, -bits_float(lse.word[i / 4 * 2 + i % 2])));
      }
    }
    if (step.test != 0) hide_weights(scores, params, work, step, key);
    pack<kPartQueries>(packed, scores);
  }

  // The gradient of a score.
  __device__ __forceinline__ float score_gradient(float weight, float gradient, float sum) const {
    return weight * (gradient - sum);
  }

  // Turns weights and their gradients into gradients of the scores, rounded for the products with
  // queries.
  __device__ __forceinline__ void differentiate(const float (&weights)[kPartQueries / 2],
                                                const float (&gradients)[kPartQueries / 2],
                                                u32 (&scores)[kPartQueries / 16][4],
                                                u32 numbers) const {
#pragma unroll
    for (int pair = 0; pair < kPartQueries / 16; ++pair) {
      const Bytes16 sums = row_words(numbers, 1, pair);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int place = 8 * pair + 2 * j, query = j / 2 * 2;
        scores[pair][j] = pack_pair(
            score_gradient(weights[place], gradients[place], bits_float(sums.word[query])),
            score_gradient(weights[place + 1], gradients[place + 1],
                           bits_float(sums.word[query + 1])));
      }
    }
  }

  // Goes past a step whose queries see none of the keys.
  __device__ __forceinline__ void pass_step(const Params& params) const {
    pass_second(barriers, at, group);
  }

  // Adds what a step contributes to gradients of values, and starts the product that adds it to
  // those of keys; `packed_gradients` are its operands until it has ended.
  __device__ __forceinline__ void start_step(float (&dk)[kHeadDim / 2], float (&dv)[kHeadDimV / 2],
                                             u32 (&packed_gradients)[kPartQueries / 16][4],
                                             const Params& params, const Step& step) const {
    const u32 step_queries = queries + at.stage * kStepQueriesStride;
    const u32 step_outputs = outputs + at.stage * kStepOutputsStride;
    float scores[kQueryStep / 2], gradients[kQueryStep / 2];
    u32 packed[kPartQueries / 16][4];
    fence_products();
    start_product<kQueryStep, kDepth, kSwizzle>(scores, keys, step_queries);
    wait_barrier(barriers.second_full + at.stage * 8, at.parity);
    fence_products();
    start_product<kQueryStep, kDepthV, kSwizzleV>(gradients, values, step_outputs);
    wait_products<1>();
    hold(scores);
    soften(scores, packed, params, step, numbers());
    fence_products();
    start_gradient<kQueryStep, kSwizzleV>(dv, packed, step_outputs);
    wait_products<1>();
    hold(gradients);
    differentiate(scores, gradients, packed_gradients, numbers());
    fence_products();
    start_gradient<kQueryStep, kSwizzle>(dk, packed_gradients, step_queries);
    wait_products<1>();
    hold(dv);
    release(barriers.second_empty + at.stage * 8);
  }

  // Adds what a step contributes to gradients of values, and nothing else.
  __device__ __forceinline__ void add_values(float (&dv)[kHeadDimV / 2], const Params& params,
                                             const Step& step) const {
    wait_barrier(barriers.second_full + at.stage * 8, at.parity);
#pragma unroll 1
    for (int first = 0; first < kQueryStep; first += kPartQueries) {
      float scores[kPartQueries / 2];
      u32 packed[kPartQueries / 16][4];
      Step part = step;
      part.first += first;
      fence_products();
      start_product<kPartQueries, kDepth, kSwizzle, kQueryStep>(
          scores, keys, queries + at.stage * kStepQueriesStride + first * kSwizzle);
      wait_products<0>();
      hold(scores);
      soften(scores, packed, params, part, numbers() + first * 4);
      fence_products();
      start_gradient<kPartQueries, kSwizzleV, kQueryStep>(
          dv, packed, outputs + at.stage * kStepOutputsStride + first * kSwizzleV);
      wait_products<0>();
      hold(dv);
    }
    release(barriers.second_empty + at.stage * 8);
  }

  // Until gradients of keys are complete up to this step.
  __device__ __forceinline__ void finish_step(float (&dk)[kHeadDim / 2]) const {
    wait_products<0>();
    hold(dk);
    release_first(barriers, at.stage);
  }

  // Writes 64 rows of a gradient, unless nobody wants it.
  __device__ __forceinline__ void write_keys(const float (&dk)[kHeadDim / 2],
                                             const Params& params) const {
    if (params.dk == nullptr) return;
    Element* rows =
        params.dk + work.batch * params.dk_batch_stride + work.head * params.dk_head_stride;
    write_rows<kHeadDim, kSwizzle>(
        dk, numerator(params) * params.softmax_scale, keys,
        {params.dk_map, rows, params.dk_row_stride, work.batch, work.head,
         work.key_begin + part * 64, work.key_end, params.seq_kv},
        params.aligned != 0, group);
  }

  __device__ __forceinline__ void write_values(const float (&dv)[kHeadDimV / 2],
                                               const Params& params) const {
    if (params.dv == nullptr) return;
    Element* rows =
        params.dv + work.batch * params.dv_batch_stride + work.head * params.dv_head_stride;
    write_rows<kHeadDimV, kSwizzleV>(
        dv, numerator(params), values,
        {params.dv_map, rows, params.dv_row_stride, work.batch, work.head,
         work.key_begin + part * 64, work.key_end, params.seq_kv},
        params.aligned != 0, group);
  }
};

// A consumer warpgroup of fw_backward_values.
__device__ __forceinline__ void consume_queries_for_values(const Params& params, u32 memory,
                                                           int group) {
  KeysConsumer consumer;
  consumer.start(params, memory, group);
  float dv[kHeadDimV / 2] = {};
  wait_barrier(consumer.barriers.own_full, 0);
#pragma unroll 1
  while (true) {
    RingPlace<kStages>& at = consumer.at;
    wait_barrier(consumer.barriers.first_full + at.stage * 8, at.parity);
    const Step step = told_step(consumer.steps + at.stage * 32);
    if (step.head == kNoHead) break;
    if (consumer.is_seen(step)) {
      consumer.add_values(dv, params, step);
    } else {
      consumer.pass_step(params);
    }
    release_first(consumer.barriers, at.stage);
    at.advance();
  }
  consumer.write_values(dv, params);
  wait_for_output();
}

// A consumer warpgroup of fw_backward_keys.
__device__ __forceinline__ void consume_queries(const Params& params, u32 memory, int group) {
  KeysConsumer consumer;
  consumer.start(params, memory, group);
  const Barriers& barriers = consumer.barriers;
  float dk[kHeadDim / 2] = {}, dv[kHeadDimV / 2] = {};
  wait_barrier(barriers.own_full, 0);
#pragma unroll 1
  while (true) {
    RingPlace<kStages>& at = consumer.at;
    wait_barrier(barriers.first_full + at.stage * 8, at.parity);
    const Step step = told_step(consumer.steps + at.stage * 32);
    if (step.head == kNoHead) break;
    u32 packed_gradients[kPartQueries / 16][4];
    if (consumer.is_seen(step)) {
      consumer.start_step(dk, dv, packed_gradients, params, step);
    } else {
      consumer.pass_step(params);
    }
    consumer.finish_step(dk);
    at.advance();
  }
  consumer.write_values(dv, params);
  consumer.write_keys(dk, params);
  wait_for_output();
}

// Starts the copy of queries and gradients of outputs.
__device__ __forceinline__ void load_own_queries(const Params& params, const QueryTile& work,
                                                 u32 memory, const Barriers& barriers) {
  arrive_expecting(barriers.own_full, kConsumers * (kOwnQueriesBytes + kOwnOutputsBytes));
#pragma unroll 1
  for (int group = 0; group < kConsumers; ++group) {
    const int row = work.row_begin + group * 64;
    load_tile<64, kQueryBoxRows, kPaddedDim, kSwizzle>(memory + group * kOwnQueriesStride,
                                                       params.q_map, barriers.own_full, row,
                                                       work.head, work.batch);
    load_tile<64, kQueryBoxRows, kPaddedDimV, kSwizzleV>(
        memory + kOwnOutputsOffset + group * kOwnOutputsStride, params.d_o_map, barriers.own_full,
        row, work.head, work.batch);
  }
}

// Brings what TMA can address: one thread.
__device__ __forceinline__ void load_keys(const Params& params, const QueryTile& work, u32 memory,
                                          const Barriers& barriers) {
  KeyTiles tiles;
  tiles.start(params, work);
  load_own_queries(params, work, memory, barriers);
  const int kv_head = work.head / params.group;
  RingPlace<kKeyStages> at = {};
  RingPlace<kValueStages> values_at = {};
#pragma unroll 1
  while (!tiles.done) {
    const int first_key = tiles.first;
    const u32 first_full = barriers.first_full + at.stage * 8;
    wait_barrier(barriers.first_empty + at.stage * 8, at.parity ^ 1);
    tiles.advance(params);
    arrive_expecting(first_full, kStepKeysBytes);
    load_tile<kTileKv, kKeyBoxRows, kPaddedDim, kSwizzle>(
        memory + kStepKeysOffset + at.stage * kStepKeysStride, params.k_map, first_full, first_key,
        kv_head, work.batch);
    const u32 second_full = barriers.second_full + values_at.stage * 8;
    wait_barrier(barriers.second_empty + values_at.stage * 8, values_at.parity ^ 1);
    arrive_expecting(second_full, kStepValuesBytes);
    load_tile<kTileKv, kKeyBoxRows, kPaddedDimV, kSwizzleV>(
        memory + kStepValuesOffset + values_at.stage * kStepValuesStride, params.v_map, second_full,
        first_key, kv_head, work.batch);
    at.advance();
    values_at.advance();
  }
}

// The same by all threads of the warpgroup, for rows that start anywhere.
__device__ __forceinline__ void copy_keys(const Params& params, const QueryTile& work, u32 memory,
                                          const Barriers& barriers) {
  const Element* q = params.q + work.batch * params.q_batch_stride +
                     work.head * params.q_head_stride + work.row_begin * params.q_row_stride;
  const Element* d_o = params.d_o + work.batch * params.d_o_batch_stride +
                       work.head * params.d_o_head_stride + work.row_begin * params.d_o_row_stride;
  const bool first_thread = thread_index() % 128 == 0;
#pragma unroll 1
  for (int group = 0; group < kConsumers; ++group) {
    const int rows = work.row_end - work.row_begin - group * 64;
    copy_rows<64, kHeadDim, kPaddedDim, kSwizzle>(memory + group * kOwnQueriesStride,
                                                  q + group * 64 * params.q_row_stride,
                                                  params.q_row_stride, rows);
    copy_rows<64, kHeadDimV, kPaddedDimV, kSwizzleV>(
        memory + kOwnOutputsOffset + group * kOwnOutputsStride,
        d_o + group * 64 * params.d_o_row_stride, params.d_o_row_stride, rows);
  }
  KeyTiles tiles;
  tiles.start(params, work);
  announce(barriers.own_full);
  const int kv_head = work.head / params.group;
  const Element* k = params.k + work.batch * params.k_batch_stride + kv_head * params.k_head_stride;
  const Element* v = params.v + work.batch * params.v_batch_stride + kv_head * params.v_head_stride;
  RingPlace<kKeyStages> at = {};
  RingPlace<kValueStages> values_at = {};
#pragma unroll 1
  while (!tiles.done) {
    const int first_key = tiles.first, rows = params.seq_kv - first_key;
    wait_barrier(barriers.first_empty + at.stage * 8, at.parity ^ 1);
    tiles.advance(params);
    copy_rows<kTileKv, kHeadDim, kPaddedDim, kSwizzle>(
        memory + kStepKeysOffset + at.stage * kStepKeysStride, k + first_key * params.k_row_stride,
        params.k_row_stride, rows);
    announce(barriers.first_full + at.stage * 8);
    wait_barrier(barriers.second_empty + values_at.stage * 8, values_at.parity ^ 1);
    copy_rows<kTileKv, kHeadDimV, kPaddedDimV, kSwizzleV>(
        memory + kStepValuesOffset + values_at.stage * kStepValuesStride,
        v + first_key * params.v_row_stride, params.v_row_stride, rows);
    announce(barriers.second_full + values_at.stage * 8);
    at.advance();
    values_at.advance();
  }
}

// The producer warpgroup.
__device__ __forceinline__ void produce_keys(const Params& params, u32 memory) {
  const QueryTile work = find_query_tile(params);
  const Barriers barriers = find_barriers(memory + kQueriesBarriersOffset);
  if (!params.aligned) {
    copy_keys(params, work, memory, barriers);
  } else if (warp_index() % 4 == 0 && elect_lane()) {
    load_keys(params, work, memory, barriers);
  }
}

// A consumer on its way.
struct QueriesConsumer {
  int group;             // which of the consumers
  u32 queries, outputs;  // its own, in shared memory
  u32 keys, values;      // the first stage of each
  Barriers barriers;
  QueryTile work;
  int first_row;      // of the warp
  float lse[2];       // of the lane's rows, in units of log2
  float sums[2];      // what their gradients have in common
  WarpKeys own_keys;  // of the 64 queries
  KeyTiles tiles;
  RingPlace<kKeyStages> at;
  RingPlace<kValueStages> values_at;
  float scale_log2;

  __device__ __forceinline__ void start(const Params& params, u32 memory, int own_group) {
    group = own_group;
    work = find_query_tile(params);
    queries = memory + group * kOwnQueriesStride;
    outputs = memory + kOwnOutputsOffset + group * kOwnOutputsStride;
    keys = memory + kStepKeysOffset;
    values = memory + kStepValuesOffset;
    barriers = find_barriers(memory + kQueriesBarriersOffset);
    first_row = work.row_begin + group * 64 + warp_index() % 4 * 16;
    const float* statistics =
        static_cast<const float*>(params.workspace) +
        2 * (static_cast<i64>(work.batch) * params.heads_q + work.head) * params.seq_q;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + half * 8 + lane_index() / 4;
      lse[half] = row < work.row_end ? load_global(statistics + 2 * row) : infinity();
      sums[half] = row < work.row_end ? load_global(statistics + 2 * row + 1) : 0.0f;
    }
    own_keys.start(params, work, group * 64, 64);
    at = {};
    values_at = {};
    scale_log2 = params.scale_log2;
  }

  // Until the keys of the tile at hand are there.
  __device__ __forceinline__ void wait_for_keys() {
    wait_barrier(barriers.first_full + at.stage * 8, at.parity);
  }

  __device__ __forceinline__ void advance(const Params& params) {
    at.advance();
    values_at.advance();
    tiles.advance(params);
  }

  // Turns scores into weights, with the derivatives of what has modified them as a factor.
  __device__ __forceinline__ void soften(float (&sums_of_tile)[kKeyTiles * 4],
                                         const Params& params) const {
    auto& scores = reinterpret_cast<float(&)[kRowTiles][kKeyTiles][4]>(sums_of_tile);
    modify_scores(scores, params, tiles, first_row, find_slope(params, work, scale_log2));
#pragma unroll
    for (int i = 0; i < kKeyTiles * 4; ++i)
      sums_of_tile[i] =
          exp2_approx(fused_multiply_add(sums_of_tile[i], scale_log2, -lse[i % 4 / 2]));
    if (own_keys.needs_test(tiles)) hide_scores(scores, params, work, tiles, first_row, 0.0f);
  }

  // Turns weights and their gradients into gradients of the scores, rounded for the product with
  // keys.
  __device__ __forceinline__ void differentiate(const float (&weights)[kKeyTiles * 4],
                                                float (&gradients)[kKeyTiles * 4],
                                                u32 (&packed)[kTileKv / 16][4],
                                                const Params& params) const {
#pragma unroll
    for (int i = 0; i < kKeyTiles * 4; ++i)
      gradients[i] = weights[i] * (gradients[i] - sums[i % 4 / 2]);
    pack<kTileKv>(packed, gradients);
  }
};

// A consumer warpgroup.
__device__ __forceinline__ void consume_keys(const Params& params, u32 memory, int group) {
  QueriesConsumer consumer;
  consumer.start(params, memory, group);
  const Barriers& barriers = consumer.barriers;
  float dq[kHeadDim / 2] = {};
  wait_barrier(barriers.own_full, 0);
  consumer.tiles.start(params, consumer.work);
#pragma unroll 1
  while (!consumer.tiles.done) {
    const RingPlace<kKeyStages> at = consumer.at;
    const RingPlace<kValueStages> values_at = consumer.values_at;
    const u32 keys = consumer.keys + at.stage * kStepKeysStride;
    consumer.wait_for_keys();
    if (consumer.own_keys.visible(consumer.tiles)) {
      float scores[kKeyTiles * 4], gradients[kKeyTiles * 4];
      u32 packed[kTileKv / 16][4];
      fence_products();
      start_product<kTileKv, kDepth, kSwizzle>(scores, consumer.queries, keys);
      wait_barrier(barriers.second_full + values_at.stage * 8, values_at.parity);
      fence_products();
      start_product<kTileKv, kDepthV, kSwizzleV>(
          gradients, consumer.outputs, consumer.values + values_at.stage * kStepValuesStride);
      wait_products<1>();
      hold(scores);
      consumer.soften(scores, params);
      wait_products<0>();
      hold(gradients);
      release(barriers.second_empty + values_at.stage * 8);
      consumer.differentiate(scores, gradients, packed, params);
      fence_products();
      start_gradient<kTileKv, kSwizzle>(dq, packed, keys);
      wait_products<0>();
      hold(dq);
    } else {
      pass_second(barriers, values_at, group);
    }
    release_first(barriers, at.stage);
    consumer.advance(params);
  }
  const QueryTile& work = consumer.work;
  const Target target = {
      params.dq_map,
      params.dq + work.batch * params.dq_batch_stride + work.head * params.dq_head_stride,
      params.dq_row_stride,
      work.batch,
      work.head,
      work.row_begin + group * 64,
      work.row_end,
      params.seq_q};
  write_rows<kHeadDim, kSwizzle>(dq, numerator(params) * params.softmax_scale, consumer.queries,
                                 target, params.aligned != 0, group);
  wait_for_output();
}

// What the other kernels need to know of each row.
extern "C" __global__ void __launch_bounds__(kPrepareThreads)
    fw_backward_rows(const __grid_constant__ Params params) {
  start_next_kernel();  // it waits for this one
  wait_for_previous_kernel();
  prepare_rows(params);
}

// One block computes the gradients of kKeysPerBlock keys of one head, and of their values.
extern "C" __global__ void __launch_bounds__(kKeysThreads, kBlocksPerSm)
    fw_backward_keys(const __grid_constant__ Params params) {
  const u32 memory = swizzled_memory();
  if (thread_index() == 0) find_barriers(memory + kKeysBarriersOffset).make(4);
  synchronize_block();
  start_next_kernel();
  const int group = static_cast<int>(shuffle(warp_index() / 4, 0));
  if (group == kConsumers) {
    give_registers<kProducerRegisters>();
    wait_for_previous_kernel();
    produce_queries(params, memory);
  } else {
    take_registers<kConsumerRegisters>();
    wait_for_previous_kernel();
    consume_queries(params, memory, group);
  }
}

// The same for the values alone, where nobody wants what fw_backward_keys would compute with them.
extern "C" __global__ void __launch_bounds__(kKeysThreads, kBlocksPerSm)
    fw_backward_values(const __grid_constant__ Params params) {
  const u32 memory = swizzled_memory();
  if (thread_index() == 0) find_barriers(memory + kKeysBarriersOffset).make(4);
  synchronize_block();
  start_next_kernel();
  const int group = static_cast<int>(shuffle(warp_index() / 4, 0));
  if (group == kConsumers) {
    give_registers<kProducerRegisters>();
    wait_for_previous_kernel();
    produce_queries(params, memory);
  } else {
    take_registers<kConsumerRegisters>();
    wait_for_previous_kernel();
    consume_queries_for_values(params, memory, group);
  }
}

// One block computes the gradients of kTileQ queries of one head.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    fw_backward_queries(const __grid_constant__ Params params) {
  const u32 memory = swizzled_memory();
  if (thread_index() == 0) find_barriers(memory + kQueriesBarriersOffset).make(1);
  synchronize_block();
  start_next_kernel();
  const int group = static_cast<int>(shuffle(warp_index() / 4, 0));
  if (group == kConsumers) {
    give_registers<kProducerRegisters>();
    wait_for_previous_kernel();
    produce_keys(params, memory);
  } else {
    take_registers<kConsumerRegisters>();
    wait_for_previous_kernel();
    consume_keys(params, memory, group);
  }
}
