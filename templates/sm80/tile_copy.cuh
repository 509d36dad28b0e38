//~ Tiles of rows between global and shared memory. A row in shared memory takes an odd number of
//~ 16-byte chunks, so that the eight rows of a matrix start in different banks.

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

// Starts the copy of a kRows x kColumns part of a matrix whose rows start on 16 bytes. What lies
// behind `rows` or `columns` becomes zeros.
template <int kRows, int kColumns>
__device__ __forceinline__ void load_columns(u32 shared, const Element* global, i64 row_stride,
                                             int rows, int columns) {
  constexpr int kElements = 16 / kElementBytes;  // of a chunk
  constexpr int kChunks = kColumns / kElements;
  for (int i = thread_index(); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, column = i % kChunks * kElements;
    const u32 target = shared + row * row_bytes(kColumns) + column * kElementBytes;
    if (row < rows && column + kElements <= columns) {
      copy_async_16(target, global + row * row_stride + column, true);
      continue;
    }
    for (int j = 0; j < kElements; ++j) {
      const bool valid = row < rows && column + j < columns;
      store_shared_element(target + j * kElementBytes,
                           valid ? load_global(global + row * row_stride + column + j) : Element{});
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
