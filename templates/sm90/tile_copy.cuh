//~ Tiles in shared memory: slabs of kSwizzle bytes by all rows, in which the 16-byte chunks of a
//~ row are swizzled. TMA writes and reads them; rows that TMA cannot address are copied by threads.

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

#if FW_CLUSTER
// Starts the copy of the part of kRows rows that this block brings to all blocks of the cluster.
template <int kRows, int kColumns, int kSwizzle>
__device__ __forceinline__ void load_part(u32 tile, const TensorMap& map, u32 barrier, int row,
                                          int head, int batch) {
  constexpr int kSlab = kSwizzle / 2, kPart = kRows / kClusterBlocks;
  constexpr u16 kAllBlocks = (1 << kClusterBlocks) - 1;
  const int first = static_cast<int>(cluster_rank()) * kPart;
#pragma unroll 1
  for (int column = 0; column < kColumns; column += kSlab)
    load_box_to_blocks(tile + (column / kSlab * kRows + first) * kSwizzle, map, barrier, column,
                       row + first, head, batch, kAllBlocks);
}
#endif

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
