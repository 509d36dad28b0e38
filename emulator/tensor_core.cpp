#include "emulator/tensor_core.hpp"

#include <bit>
#include <cmath>

namespace flashwright::emulator {

float value_of_bf16(std::uint32_t bits) { return std::bit_cast<float>(bits << 16); }

// Exact for every code: the exponent is moved by a product, which also makes numbers of the small ones.
float value_of_fp16(std::uint32_t bits) {
  const float magnitude = std::bit_cast<float>((bits & 0x7fffu) << 13) * 0x1p112f;
  const bool special = (bits & 0x7c00u) == 0x7c00u;
  const std::uint32_t word =
      special ? 0x7f800000u | (bits & 0x3ffu) << 13 : std::bit_cast<std::uint32_t>(magnitude);
  return std::bit_cast<float>(word | (bits & 0x8000u) << 16);
}

namespace {

float from_tf32(std::uint32_t bits) { return std::bit_cast<float>(bits & 0xffffe000u); }

// sums (16 x 8) += a (16 x kDepth) * b (kDepth x 8)
template <std::size_t kDepth>
void multiply(float (&sums)[16][8], const float (&a)[16][kDepth], const float (&b)[kDepth][8]) {
  for (std::size_t row = 0; row < 16; ++row)
    for (std::size_t k = 0; k < kDepth; ++k)
      for (std::size_t column = 0; column < 8; ++column)
        sums[row][column] += a[row][k] * b[k][column];
}

void gather_sums(const WarpMultiply& lanes, float (&sums)[16][8]) {
  for (std::size_t lane = 0; lane < 32; ++lane) {
    const std::size_t g = lane / 4, t = lane % 4;
    for (std::size_t i = 0; i < 4; ++i) sums[g + i / 2 * 8][2 * t + i % 2] = lanes[lane]->d[i];
  }
}

void scatter_sums(const WarpMultiply& lanes, const float (&sums)[16][8]) {
  for (std::size_t lane = 0; lane < 32; ++lane) {
    const std::size_t g = lane / 4, t = lane % 4;
    for (std::size_t i = 0; i < 4; ++i) {
      const float sum = sums[g + i / 2 * 8][2 * t + i % 2];
      lanes[lane]->d[i] = std::isnan(sum) ? kNan : sum;
    }
  }
}

// m16n8k16 over pairs of 16-bit elements.
template <float (*kFrom)(std::uint32_t)>
void multiply_pairs(const WarpMultiply& lanes) {
  float a[16][16], b[16][8], sums[16][8];
  for (std::size_t lane = 0; lane < 32; ++lane) {
    const std::size_t g = lane / 4, t = lane % 4;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint32_t pair = lanes[lane]->a[i];
      float* const to = &a[g + i % 2 * 8][2 * t + i / 2 * 8];
      to[0] = kFrom(pair & 0xffffu);
      to[1] = kFrom(pair >> 16);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const std::uint32_t pair = lanes[lane]->b[i];
      b[2 * t + i * 8][g] = kFrom(pair & 0xffffu);
      b[2 * t + i * 8 + 1][g] = kFrom(pair >> 16);
    }
  }
  gather_sums(lanes, sums);
  multiply(sums, a, b);
  scatter_sums(lanes, sums);
}

}  // namespace

void multiply_bf16(const WarpMultiply& lanes) { multiply_pairs<value_of_bf16>(lanes); }
void multiply_fp16(const WarpMultiply& lanes) { multiply_pairs<value_of_fp16>(lanes); }

void multiply_tf32(const WarpMultiply& lanes) {
  float a[16][8], b[8][8], sums[16][8];
  for (std::size_t lane = 0; lane < 32; ++lane) {
    const std::size_t g = lane / 4, t = lane % 4;
    for (std::size_t i = 0; i < 4; ++i)
      a[g + i % 2 * 8][t + i / 2 * 4] = from_tf32(lanes[lane]->a[i]);
    for (std::size_t i = 0; i < 2; ++i) b[t + i * 4][g] = from_tf32(lanes[lane]->b[i]);
  }
  gather_sums(lanes, sums);
  multiply(sums, a, b);
  scatter_sums(lanes, sums);
}

std::uint32_t matrix_word(const Matrices& matrices, int matrix, int lane, bool transposed) {
  const auto& rows = matrices[static_cast<std::size_t>(matrix)];
  const auto g = static_cast<std::size_t>(lane / 4), t = static_cast<std::size_t>(lane % 4);
  const std::uint32_t low = transposed ? rows[2 * t][g] : rows[g][2 * t];
  const std::uint32_t high = transposed ? rows[2 * t + 1][g] : rows[g][2 * t + 1];
  return low | high << 16;
}

}  // namespace flashwright::emulator
