//~ C = A B^T for matrices of 16-bit elements, in tiles of 128 x 128. One warp loads tiles of A and
//~ B into a ring of stages, two warpgroups multiply 64 rows each, and each stores its part of C.
//~ The sizes are no multiples of the tile: loads fill up with zeros, stores leave out what lies
//~ outside. The variant sets kSwizzle (128, 64 or 32), and kAcross: B lies in memory as K rows of N.

struct Params {
  TensorMap a, b, c;
  int depth;    // K
  int columns;  // tiles from left to right
  int tiles;    // of all C
  int blocks;
};

constexpr int kTileM = 128;
constexpr int kTileN = 128;
constexpr int kTileK = 64;
constexpr int kStages = 3;
constexpr int kGroups = 2;                     // warpgroups that multiply
constexpr int kThreads = 128 * (kGroups + 1);
constexpr int kSlab = kSwizzle / 2;            // elements of a row of a slab
constexpr int kBytesA = kTileM * kTileK * 2;
constexpr int kStageBytes = kBytesA + kTileN * kTileK * 2;
constexpr int kOutBytes = 64 * kTileN * 2;     // of one warpgroup
constexpr int kOut = kStages * kStageBytes;
constexpr int kFull = kOut + kGroups * kOutBytes;
constexpr int kEmpty = kFull + kStages * 8;
constexpr int kSharedBytes = kEmpty + kStages * 8;

static_assert(kSharedBytes == 131120, "what the test launches with");

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

__device__ __forceinline__ void make_barriers(u32 memory) {
  for (int stage = 0; stage < kStages; ++stage) {
    init_barrier(memory + kFull + stage * 8, 1);
    init_barrier(memory + kEmpty + stage * 8, kGroups);
  }
  publish_barriers();
}

// Starts the loads of one stage: slabs of A, of B and of a B that is read across its rows.
__device__ __forceinline__ void load_stage(const Params& params, u32 stage, u32 full, int row,
                                           int column, int k) {
  for (int slab = 0; slab < kTileK / kSlab; ++slab)
    load_box(stage + slab * kTileM * kSwizzle, params.a, full, k + slab * kSlab, row, 0, 0);
  const u32 b = stage + kBytesA;
  if constexpr (kAcross) {
    for (int slab = 0; slab < kTileN / kSlab; ++slab)
      load_box(b + slab * kTileK * kSwizzle, params.b, full, column + slab * kSlab, k, 0, 0);
  } else {
    for (int slab = 0; slab < kTileK / kSlab; ++slab)
      load_box(b + slab * kTileN * kSwizzle, params.b, full, k + slab * kSlab, column, 0, 0);
  }
}

// What the one loading thread does.
__device__ __forceinline__ void load_tiles(const Params& params, u32 memory) {
  Ring ring = {0, 0};
  for (int tile = static_cast<int>(block_index()); tile < params.tiles; tile += params.blocks) {
    const int row = tile / params.columns * kTileM, column = tile % params.columns * kTileN;
    for (int k = 0; k < params.depth; k += kTileK) {
      const u32 full = memory + kFull + ring.stage * 8;
      wait_barrier(memory + kEmpty + ring.stage * 8, ring.parity ^ 1);
      arrive_expecting(full, kStageBytes);
      load_stage(params, memory + ring.stage * kStageBytes, full, row, column, k);
      ring.advance();
    }
  }
}

// Where the elements from k on begin in a tile of `rows` rows whose neighbours share k.
__device__ __forceinline__ u32 along_rows(u32 tile, int k, int rows) {
  return tile + k / kSlab * rows * kSwizzle + k % kSlab * 2;
}

// The product of 64 x 16 elements of A with 16 x 128 of B.
template <bool kFirst>
__device__ __forceinline__ void multiply_step(float (&d)[kTileN / 2], u32 a, u32 b, int k) {
  const u64 rows = tile_descriptor<kSwizzle>(along_rows(a, k, kTileM), 8 * kSwizzle, 0);
  if constexpr (kAcross) {
    const u64 columns =
        tile_descriptor<kSwizzle>(b + k * kSwizzle, 8 * kSwizzle, kTileK * kSwizzle);
    if constexpr (kFirst)
      wgmma_ss_n128_km_first(d, rows, columns);
    else
      wgmma_ss_n128_km(d, rows, columns);
  } else {
    const u64 columns = tile_descriptor<kSwizzle>(along_rows(b, k, kTileN), 8 * kSwizzle, 0);
    if constexpr (kFirst)
      wgmma_ss_n128_kk_first(d, rows, columns);
    else
      wgmma_ss_n128_kk(d, rows, columns);
  }
}

// Waits for a stage, multiplies what is in it, and gives it back.
template <bool kFirst>
__device__ __forceinline__ void multiply_stage(float (&d)[kTileN / 2], u32 memory, Ring& ring,
                                               int group) {
  const u32 stage = memory + ring.stage * kStageBytes;
  const u32 a = stage + group * 64 * kSwizzle, b = stage + kBytesA;
  wait_barrier(memory + kFull + ring.stage * 8, ring.parity);
  fence_products();
  multiply_step<kFirst>(d, a, b, 0);
#pragma unroll
  for (int k = 16; k < kTileK; k += 16) multiply_step<false>(d, a, b, k);
  commit_products();
  wait_products<0>();
  hold(d);
  if (thread_index() % 128 == 0) arrive(memory + kEmpty + ring.stage * 8);
  ring.advance();
}

// The threads of one warpgroup meet.
__device__ __forceinline__ void synchronize_group(int group) {
  if (group == 0)
    synchronize_named<1, 128>();
  else
    synchronize_named<2, 128>();
}

// Writes 64 x 128 sums to shared memory, as slabs of 64 columns with a swizzle of 128 bytes.
__device__ __forceinline__ void stage_output(const float (&d)[kTileN / 2], u32 out) {
  const int lane = lane_index();
  const int row = warp_index() % 4 * 16 + lane % 16;  // whose address this lane gives
#pragma unroll
  for (int n = 0; n < kTileN / 8; n += 2) {
    const u32 words[4] = {pack_pair(d[4 * n], d[4 * n + 1]), pack_pair(d[4 * n + 2], d[4 * n + 3]),
                          pack_pair(d[4 * n + 4], d[4 * n + 5]),
                          pack_pair(d[4 * n + 6], d[4 * n + 7])};
    const int chunk = n % 8 + lane / 16;
    store_matrices(out + n / 8 * 64 * 128 + row * 128 + ((chunk ^ row % 8) << 4), words);
  }
}

// Rounds a tile and stores it. One lane of the warpgroup, always the same, issues the stores.
__device__ __forceinline__ void store_output(const Params& params, const float (&d)[kTileN / 2],
                                             u32 out, int tile, int group) {
  const bool leader = warp_index() % 4 == 0 && elect_lane();
  // The last tile has left the memory in which this one is put down.
  if (leader) wait_stores_read<0>();
  synchronize_group(group);
  stage_output(d, out);
  fence_async_shared();
  synchronize_group(group);
  if (!leader) return;
  const int row = tile / params.columns * kTileM + group * 64;
  const int column = tile % params.columns * kTileN;
  store_box(params.c, out, column, row, 0, 0);
  store_box(params.c, out + 64 * 128, column + 64, row, 0, 0);
  commit_stores();
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    fw_gemm(const __grid_constant__ Params params) {
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
  Ring ring = {0, 0};
  for (int tile = static_cast<int>(block_index()); tile < params.tiles; tile += params.blocks) {
    float d[kTileN / 2];
    multiply_stage<true>(d, memory, ring, group);
    for (int k = kTileK; k < params.depth; k += kTileK)
      multiply_stage<false>(d, memory, ring, group);
    store_output(params, d, memory + kOut + group * kOutBytes, tile, group);
  }
  if (warp_index() % 4 == 0 && elect_lane()) wait_stores<0>();
}
