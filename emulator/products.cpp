#include "emulator/products.hpp"

#include <fmt/format.h>

#include "emulator/tensor_core.hpp"

namespace flashwright::emulator {
namespace {

constexpr int kElementsPerChunk = 8, kDepth = 16;

}  // namespace

Descriptor decode_descriptor(std::uint64_t bits) {
  constexpr int kSwizzles[] = {0, 128, 64, 32};
  const auto field = [bits](int at) { return static_cast<int>(bits >> at & 0x3fff) << 4; };
  Descriptor out;
  out.address = static_cast<unsigned>(field(0));
  out.leading = field(16);
  out.stride = field(32);
  out.base_offset = static_cast<int>(bits >> 49 & 7);
  out.swizzle = kSwizzles[bits >> 62];
  return out;
}

std::string descriptor_fault(const Descriptor& d, bool k_major, int rows) {
  if (d.swizzle == 0) return "has no swizzle; emulated are 128, 64 and 32 bytes";
  if (d.base_offset != 0) return fmt::format("has base offset {}; emulated is 0", d.base_offset);
  const auto period = static_cast<unsigned>(8 * d.swizzle),
             width = static_cast<unsigned>(d.swizzle);
  if (d.address % period >= width)
    return fmt::format("starts at {}, not in the first row of its pattern of {} bytes", d.address,
                       period);
  if (k_major && d.address % width + 2 * kDepth > width)
    return fmt::format("starts at {}, so that 16 elements go beyond a row of {} bytes", d.address,
                       width);
  if (!k_major && d.address % width != 0)
    return fmt::format("starts at {}, within a row of {} bytes", d.address, width);
  if (d.stride == 0 && (k_major ? rows > 8 : true)) return "has no stride between its rows";
  if (!k_major && rows > d.swizzle / 2 && d.leading == 0) return "has no stride between its slabs";
  return {};
}

unsigned swizzled(unsigned address, int swizzle) {
  const unsigned chunks = static_cast<unsigned>(swizzle) / 16;  // of a row
  return chunks == 0 ? address : address ^ (address >> 3 & (chunks - 1) * 16);
}

std::vector<Chunk> chunks_of(const Descriptor& d, bool k_major, int rows) {
  std::vector<Chunk> chunks;
  const auto add = [&](int offset, int row, int k) {
    chunks.push_back({swizzled(d.address + static_cast<unsigned>(offset), d.swizzle),
                      static_cast<std::uint16_t>(row), static_cast<std::uint16_t>(k)});
  };
  if (k_major) {
    for (int row = 0; row < rows; ++row)
      for (int k = 0; k < kDepth; k += kElementsPerChunk)
        add(row / 8 * d.stride + row % 8 * d.swizzle + 2 * k, row, k);
    return chunks;
  }
  const int slab = d.swizzle / 2;  // elements
  for (int row = 0; row < rows; row += kElementsPerChunk)
    for (int k = 0; k < kDepth; ++k)
      add(row / slab * d.leading + k / 8 * d.stride + k % 8 * d.swizzle + 2 * (row % slab), row, k);
  return chunks;
}

void multiply_warpgroup(const float* a, const float* b, int n, float* sums) {
  std::vector<float> b_by_k(static_cast<std::size_t>(n) * kDepth);
  const auto columns = static_cast<std::size_t>(n);
  for (std::size_t j = 0; j < columns; ++j)
    for (std::size_t k = 0; k < kDepth; ++k) b_by_k[k * columns + j] = b[j * kDepth + k];
  for (std::size_t row = 0; row < 64; ++row)
    for (std::size_t k = 0; k < kDepth; ++k) {
      const float factor = a[row * kDepth + k];
      float* const to = sums + row * columns;
      const float* const from = &b_by_k[k * columns];
      for (std::size_t j = 0; j < columns; ++j) to[j] += factor * from[j];
    }
}

Cell64 accumulator_cell(int lane, int index) {
  const int g = lane % 32 / 4, t = lane % 4;
  return {lane / 32 * 16 + g + index % 4 / 2 * 8, index / 4 * 8 + 2 * t + index % 2};
}

float element_value(std::uint16_t bits, bool bf16) {
  return bf16 ? value_of_bf16(bits) : value_of_fp16(bits);
}

}  // namespace flashwright::emulator
