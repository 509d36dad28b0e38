// What ldmatrix and mma.sync compute, for the 32 lanes of a warp at once. Lane l has g = l / 4 and
// t = l % 4; layouts as in the PTX manual.
//
// Rule of the sums: products are exact in fp32 (bf16, fp16 and tf32 have at most 11 bits of
// significand); they are added to the accumulator one after another along k, each sum rounded to nearest.
// Hardware adds groups of products at once and cuts bits off: results agree to a few units in the last
// place of the largest term.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace flashwright::emulator {

// The one NaN that instructions give.
constexpr float kNan = std::bit_cast<float>(0x7fffffffu);

float value_of_bf16(std::uint32_t bits);
float value_of_fp16(std::uint32_t bits);

// One operand set of a lane; `d` is read and written.
struct MultiplyOperands {
  float* d;
  const std::uint32_t* a;  // 4 words
  const std::uint32_t* b;  // 2 words
};
using WarpMultiply = std::array<const MultiplyOperands*, 32>;

void multiply_bf16(const WarpMultiply& lanes);
void multiply_fp16(const WarpMultiply& lanes);
void multiply_tf32(const WarpMultiply& lanes);  // inputs are cut to 10 bits behind the point

// Four matrices of eight rows of 16 bytes, spread over the lanes.
using Matrices = std::array<std::array<std::array<std::uint16_t, 8>, 8>, 4>;
std::uint32_t matrix_word(const Matrices& matrices, int matrix, int lane, bool transposed);

}  // namespace flashwright::emulator
