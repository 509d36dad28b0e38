// What wgmma reads and computes. Layouts as in the PTX manual, "Matrix descriptor" and "Register
// fragments and shared memory matrix layouts" of wgmma.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flashwright::emulator {

// The 64 bits that describe a matrix in shared memory.
struct Descriptor {
  unsigned address = 0;         // of its first element
  int leading = 0, stride = 0;  // bytes
  int swizzle = 0;              // bytes of a row of the pattern: 128, 64 or 32
  int base_offset = 0;
};
Descriptor decode_descriptor(std::uint64_t bits);

// "" or why no matrix can be read with it. `rows`: how many rows of a, or columns of b, there are.
std::string descriptor_fault(const Descriptor& descriptor, bool k_major, int rows);

// Moves 16-byte chunks within a row, as TMA and wgmma do alike.
unsigned swizzled(unsigned address, int swizzle);

// Sixteen bytes of a matrix: eight elements along k (K-major) or along the rows.
struct Chunk {
  unsigned address;
  std::uint16_t row, k;  // of the first
};
std::vector<Chunk> chunks_of(const Descriptor& descriptor, bool k_major, int rows);

// sums[64][n] += a[64][16] * b[n][16], products along k one after another, each sum rounded to nearest.
void multiply_warpgroup(const float* a, const float* b, int n, float* sums);

// Row and column of register `index` of a lane of 128 in an accumulator.
struct Cell64 {
  int row, column;
};
Cell64 accumulator_cell(int lane, int index);

float element_value(std::uint16_t bits, bool bf16);

}  // namespace flashwright::emulator
