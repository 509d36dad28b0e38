//~ Where the operands of the tensor core lie in a tile. Lane l has g = l / 4 and t = l % 4.

#if FW_FP32
// Two neighbouring elements.
struct alignas(8) Pair {
  float first, second;
};

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
#else
__device__ __forceinline__ void store_shared_element(u32 address, u16 value) {
  store_shared_u16(address, value);
}

__device__ __forceinline__ u16 load_shared_element(u32 address) { return load_shared_u16(address); }

// Writes two neighbouring results of a row.
__device__ __forceinline__ void store_shared_pair(u32 address, float first, float second) {
  store_shared_u32(address, pack_pair(first, second));
}

// Writes two neighbouring results to memory, at once where their address allows it.
__device__ __forceinline__ void store_global_pair(u16* target, float first, float second,
                                                  bool aligned) {
  if (aligned) {
    store_global(reinterpret_cast<u32*>(target), pack_pair(first, second));
  } else {
    store_global(target, to_element(first));
    store_global(target + 1, to_element(second));
  }
}
#endif

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

#if FW_FP32
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
#else
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

// Weights of 16 rows by one K-step from a tile of kTileKv columns in shared memory.
__device__ __forceinline__ void load_weights(u32 (&a)[4], u32 tile, int first_row, int step) {
  load_matrices(a, query_address<kTileKv>(tile, first_row) + step * 32);
}
#endif
