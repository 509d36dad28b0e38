// Attention forward for sm_90a: bf16, head dim 64, no mask.
// Tiles of 192 queries by 96 keys, 3 stages; a producer and 3 consumer warpgroups. 120.2 KiB of
//     shared memory.
// Launch fw_forward: min(132, ceil_div(ceil_div(seq_q, 192) * heads_q * batch, max(1,
//     ceil_div(seq_q * heads_q * batch, 25344)))) blocks of 512 threads, 123104 bytes of dynamic
//     shared memory. It may start while the kernel before it still runs.
// Tensor map q_map: boxes of 64 rows by 64 columns of 64, swizzle 128.
// Tensor map k_map: boxes of 96 rows by 64 columns of 64, swizzle 128.
// Tensor map v_map: boxes of 96 rows by 64 columns of 64, swizzle 128.
// Tensor map o_map: boxes of 64 rows by 64 columns of 64, swizzle 128.
// Regenerate: flashwright emit --dtype bf16 --head-dim 64 --target sm_90a --schedule
//     q192.kv96.w16.st3.qr1.b1.pp1.pb132.qp1
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

constexpr int kConsumers = 3;            // warpgroups of 64 query rows; one more produces
constexpr int kTileQ = 64 * kConsumers;  // query rows per block
constexpr int kTileKv = 96;              // keys per step
constexpr int kStages = 3;               // key and value tiles in flight
constexpr int kQueryStages = 2;          // query tiles in flight
constexpr int kHeadDim = 64;             // of queries and keys
constexpr int kHeadDimV = 64;            // of values and outputs
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr int kBlocksPerSm = 1;         // resident together
constexpr int kProducerRegisters = 32;  // of each thread
constexpr int kConsumerRegisters = 160;

constexpr int kElementBytes = 2;  // bf16
constexpr int kPaddedDim = 64;    // whole slabs
constexpr int kPaddedDimV = 64;
constexpr int kSwizzle = 128;                    // bytes of a slab of queries or keys
constexpr int kSwizzleV = 128;                   // of values or outputs
constexpr int kRowTiles = 1;                     // tiles of 16 rows that a warp owns
constexpr int kKeyTiles = kTileKv / 8;           // columns of accumulators along the keys
constexpr int kKeySteps = kTileKv / 16;          // tensor core steps along the keys
constexpr int kDimTiles = kHeadDimV / 8;         // columns of accumulators along the head dim
constexpr int kDimSteps = (kHeadDim + 15) / 16;  // tensor core steps along it

constexpr float kLn2 = 0.6931471805599453f;
constexpr float kLargeExponent = 256.0f;  // from here on one rounding would show

constexpr int kQueriesBytes = 64 * kPaddedDim * kElementBytes;       // of one consumer
constexpr int kOwnBytes = 8192;                                      // of them, or of its output
constexpr int kKeysBytes = kTileKv * kPaddedDim * kElementBytes;     // one stage
constexpr int kValuesBytes = kTileKv * kPaddedDimV * kElementBytes;  // one stage
constexpr int kKeysOffset = 49152;                                   // multiples of 1024
constexpr int kKeysStride = 12288;
constexpr int kValuesOffset = 86016;
constexpr int kValuesStride = 12288;
constexpr int kWorkOffset = 122880;  // which query tiles are at hand
constexpr int kWorkBytes = 16;
constexpr int kBarriersOffset = 122912;
constexpr int kBarriers = 2 * kQueryStages * kConsumers + 4 * kStages;
constexpr int kSharedBytes = kBarriersOffset + 8 * kBarriers;
static_assert(kSharedBytes == 123104, "the launch plan says so");

using Element = u16;

// What the host fills in for each launch.
struct Params {
  TensorMap q_map;                                  // boxes of q for TMA
  TensorMap k_map;                                  // boxes of k
  TensorMap v_map;                                  // boxes of v
  TensorMap o_map;                                  // boxes of o
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
  int batch;
  int aligned;  // 1: every row starts on a multiple of 16 bytes
};

__device__ __forceinline__ int thread_index() { return static_cast<int>(threadIdx.x); }

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % 32; }

__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / 32; }

__device__ __forceinline__ i64 block_index() { return blockIdx.x; }

// Blocks of the grid.
__device__ __forceinline__ i64 block_count() { return gridDim.x; }

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

// 1 / x with a relative error below 2^-22; subnormal numbers count as 0.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float value;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
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

// Shared memory whose address is a multiple of 1024: a swizzled tile starts where its pattern does.
__device__ __forceinline__ u32 swizzled_memory() {
  extern __shared__ __align__(1024) unsigned char tiles[];
  return static_cast<u32>(__cvta_generic_to_shared(tiles));
}

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
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

// Counts at the barrier and goes on.
__device__ __forceinline__ void arrive_named(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
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

// Loads four 8 x 8 matrices of 16-bit elements, or 8 x 4 of 32 bits. Lanes 8i..8i+7 give the
// addresses of the rows of matrix i; lane l gets the word at row g, words t of matrix i in r[i].
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
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

// Keeps a left operand in its registers up to this point: behind a branch the compiler takes them
// for free as soon as the product has started.
template <int kCount>
__device__ __forceinline__ void hold_operands(const u32 (&a)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("" ::"r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]) : "memory");
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

// d = a * b: 64 x 16, in registers, by 16 x 96, K-major.
__device__ __forceinline__ void wgmma_rs_n96_k_first(float (&d)[48], const u32 (&a)[4], u64 b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.u32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
      "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
      "{%48, %49, %50, %51}, %52, accumulate, 1, 1, 0;\n"
      "}"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
        "=f"(d[7]), "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]),
        "=f"(d[14]), "=f"(d[15]), "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]),
        "=f"(d[21]), "=f"(d[22]), "=f"(d[23]), "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]),
        "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31]), "=f"(d[32]), "=f"(d[33]), "=f"(d[34]),
        "=f"(d[35]), "=f"(d[36]), "=f"(d[37]), "=f"(d[38]), "=f"(d[39]), "=f"(d[40]), "=f"(d[41]),
        "=f"(d[42]), "=f"(d[43]), "=f"(d[44]), "=f"(d[45]), "=f"(d[46]), "=f"(d[47])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
      : "memory");
}

__device__ __forceinline__ void multiply_first_scores(float (&d)[48], const u32 (&a)[4], u64 b) {
  wgmma_rs_n96_k_first(d, a, b);
}

// d += a * b: 64 x 16, in registers, by 16 x 96, K-major.
__device__ __forceinline__ void wgmma_rs_n96_k(float (&d)[48], const u32 (&a)[4], u64 b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.eq.u32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
      "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
      "{%48, %49, %50, %51}, %52, accumulate, 1, 1, 0;\n"
      "}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
      : "memory");
}

__device__ __forceinline__ void multiply_scores(float (&d)[48], const u32 (&a)[4], u64 b) {
  wgmma_rs_n96_k(d, a, b);
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

__device__ __forceinline__ void multiply_output(float (&d)[32], const u32 (&a)[4], u64 b) {
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

__device__ __forceinline__ u32 query_tiles_per_head(const Params& params) {
  return static_cast<u32>(params.seq_q + kTileQ - 1) / kTileQ;
}

// A query tile by its place among all heads and among those of its head.
__device__ __forceinline__ QueryTile make_query_tile(const Params& params, u32 head, u32 tile) {
  QueryTile work;
  work.batch = static_cast<int>(head / params.heads_q);
  work.head = static_cast<int>(head % params.heads_q);
  work.row_begin = static_cast<int>(tile) * kTileQ;
  work.row_end = params.seq_q;
  return work;
}

// The query tiles of all heads.
__device__ __forceinline__ u32 count_query_tiles(const Params& params) {
  return query_tiles_per_head(params) * params.heads_q * params.batch;
}

// The query tile with a number. Those of a head are next to each other, so that blocks which run at
// the same time read the same keys. The last tile comes first: under a causal mask it is the
// longest.
__device__ __forceinline__ QueryTile numbered_query_tile(const Params& params, u32 number) {
  const u32 tiles = query_tiles_per_head(params);
  return make_query_tile(params, number / tiles, tiles - 1 - number % tiles);
}

// The query tiles that a block takes, one in each round.
struct Turn {
  u32 blocks;        // of the grid, and tiles of a round
  u32 first, place;  // the first number of the round, and how far behind it that of the block is
  bool exists;
  QueryTile work;

  __device__ __forceinline__ explicit Turn(const Params& params) {
    blocks = static_cast<u32>(block_count());
    first = 0;
    place = static_cast<u32>(block_index());
    find(params);
  }

  __device__ __forceinline__ void next(const Params& params) {
    first += blocks;
    // Another place: the last tile of a head may be short, and would else be the same block's.
    place = place + 1 == blocks ? 0 : place + 1;
    find(params);
  }

  __device__ __forceinline__ void find(const Params& params) {
    const u32 number = first + place;
    exists = number < count_query_tiles(params);
    if (exists) work = numbered_query_tile(params, number);
  }
};

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

// Where a role is on its way through the tiles.
struct Walk {
  RingPlace<kStages> at;
  RingPlace<kQueryStages> queries;
};

// The mbarriers of a block, those of the first stage. Full: the tile has arrived. Empty: all who
// read it are done. Every consumer has queries of its own.
struct Barriers {
  u32 queries_full, queries_empty;
  u32 keys_full, keys_empty, values_full, values_empty;

  __device__ __forceinline__ void make() const {
#pragma unroll
    for (int i = 0; i < kQueryStages * kConsumers; ++i) {
      init_barrier(queries_full + i * 8, 1);
      init_barrier(queries_empty + i * 8, 4);  // warps
    }
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(keys_full + stage * 8, 1);
      init_barrier(values_full + stage * 8, 1);
      init_barrier(keys_empty + stage * 8, kConsumers);
      init_barrier(values_empty + stage * 8, kConsumers);
    }
    publish_barriers();
  }
};

__device__ __forceinline__ Barriers find_barriers(u32 memory) {
  Barriers barriers;
  barriers.queries_full = memory + kBarriersOffset;
  barriers.queries_empty = barriers.queries_full + kQueryStages * kConsumers * 8;
  barriers.keys_full = barriers.queries_empty + kQueryStages * kConsumers * 8;
  barriers.keys_empty = barriers.keys_full + kStages * 8;
  barriers.values_full = barriers.keys_empty + kStages * 8;
  barriers.values_empty = barriers.values_full + kStages * 8;
  return barriers;
}

// One thread gives a stage of keys or values back.
__device__ __forceinline__ void arrive_empty(u32 barrier) { arrive(barrier); }

// A stage has been filled by the threads of this block.
__device__ __forceinline__ void announce_stage(u32 barrier) { announce(barrier); }

// One thread of a warpgroup speaks for it: its wait has covered the products of all.
__device__ __forceinline__ void release_stage(u32 barrier) {
  if (thread_index() % 128 == 0) arrive_empty(barrier);
}

// The queries of a consumer: their number among all, for their place and their barriers.
__device__ __forceinline__ int queries_number(const RingPlace<kQueryStages>& at, int group) {
  return at.stage * kConsumers + group;
}

// The first of a consumer's rows in a query tile.
__device__ __forceinline__ int row_of(const RingPlace<kQueryStages>& at, int group) {
  return group * 64;
}

constexpr int kNoTile = -1;  // instead of a number in the batch

// The producer finds out which query tile comes next and tells the consumers beside its queries:
// that takes divisions, each of them a long chain of instructions.
__device__ __forceinline__ void tell_work(u32 memory, const RingPlace<kQueryStages>& at,
                                          const QueryTile& work) {
  const u32 place = memory + kWorkOffset + at.stage * kWorkBytes;
  store_shared_u32(place, work.batch);
  store_shared_u32(place + 4, work.head);
  store_shared_u32(place + 8, work.row_begin);
  store_shared_u32(place + 12, work.row_end);
}

// Once the queries are full. The lane that reads is one of those that give their place back.
__device__ __forceinline__ QueryTile told_work(u32 memory, int stage) {
  Bytes16 words = {};
  if (lane_index() == 0) words = load_shared_16(memory + kWorkOffset + stage * kWorkBytes);
  return {static_cast<int>(shuffle(words.word[0], 0)), static_cast<int>(shuffle(words.word[1], 0)),
          static_cast<int>(shuffle(words.word[2], 0)), static_cast<int>(shuffle(words.word[3], 0))};
}

// Consumers start their products in turn, once for each tile: so the softmax of one runs beside the
// products of another. A turn is a named barrier that one consumer waits at and the one before it
// arrives at.
constexpr int kFirstTurn = 2 + kConsumers;

__device__ __forceinline__ void take_turn(int group) { synchronize_named(kFirstTurn + group, 256); }

__device__ __forceinline__ void pass_turn(int group) {
  arrive_named(kFirstTurn + (group + 1) % kConsumers, 256);
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

// Starts the copy of kRows rows of one head; what lies behind the end of the tensor becomes 0.
// Loops stay loops: a producer has few registers.
template <int kRows, int kColumns, int kSwizzle>
__device__ __forceinline__ void load_boxes(u32 tile, const TensorMap& map, u32 barrier, int row,
                                           int head, int batch) {
  constexpr int kSlab = kSwizzle / 2;
#pragma unroll 1
  for (int column = 0; column < kColumns; column += kSlab)
    load_box(tile + column / kSlab * kRows * kSwizzle, map, barrier, column, row, head, batch);
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

// Until the places of the next queries, of all consumers, are empty.
__device__ __forceinline__ void wait_for_places(const Barriers& barriers,
                                                const RingPlace<kQueryStages>& at) {
#pragma unroll 1
  for (int group = 0; group < kConsumers; ++group)
    wait_barrier(barriers.queries_empty + queries_number(at, group) * 8, at.parity ^ 1);
}

// What is told of a query tile is there for all consumers, without queries.
__device__ __forceinline__ void announce_work(const Barriers& barriers,
                                              const RingPlace<kQueryStages>& at) {
#pragma unroll 1
  for (int group = 0; group < kConsumers; ++group)
    arrive(barriers.queries_full + queries_number(at, group) * 8);
}

// No query tile is left.
__device__ __forceinline__ void tell_end(u32 memory, const Barriers& barriers,
                                         const RingPlace<kQueryStages>& at) {
  wait_for_places(barriers, at);
  tell_work(memory, at, {kNoTile, 0, 0, 0});
  announce_work(barriers, at);
}

// Starts the copy of the queries of all consumers.
__device__ __forceinline__ void load_queries(const Params& params, const QueryTile& work,
                                             u32 memory, const Barriers& barriers, Walk& walk) {
#pragma unroll 1
  for (int group = 0; group < kConsumers; ++group) {
    const int number = queries_number(walk.queries, group);
    const u32 full = barriers.queries_full + number * 8;
    arrive_expecting(full, kQueriesBytes);
    load_boxes<64, kPaddedDim, kSwizzle>(memory + number * kOwnBytes, params.q_map, full,
                                         work.row_begin + row_of(walk.queries, group), work.head,
                                         work.batch);
  }
  walk.queries.advance();
}

// Starts the copy of the keys of the tile at hand, once their stage is empty, and goes on to the
// next tile. Returns the first of the keys.
__device__ __forceinline__ int load_keys(const Params& params, const QueryTile& work, int kv_head,
                                         u32 memory, const Barriers& barriers,
                                         const RingPlace<kStages>& at, KeyTiles& tiles) {
  const int first_key = tiles.first;
  const u32 full = barriers.keys_full + at.stage * 8;
  const u32 tile = memory + kKeysOffset + at.stage * kKeysStride;
  wait_barrier(barriers.keys_empty + at.stage * 8, at.parity ^ 1);
  tiles.advance(params);
  arrive_expecting(full, kKeysBytes);
  load_boxes<kTileKv, kPaddedDim, kSwizzle>(tile, params.k_map, full, first_key, kv_head,
                                            work.batch);
  return first_key;
}

// The same for the values of those keys.
__device__ __forceinline__ void load_values(const Params& params, const QueryTile& work,
                                            int kv_head, u32 memory, const Barriers& barriers,
                                            const RingPlace<kStages>& at, int first_key) {
  const u32 full = barriers.values_full + at.stage * 8;
  const u32 tile = memory + kValuesOffset + at.stage * kValuesStride;
  wait_barrier(barriers.values_empty + at.stage * 8, at.parity ^ 1);
  arrive_expecting(full, kValuesBytes);
  load_boxes<kTileKv, kPaddedDimV, kSwizzleV>(tile, params.v_map, full, first_key, kv_head,
                                              work.batch);
}

// Loads the queries of the tile whose turn it is, its keys and its values: the first keys before
// the queries, as their place is empty earlier. Behind the last keys it takes the next turn: that
// needs time, which the wait for a place for their values hides.
__device__ __forceinline__ void load_tiles(const Params& params, Turn& turn, u32 memory,
                                           const Barriers& barriers, Walk& walk) {
  const QueryTile work = turn.work;
  const int kv_head = work.head / params.group;
  KeyTiles tiles;
  tiles.start(params, work);
  const bool has_keys = !tiles.done;
  int first_key = 0;
  if (has_keys) first_key = load_keys(params, work, kv_head, memory, barriers, walk.at, tiles);
  wait_for_places(barriers, walk.queries);
  tell_work(memory, walk.queries, work);
  load_queries(params, work, memory, barriers, walk);
  bool last = tiles.done;
  if (last) turn.next(params);
  if (!has_keys) return;
  while (true) {
    load_values(params, work, kv_head, memory, barriers, walk.at, first_key);
    walk.at.advance();
    if (last) return;
    first_key = load_keys(params, work, kv_head, memory, barriers, walk.at, tiles);
    last = tiles.done;
    if (last) turn.next(params);
  }
}

// By all threads of the warpgroup, once it is told which query tile it is.
__device__ __forceinline__ void copy_tiles(const Params& params, const QueryTile& work, u32 memory,
                                           const Barriers& barriers, Walk& walk) {
  const int kv_head = work.head / params.group;
  KeyTiles tiles;
  tiles.start(params, work);
  const Element* q = params.q + work.batch * params.q_batch_stride +
                     work.head * params.q_head_stride + work.row_begin * params.q_row_stride;
#pragma unroll 1
  for (int group = 0; group < kConsumers; ++group) {
    const int number = queries_number(walk.queries, group);
    copy_rows<64, kHeadDim, kPaddedDim, kSwizzle>(
        memory + number * kOwnBytes, q + row_of(walk.queries, group) * params.q_row_stride,
        params.q_row_stride, work.row_end - work.row_begin - row_of(walk.queries, group));
    announce(barriers.queries_full + number * 8);
  }
  walk.queries.advance();
  const Element* k = params.k + work.batch * params.k_batch_stride + kv_head * params.k_head_stride;
  const Element* v = params.v + work.batch * params.v_batch_stride + kv_head * params.v_head_stride;
  RingPlace<kStages>& at = walk.at;
  while (!tiles.done) {
    const int first_key = tiles.first, rows = params.seq_kv - first_key;
    wait_barrier(barriers.keys_empty + at.stage * 8, at.parity ^ 1);
    tiles.advance(params);
    copy_rows<kTileKv, kHeadDim, kPaddedDim, kSwizzle>(
        memory + kKeysOffset + at.stage * kKeysStride, k + first_key * params.k_row_stride,
        params.k_row_stride, rows);
    announce_stage(barriers.keys_full + at.stage * 8);
    wait_barrier(barriers.values_empty + at.stage * 8, at.parity ^ 1);
    copy_rows<kTileKv, kHeadDimV, kPaddedDimV, kSwizzleV>(
        memory + kValuesOffset + at.stage * kValuesStride, v + first_key * params.v_row_stride,
        params.v_row_stride, rows);
    announce_stage(barriers.values_full + at.stage * 8);
    at.advance();
  }
}

// Keeps what follows from using sums before this point.
template <int kTiles>
__device__ __forceinline__ void hold_sums(float (&sums)[kRowTiles][kTiles][4]) {
  hold(reinterpret_cast<float(&)[kTiles * 4]>(sums));
}

// The queries of a warp as left operands, one for each step.
__device__ __forceinline__ void load_operands(u32 (&operands)[kDimSteps][4], u32 queries) {
  const int lane = lane_index();
  const int row = warp_index() % 4 * 16 + lane % 16;
#pragma unroll
  for (int step = 0; step < kDimSteps; ++step)
    load_matrices(operands[step],
                  element_address<64, kSwizzle>(queries, row, step * 16 + lane / 16 * 8));
}

// Starts scores = Q K^T.
__device__ __forceinline__ void start_scores(float (&scores)[kRowTiles][kKeyTiles][4],
                                             const u32 (&queries)[kDimSteps][4], u32 keys) {
  float(&sums)[kKeyTiles * 4] = reinterpret_cast<float(&)[kKeyTiles * 4]>(scores);
  const u64 b = tile_descriptor<kSwizzle>(uniform_address(keys), 8 * kSwizzle, 0);
#pragma unroll
  for (int step = 0; step < kDimSteps; ++step) {
    constexpr int kSteps = kSwizzle / 32;  // of a slab
    const int slab = step / kSteps, offset = step % kSteps * 32;
    const u64 b_step = advance_descriptor(b, slab * kTileKv * kSwizzle + offset);
    if (step == 0) {
      multiply_first_scores(sums, queries[step], b_step);
    } else {
      multiply_scores(sums, queries[step], b_step);
    }
  }
  commit_products();
}

// Starts out += weights V.
__device__ __forceinline__ void start_output(float (&out)[kRowTiles][kDimTiles][4],
                                             const u32 (&weights)[kRowTiles][kKeySteps][4],
                                             u32 values) {
  float(&sums)[kDimTiles * 4] = reinterpret_cast<float(&)[kDimTiles * 4]>(out);
  const u64 b =
      tile_descriptor<kSwizzleV>(uniform_address(values), 8 * kSwizzleV, kTileKv * kSwizzleV);
#pragma unroll
  for (int step = 0; step < kKeySteps; ++step)
    multiply_output(sums, weights[0][step], advance_descriptor(b, step * 16 * kSwizzleV));
  commit_products();
}

// Hides the scores of keys behind the last that a row sees: they become `hidden`. `first_row` is
// the first of the warp's rows.
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
    const int end = keys.end - first_key;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (n * 8 + i >= end) scores[0][n][2 * half + i] = hidden;
      }
    }
  }
}

// Lays the rows down where the queries were.
__device__ __forceinline__ void lay_down(const float (&out)[kRowTiles][kDimTiles][4],
                                         const float (&factor)[2], u32 tile) {
  const int lane = lane_index();
  const int row = warp_index() % 4 * 16 + lane % 16;
#pragma unroll
  for (int n = 0; n < kDimTiles; n += 2) {
    u32 words[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (n + i / 2 < kDimTiles)
        words[i] = pack_pair(out[0][n + i / 2][i % 2 * 2] * factor[i % 2],
                             out[0][n + i / 2][i % 2 * 2 + 1] * factor[i % 2]);
    store_matrices(element_address<64, kSwizzleV>(tile, row, n * 8 + lane / 16 * 8), words);
  }
}

// One thread sends the rows by TMA. The copy runs until wait_for_output().
__device__ __forceinline__ void send_rows(const Params& params, const QueryTile& work, u32 tile,
                                          int row) {
  if (thread_index() % 128 != 0) return;
  constexpr int kSlab = kSwizzleV / 2;
#pragma unroll 1
  for (int column = 0; column < kPaddedDimV; column += kSlab)
    store_box(params.o_map, tile + column / kSlab * 64 * kSwizzleV, column, work.row_begin + row,
              work.head, work.batch);
  commit_stores();
}

// All threads copy the rows element by element: rows that start anywhere, or that end before the
// tile does.
__device__ __forceinline__ void copy_out(const Params& params, const QueryTile& work, u32 tile,
                                         int own_row) {
  const int first_row = work.row_begin + own_row;
  Element* target =
      params.o + work.batch * params.o_batch_stride + work.head * params.o_head_stride;
#pragma unroll 1
  for (int i = thread_index() % 128; i < 64 * kHeadDimV; i += 128) {
    const int row = i / kHeadDimV, column = i % kHeadDimV;
    if (first_row + row < work.row_end)
      store_global(target + (first_row + row) * params.o_row_stride + column,
                   load_shared_u16(element_address<64, kSwizzleV>(tile, row, column)));
  }
}

// Writes the LSE of the two rows that a lane shares with its quad.
__device__ __forceinline__ void write_lse(const RowState (&rows)[2], const float (&sums)[2],
                                          float scale_log2, const Params& params,
                                          const QueryTile& work, int own_row) {
  const int lane = lane_index();
  if (params.lse == nullptr || lane % 4 != 0) return;
  float* target = params.lse + work.batch * params.lse_batch_stride +
                  work.head * params.lse_head_stride + work.row_begin + own_row;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = warp_index() % 4 * 16 + half * 8 + lane / 4;
    const float log2_sum = fused_multiply_add(rows[half].max, scale_log2, log2_approx(sums[half]));
    const float lse = sums[half] == 0.0f ? -infinity() : log2_sum * kLn2;
    if (work.row_begin + own_row + place < work.row_end) store_global(target + place, lse);
  }
}

// Divides the outputs by their row sums and writes them, and the LSE.
__device__ __forceinline__ void write_output(const float (&out)[kRowTiles][kDimTiles][4],
                                             const RowState (&rows)[kRowTiles][2], float scale_log2,
                                             const Params& params, const QueryTile& work, u32 tile,
                                             int own_row, int group) {
  const float sums[2] = {quad_sum(rows[0][0].sum), quad_sum(rows[0][1].sum)};
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    factor[half] = reciprocal_approx(sums[half]);
    if (sums[half] == 0.0f) factor[half] = 0.0f;  // no visible key; a NaN is not empty
  }
  write_lse(rows[0], sums, scale_log2, params, work, own_row);
  lay_down(out, factor, tile);
  // TMA leaves out what lies behind the end of the tensor, but not what another block computes.
  const bool whole = work.row_begin + own_row + 64 <= work.row_end;
  const bool by_tma = params.aligned && (whole || work.row_end == params.seq_q);
  if (by_tma) fence_async_shared();
  synchronize_named(2 + group, 128);
  if (by_tma) {
    send_rows(params, work, tile, own_row);
  } else {
    copy_out(params, work, tile, own_row);
    fence_async_shared();  // the next to write there may be TMA
    synchronize_named(2 + group, 128);
  }
}

// Where a consumer is on its walk over the keys.
struct Consumer {
  int group;                  // which of the consumers
  int row;                    // the first of its rows in the query tile
  u32 queries, keys, values;  // tiles in shared memory
  Barriers barriers;
  u32 output_sent;  // barrier of the place that the last output leaves from; 0 before there is one
  WarpKeys own_keys;
  KeyTiles tiles;
  // The queries as left operands.
  u32 operands[kDimSteps][4];
  Walk walk;
  RingPlace<kStages> behind;  // the tile whose weights wait for their values
  float scale_log2;
  int first_row;  // as hide_scores() counts

  // Before the first query tile.
  __device__ __forceinline__ void start(const Params& params, u32 memory, int own_group) {
    group = own_group;
    queries = memory;
    keys = memory + kKeysOffset;
    values = memory + kValuesOffset;
    barriers = find_barriers(memory);
    walk = {};
    output_sent = 0;
    scale_log2 = params.scale_log2;
    if (group == kConsumers - 1) pass_turn(group);  // the first turn
  }

  // Until the queries of the next tile are there. Returns which tile it is.
  __device__ __forceinline__ QueryTile wait_for_work(u32 memory) {
    const int number = queries_number(walk.queries, group);
    queries = memory + number * kOwnBytes;
    // Or these queries would never come.
    if (output_sent == barriers.queries_empty + number * 8) clear_output();
    wait_barrier(barriers.queries_full + number * 8, walk.queries.parity);
    const QueryTile work = told_work(memory, walk.queries.stage);
    row = row_of(walk.queries, group);
    walk.queries.advance();
    return work;
  }

  // Before the keys of a query tile.
  __device__ __forceinline__ void begin(const Params& params, const QueryTile& work) {
    own_keys.start(params, work, row, 64);
    first_row = work.row_begin + row + warp_index() % 4 * 16;
    load_operands(operands, queries);
    tiles.start(params, work);
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
      // First the turn: with one stage, the values of this tile come once another consumer has
      // multiplied the last.
      take_turn(group);
      pass_turn(group);
      if (thread_index() % 128 == 0) {
        wait_barrier(barriers.keys_full + walk.at.stage * 8, walk.at.parity);
        arrive_empty(barriers.keys_empty + walk.at.stage * 8);
        wait_barrier(barriers.values_full + walk.at.stage * 8, walk.at.parity);
        arrive_empty(barriers.values_empty + walk.at.stage * 8);
      }
      walk.at.advance();
    }
    synchronize_named(2 + group, 128);
  }

  // Until the keys of the tile at hand are there.
  __device__ __forceinline__ void wait_for_keys() {
    wait_barrier(barriers.keys_full + walk.at.stage * 8, walk.at.parity);
  }

  __device__ __forceinline__ void release_keys() const {
    release_stage(barriers.keys_empty + walk.at.stage * 8);
  }

  // The scores of the first tile.
  __device__ __forceinline__ void first_scores(float (&scores)[kRowTiles][kKeyTiles][4]) {
    wait_for_keys();
    take_turn(group);
    fence_products();
    start_scores(scores, operands, keys + walk.at.stage * kKeysStride);
    pass_turn(group);
    clear_output();
    wait_products<0>();
    hold_sums(scores);
    hold_operands(operands);
    release_keys();
  }

  // The scores of the tile at hand, while the values of the one behind are on their way into `out`.
  __device__ __forceinline__ void next_scores(float (&scores)[kRowTiles][kKeyTiles][4],
                                              float (&out)[kRowTiles][kDimTiles][4],
                                              const u32 (&weights)[kRowTiles][kKeySteps][4]) {
    wait_barrier(barriers.values_full + behind.stage * 8, behind.parity);
    wait_for_keys();
    take_turn(group);
    fence_products();
    start_scores(scores, operands, keys + walk.at.stage * kKeysStride);
    start_output(out, weights, values + behind.stage * kValuesStride);
    pass_turn(group);
    clear_output();
    wait_products<1>();
    hold_sums(scores);
    hold_operands(operands);
    release_keys();
  }

  // Turns scores into weights. Returns in `rescale` the factor of earlier outputs.
  template <int kTiles>
  __device__ __forceinline__ void soften(float (&scores)[kRowTiles][kTiles][4],
                                         RowState (&rows)[kRowTiles][2],
                                         float (&rescale)[kRowTiles][2], const Params& params,
                                         const QueryTile& work) const {
    if (own_keys.needs_test(tiles))
      hide_scores(scores, params, work, tiles, first_row, -infinity());
    online_softmax(scores, rows, rescale, scale_log2);
  }

  // Rounds the weights for their values, and goes on to the next tile.
  __device__ __forceinline__ void advance(u32 (&weights)[kRowTiles][kKeySteps][4],
                                          const float (&scores)[kRowTiles][kKeyTiles][4],
                                          const Params& params) {
    pack_weights(weights, scores);
    behind = walk.at;
    walk.at.advance();
    tiles.advance(params);
  }

  // An output is on its way; the place it leaves from is that of queries to come.
  __device__ __forceinline__ void leave_output(int number) {
    clear_output();  // of one before it, where a tile without visible keys followed at once
    output_sent = barriers.queries_empty + number * 8;
  }

  // Lets queries come to where the last output was, once that has left. Each warp for itself.
  __device__ __forceinline__ void clear_output() {
    if (lane_index() == 0 && output_sent != 0) {
      if (thread_index() % 128 == 0) wait_stores_read<0>();
      arrive(output_sent);
    }
    output_sent = 0;
  }

  // Starts to multiply the values behind, when no scores follow.
  __device__ __forceinline__ void last_values(float (&out)[kRowTiles][kDimTiles][4],
                                              const u32 (&weights)[kRowTiles][kKeySteps][4]) const {
    wait_barrier(barriers.values_full + behind.stage * 8, behind.parity);
    fence_products();
    start_output(out, weights, values + behind.stage * kValuesStride);
  }

  // The values behind are in `out`.
  __device__ __forceinline__ void finish_output(float (&out)[kRowTiles][kDimTiles][4]) const {
    wait_products<0>();
    hold_sums(out);
    release_stage(barriers.values_empty + behind.stage * 8);
  }
};

// One query tile, of which this consumer computes 64 rows. It walks over the keys in tiles and
// keeps, for each row, the largest score, the sum of the weights relative to it, and the weighted
// sum of the values. The values of a tile are multiplied while the next scores become weights.
// Returns false if no query tile is left.
__device__ __forceinline__ bool consume_tile(Consumer& consumer, const Params& params, u32 memory) {
  const int stage = consumer.walk.queries.stage;
  float out[kRowTiles][kDimTiles][4] = {};
  RowState rows[kRowTiles][2] = {{{-infinity(), 0.0f}, {-infinity(), 0.0f}}};
  const QueryTile work = consumer.wait_for_work(memory);
  if (work.batch == kNoTile) return false;
  consumer.begin(params, work);
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
    consumer.last_values(out, weights);
    consumer.finish_output(out);
  }
  consumer.pass_tiles(params, true);
  write_output(out, rows, consumer.scale_log2, params, work, consumer.queries, consumer.row,
               consumer.group);
  consumer.leave_output(stage * kConsumers + consumer.group);
  return true;
}

// A consumer warpgroup.
__device__ __forceinline__ void consume(const Params& params, u32 memory, int group) {
  Consumer consumer;
  consumer.start(params, memory, group);
  while (consume_tile(consumer, params, memory)) {
  }
  wait_for_output();
}

// Brings what the query tiles of this block need: one thread, by TMA.
__device__ __forceinline__ void produce_by_tma(const Params& params, u32 memory) {
  const Barriers barriers = find_barriers(memory);
  prefetch_map(params.q_map);
  prefetch_map(params.k_map);
  prefetch_map(params.v_map);
  Walk walk = {};
  Turn turn(params);
  wait_for_previous_kernel();
#pragma unroll 1
  while (turn.exists) load_tiles(params, turn, memory, barriers, walk);
  tell_end(memory, barriers, walk.queries);
}

// The same by all threads of the warpgroup, for rows that start anywhere.
__device__ __forceinline__ void produce_by_copies(const Params& params, u32 memory) {
  const Barriers barriers = find_barriers(memory);
  Walk walk = {};
  Turn turn(params);
  const bool first = thread_index() % 128 == 0;
  wait_for_previous_kernel();
#pragma unroll 1
  while (true) {
    wait_for_places(barriers, walk.queries);
    if (first)
      tell_work(memory, walk.queries, turn.exists ? turn.work : QueryTile{kNoTile, 0, 0, 0});
    synchronize_named<1, 128>();
    const QueryTile work = told_work(memory, walk.queries.stage);
    if (work.batch == kNoTile) break;
    copy_tiles(params, work, memory, barriers, walk);
    if (first) turn.next(params);
  }
  if (first) announce_work(barriers, walk.queries);
}

// The producer warpgroup. It gives most of its registers to the consumers.
__device__ __forceinline__ void produce(const Params& params, u32 memory) {
  if (params.aligned) {
    if (warp_index() % 4 == 0 && elect_lane()) produce_by_tma(params, memory);
  } else {
    produce_by_copies(params, memory);
  }
}

// Blocks take turns in computing kTileQ rows of the output of one head.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    fw_forward(const __grid_constant__ Params params) {
  const u32 memory = swizzled_memory();
  if (thread_index() == 0) find_barriers(memory).make();
  synchronize_block();
  start_next_kernel();  // it waits for this one, too
  const int group = static_cast<int>(shuffle(warp_index() / 4, 0));
  if (group == kConsumers) {
    give_registers<kProducerRegisters>();
    produce(params, memory);
  } else {
    take_registers<kConsumerRegisters>();
    wait_for_previous_kernel();
    consume(params, memory, group);
  }
}
