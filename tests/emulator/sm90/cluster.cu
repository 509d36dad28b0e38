//~ C = A B^T with sums in 32 bits. Two blocks of a cluster compute tiles of 64 x 128 that lie one
//~ below the other, so they need the same tile of B: each loads one half of it into both.

struct Params {
  TensorMap a, b;
  float* c;
  int rows, columns, depth;  // M, N, K
  int column_tiles;
};

constexpr int kTileM = 64;
constexpr int kTileN = 128;
constexpr int kTileK = 64;
constexpr int kStages = 3;
constexpr int kBlocks = 2;            // of a cluster
constexpr int kThreads = 128 + 32;    // a warpgroup that multiplies and a warp that loads
constexpr int kBytesA = kTileM * kTileK * 2;
constexpr int kHalfB = kTileN / kBlocks;
constexpr int kHalfBytesB = kHalfB * kTileK * 2;
constexpr int kStageBytes = kBytesA + kBlocks * kHalfBytesB;
constexpr int kFull = kStages * kStageBytes;
constexpr int kEmpty = kFull + kStages * 8;
constexpr int kSharedBytes = kEmpty + kStages * 8;

static_assert(kSharedBytes == 73776, "what the test launches with");

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

// The barriers of both blocks have to be there before one of them loads into the other.
__device__ __forceinline__ void make_barriers(u32 memory) {
  if (thread_index() == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(memory + kFull + stage * 8, 1);
      init_barrier(memory + kEmpty + stage * 8, kBlocks);
    }
    publish_barriers();
  }
  synchronize_cluster();
}

// What the one loading thread of a block does. A stage is empty when the readers of both blocks are
// done with it, since the halves of B go to both.
__device__ __forceinline__ void load_tiles(const Params& params, u32 memory, int row, int column) {
  const int rank = static_cast<int>(cluster_rank());
  constexpr u16 kBoth = 3;
  Ring ring = {0, 0};
  for (int k = 0; k < params.depth; k += kTileK) {
    const u32 full = memory + kFull + ring.stage * 8, stage = memory + ring.stage * kStageBytes;
    wait_barrier(memory + kEmpty + ring.stage * 8, ring.parity ^ 1);
    arrive_expecting(full, kStageBytes);
    load_box(stage, params.a, full, k, row, 0, 0);
    load_box_to_blocks(stage + kBytesA + rank * kHalfBytesB, params.b, full, k,
                       column + rank * kHalfB, 0, 0, kBoth);
    ring.advance();
  }
}

template <bool kFirst>
__device__ __forceinline__ void multiply_stage(float (&d)[kTileN / 2], u32 memory, Ring& ring) {
  const u32 a = memory + ring.stage * kStageBytes, b = a + kBytesA;
  wait_barrier(memory + kFull + ring.stage * 8, ring.parity);
  fence_products();
#pragma unroll
  for (int k = 0; k < kTileK; k += 16) {
    const u64 rows = tile_descriptor<128>(a + k * 2, 1024, 0);
    const u64 columns = tile_descriptor<128>(b + k * 2, 1024, 0);
    if (kFirst && k == 0)
      wgmma_ss_n128_kk_first(d, rows, columns);
    else
      wgmma_ss_n128_kk(d, rows, columns);
  }
  commit_products();
  wait_products<0>();
  hold(d);
  // One thread tells each block of the cluster that this one is done with the stage.
  if (thread_index() < kBlocks)
    arrive_remote(address_in_block(memory + kEmpty + ring.stage * 8,
                                   static_cast<u32>(thread_index())));
  ring.advance();
}

__device__ __forceinline__ void write_output(const Params& params, const float (&d)[kTileN / 2],
                                             int row, int column) {
  const int first_row = row + warp_index() * 16 + lane_index() / 4;
  const int first_column = column + lane_index() % 4 * 2;
#pragma unroll
  for (int i = 0; i < kTileN / 2; ++i) {
    const int at_row = first_row + i / 2 % 2 * 8, at_column = first_column + i / 4 * 8 + i % 2;
    if (at_row < params.rows && at_column < params.columns)
      store_global(params.c + static_cast<i64>(at_row) * params.columns + at_column, d[i]);
  }
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    fw_cluster(const __grid_constant__ Params params) {
  const u32 memory = swizzled_memory();
  make_barriers(memory);
  const int pair = static_cast<int>(block_index()) / kBlocks;
  const int rank = static_cast<int>(cluster_rank());
  const int row = (pair / params.column_tiles * kBlocks + rank) * kTileM;
  const int column = pair % params.column_tiles * kTileN;
  const int warp = static_cast<int>(shuffle(static_cast<u32>(warp_index()), 0));
  if (warp == 4) {
    if (elect_lane()) load_tiles(params, memory, row, column);
    synchronize_warp();
  } else {
    float d[kTileN / 2];
    Ring ring = {0, 0};
    multiply_stage<true>(d, memory, ring);
    for (int k = kTileK; k < params.depth; k += kTileK) multiply_stage<false>(d, memory, ring);
    write_output(params, d, row, column);
  }
  // A block that is gone can get neither a tile nor an arrival of its peer.
  synchronize_cluster();
}
