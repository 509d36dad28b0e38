// What TMA is told about a tensor: shape, strides, the box of one copy and how its rows lie in shared
// memory. Plain values; the driver turns them into 128 bytes for the kernel, and so does the emulator.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/dtype.hpp"

namespace flashwright {

struct TensorMapSpec {
  static constexpr int kMaxRank = 5;

  DType dtype = DType::bf16;
  int rank = 4;
  void* base = nullptr;                        // of the first element; 16-byte aligned
  std::array<std::int64_t, kMaxRank> shape{};  // elements; the first dimension is contiguous
  // Bytes from one element to the next along dimensions 1, 2, ...; multiples of 16.
  std::array<std::int64_t, kMaxRank - 1> stride_bytes{};
  std::array<int, kMaxRank> box{};  // elements, 1 to 256 each
  int swizzle = 128;  // bytes of a row of the box at most: 128, 64, 32; 0: rows as they are
};

// "" or what the hardware does not take, with the value and what is allowed. Limits: CUDA driver API,
// cuTensorMapEncodeTiled.
std::string tensor_map_fault(const TensorMapSpec& spec);

// Bytes that a copy of the box moves.
std::int64_t box_bytes(const TensorMapSpec& spec);

}  // namespace flashwright
