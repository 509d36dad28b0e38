//~ Where a thread is, and how the threads of a block and of a warp meet.

__device__ __forceinline__ int thread_index() { return static_cast<int>(threadIdx.x); }

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % 32; }

__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / 32; }

__device__ __forceinline__ i64 block_index() { return blockIdx.x; }

// Blocks of the grid.
__device__ __forceinline__ i64 block_count() { return gridDim.x; }

// Number of the grid, another for each that was launched in this context.
__device__ __forceinline__ u64 grid_index() {
  u64 index;
  asm volatile("mov.u64 %0, %%gridid;" : "=l"(index));
  return index;
}

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

// True in every lane when `condition` holds in some lane of the warp.
__device__ __forceinline__ bool any_lane(bool condition) {
  return __any_sync(0xffffffffu, condition);
}
