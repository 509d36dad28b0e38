// Fragments against products of whole matrices, with the layouts written out once more.
#include "emulator/tensor_core.hpp"

#include <bit>
#include <random>

#include "core/dtype.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::emulator;

namespace {

struct Lane {
  float d[4];
  std::uint32_t a[4], b[2];
};

// Small whole numbers, so that every sum is exact.
float whole(std::mt19937_64& random) { return static_cast<float>(random() % 17) - 8; }

// `word(value pair or single)` packs what one register holds; `per_word` elements along k.
void compare(int depth, int per_word, void (*multiply)(const WarpMultiply&),
             std::uint32_t (*pack)(const float*)) {
  std::mt19937_64 random(flashwright::testing::test_seed());
  std::vector<float> a(static_cast<std::size_t>(16 * depth)),
      b(static_cast<std::size_t>(8 * depth));
  for (float& x : a) x = whole(random);
  for (float& x : b) x = whole(random);
  std::array<Lane, 32> lanes{};
  std::array<MultiplyOperands, 32> operands{};
  WarpMultiply all{};
  for (int l = 0; l < 32; ++l) {
    Lane& lane = lanes[static_cast<std::size_t>(l)];
    const int g = l / 4, t = l % 4;
    for (int i = 0; i < 4; ++i) {
      lane.d[i] = static_cast<float>(i);
      const int row = g + (i == 1 || i == 3 ? 8 : 0), k = t * per_word + (i >= 2 ? depth / 2 : 0);
      lane.a[i] = pack(&a[static_cast<std::size_t>(row * depth + k)]);
    }
    for (int i = 0; i < 2; ++i)  // b is kept by columns
      lane.b[i] = pack(&b[static_cast<std::size_t>(g * depth + t * per_word + i * depth / 2)]);
    operands[static_cast<std::size_t>(l)] = {lane.d, lane.a, lane.b};
    all[static_cast<std::size_t>(l)] = &operands[static_cast<std::size_t>(l)];
  }
  multiply(all);
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < 4; ++i) {
      const int row = l / 4 + (i >= 2 ? 8 : 0), column = l % 4 * 2 + i % 2;
      float sum = static_cast<float>(i);
      for (int k = 0; k < depth; ++k)
        sum += a[static_cast<std::size_t>(row * depth + k)] *
               b[static_cast<std::size_t>(column * depth + k)];
      CHECK(lanes[static_cast<std::size_t>(l)].d[i] == sum);
    }
}

}  // namespace

TEST_CASE("m16n8k16 with bf16") {
  compare(16, 2, &multiply_bf16, [](const float* x) {
    return float_to_bfloat(x[0]) | static_cast<std::uint32_t>(float_to_bfloat(x[1])) << 16;
  });
}

TEST_CASE("m16n8k16 with fp16") {
  compare(16, 2, &multiply_fp16, [](const float* x) {
    return float_to_half(x[0]) | static_cast<std::uint32_t>(float_to_half(x[1])) << 16;
  });
}

TEST_CASE("m16n8k8 with tf32") {
  // What lies behind ten bits of the significand is cut off.
  compare(8, 1, &multiply_tf32,
          [](const float* x) { return *x == 0 ? 0u : std::bit_cast<std::uint32_t>(*x) | 0x1fffu; });
}

TEST_CASE("every code of fp16 is read as the host reads it") {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    // One product with 1: lane 0 holds the code in row 0, and column 0 of b holds a single 1.
    std::array<Lane, 32> lanes{};
    std::array<MultiplyOperands, 32> operands{};
    WarpMultiply all{};
    if ((code & 0x7c00u) == 0x7c00u) continue;  // 0 * infinity would show elsewhere
    lanes[0].a[0] = code;
    lanes[0].b[0] = 0x3c00;
    for (std::size_t i = 0; i < 32; ++i) {
      operands[i] = {lanes[i].d, lanes[i].a, lanes[i].b};
      all[i] = &operands[i];
    }
    multiply_fp16(all);
    if (lanes[0].d[0] != half_to_float(static_cast<std::uint16_t>(code))) FAIL_CHECK(code);
  }
}

TEST_CASE("ldmatrix gives lane l row l / 4, and transposed its column") {
  Matrices matrices{};
  for (std::size_t m = 0; m < 4; ++m)
    for (std::size_t row = 0; row < 8; ++row)
      for (std::size_t column = 0; column < 8; ++column)
        matrices[m][row][column] = static_cast<std::uint16_t>(m * 64 + row * 8 + column);
  for (int lane = 0; lane < 32; ++lane)
    for (int m = 0; m < 4; ++m) {
      const auto g = static_cast<std::uint32_t>(lane / 4), t = static_cast<std::uint32_t>(lane % 4);
      const auto base = static_cast<std::uint32_t>(m) * 64;
      CHECK(matrix_word(matrices, m, lane, false) ==
            ((base + g * 8 + 2 * t) | (base + g * 8 + 2 * t + 1) << 16));
      CHECK(matrix_word(matrices, m, lane, true) ==
            ((base + 2 * t * 8 + g) | (base + (2 * t + 1) * 8 + g) << 16));
    }
}
