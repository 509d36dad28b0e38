//~ Each block scales the columns of one matrix and adds it to a sum that all blocks share. Beside
//~ it the sums of the rows, added to those of all blocks and stored for this one. The rows of a
//~ matrix lie in pairs, so a tile is a box of five dimensions.

struct Params {
  TensorMap in;          // (column, row of a pair, pair, matrix, 1)
  TensorMap out;         // (column, row, 1, 1)
  const float* factors;  // one for each column, up to a whole tile
  float* row_sums;       // of all matrices, up to a whole tile
  float* own_row_sums;   // of each matrix
  int row_tiles, column_tiles;
};

constexpr int kRows = 32;
constexpr int kColumns = 32;
constexpr int kThreads = 128;                   // four for each row
constexpr int kTileBytes = kRows * kColumns * 4;
constexpr int kOut = 2 * kTileBytes;
constexpr int kSums = kOut + 2 * kTileBytes;
constexpr int kFactors = kSums + 2 * kRows * 4;
constexpr int kMaxColumns = 256;
constexpr int kFull = kFactors + kMaxColumns * 4;
constexpr int kFactorsFull = kFull + 2 * 8;
constexpr int kSharedBytes = kFactorsFull + 8;

static_assert(kSharedBytes == 17688, "what the test launches with");

__device__ __forceinline__ void make_barriers(u32 memory) {
  for (int i = 0; i < 2; ++i) init_barrier(memory + kFull + i * 8, 1);
  init_barrier(memory + kFactorsFull, 1);
  publish_barriers();
}

__device__ __forceinline__ void load_tile(const Params& params, u32 memory, int tile) {
  const int row = tile / params.column_tiles * kRows;
  const int column = tile % params.column_tiles * kColumns;
  const u32 full = memory + kFull + tile % 2 * 8;
  arrive_expecting(full, kTileBytes);
  load_box_5d(memory + tile % 2 * kTileBytes, params.in, full, column, 0, row / 2,
              static_cast<int>(block_index()), 0);
}

// Scales eight elements of a row, puts them down, and gives their sum.
__device__ __forceinline__ float scale_elements(u32 in, u32 out, u32 factors) {
  const int row = thread_index() / 4;
  float sum = 0.0f;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int chunk = thread_index() % 4 * 2 + half;
    const u32 place = row * 128 + ((chunk ^ row % 8) << 4);
    const Bytes16 values = load_shared_16(in + place);
    const Bytes16 scales = load_shared_16(factors + chunk * 16);
    float scaled[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scaled[i] = multiply(bits_float(values.word[i]), bits_float(scales.word[i]));
      sum += scaled[i];
    }
    store_shared_float2(out + place, scaled[0], scaled[1]);
    store_shared_float2(out + place + 8, scaled[2], scaled[3]);
  }
  return sum;
}

// Starts to add a tile, and behind the last of a row of tiles the sums of its rows.
__device__ __forceinline__ void add_tile(const Params& params, u32 memory, int tile) {
  const int row = tile / params.column_tiles, column = tile % params.column_tiles;
  add_box(params.out, memory + kOut + tile % 2 * kTileBytes, column * kColumns, row * kRows, 0, 0);
  commit_stores();
  if (column + 1 < params.column_tiles) return;
  const u32 sums = memory + kSums + row % 2 * kRows * 4;
  add_row(params.row_sums + row * kRows, sums, kRows * 4);
  store_row(params.own_row_sums + (block_index() * params.row_tiles + row) * kRows, sums,
            kRows * 4);
  commit_stores();
}

extern "C" __global__ void __launch_bounds__(kThreads)
    fw_reduce(const __grid_constant__ Params params) {
  const u32 memory = swizzled_memory();
  const bool leader = thread_index() == 0;
  const int tiles = params.row_tiles * params.column_tiles;
  if (leader) {
    make_barriers(memory);
    arrive_expecting(memory + kFactorsFull, params.column_tiles * kColumns * 4);
    load_row(memory + kFactors, params.factors, params.column_tiles * kColumns * 4,
             memory + kFactorsFull);
    load_tile(params, memory, 0);
  }
  synchronize_block();
  wait_barrier(memory + kFactorsFull, 0);
  float sum = 0.0f;
  for (int tile = 0; tile < tiles; ++tile) {
    const int column = tile % params.column_tiles, row = tile / params.column_tiles;
    if (leader) {
      if (tile + 1 < tiles) load_tile(params, memory, tile + 1);
      // The tile before the last one has left the memory in which this one is put down.
      wait_stores_read<1>();
    }
    wait_barrier(memory + kFull + tile % 2 * 8, static_cast<u32>(tile / 2 % 2));
    synchronize_block();
    sum += scale_elements(memory + tile % 2 * kTileBytes, memory + kOut + tile % 2 * kTileBytes,
                          memory + kFactors + column * kColumns * 4);
    if (column + 1 == params.column_tiles) {
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
      if (thread_index() % 4 == 0)
        store_shared_float(memory + kSums + (row % 2 * kRows + thread_index() / 4) * 4, sum);
      sum = 0.0f;
    }
    fence_async_shared();
    synchronize_block();
    if (leader) add_tile(params, memory, tile);
  }
  if (leader) wait_stores<0>();
}
