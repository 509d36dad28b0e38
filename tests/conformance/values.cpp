#include "tests/conformance/values.hpp"

#include <bit>
#include <cmath>

namespace flashwright::conformance {

std::vector<std::uint32_t> random_words(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::vector<std::uint32_t> words(count);
  for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random() >> 32);
  return words;
}

std::vector<double> random_integers(std::uint64_t seed, std::size_t count, int range) {
  std::vector<double> values;
  for (const std::uint32_t word : random_words(seed, count))
    values.push_back(static_cast<double>(word % static_cast<unsigned>(2 * range + 1)) - range);
  return values;
}

std::vector<double> random_fractions(std::uint64_t seed, std::size_t count) {
  std::vector<double> values;
  for (const std::uint32_t word : random_words(seed, count))
    values.push_back(static_cast<double>(static_cast<std::int32_t>(word) >> 11) * 0x1p-20);
  return values;
}

std::vector<std::uint32_t> interesting_floats() {
  const std::uint32_t magnitudes[] = {
      0x00000000, 0x00000001, 0x00000002, 0x00001000, 0x00004000, 0x00007fff, 0x00008000,
      0x00008001, 0x00018000, 0x00400000, 0x007fffff, 0x00800000,  // denormals, halves of bf16's
      0x33000000, 0x33000001, 0x337fffff, 0x33800000, 0x33c00000, 0x34200000, 0x387fc000,
      0x387fe000, 0x387ff000, 0x38800000,                          // the same of fp16
      0x3f7fffff, 0x3f800000, 0x3f800001, 0x40490fdb, 0x3eaaaaab,  // about 1; pi, 1/3
      0x3f807fff, 0x3f808000, 0x3f808001, 0x3f818000, 0x3fff8000,  // ties of bf16
      0x3f800fff, 0x3f801000, 0x3f801001, 0x3f803000, 0x3ffff000,  // ties of fp16 and tf32
      0x477fdfff, 0x477fe000, 0x477fefff, 0x477ff000, 0x47800000,  // the end of fp16
      0x7f7f7fff, 0x7f7f8000, 0x7f7fefff, 0x7f7ff000, 0x7f7fffff, 0x7f800000};  // ... of bf16, fp32
  std::vector<std::uint32_t> all;
  for (const std::uint32_t bits : magnitudes) {
    all.push_back(bits);
    all.push_back(bits | 0x80000000u);
  }
  return all;
}

std::vector<std::uint32_t> interesting_nans() {
  return {0x7fc00000, 0x7f800001, 0xffc00000, 0xff812345, 0x7fffffff, 0xffffffff};
}

bool is_nan(std::uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }
float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

namespace {

struct Format {
  int mantissa, bias;
};
Format format_of(DType dtype) { return dtype == DType::bf16 ? Format{7, 127} : Format{10, 15}; }

}  // namespace

std::uint16_t encode(DType dtype, double value) {
  if (std::isnan(value)) return kNan16;
  const auto [mantissa, bias] = format_of(dtype);
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = (2 * bias + 1) << mantissa;
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  if (value == 0) return static_cast<std::uint16_t>(sign);
  int exponent = 0;
  std::frexp(value, &exponent);
  exponent = std::max(exponent - 1, 1 - bias);
  // In units of the last place; nearbyint takes ties to even. A carry runs into the exponent.
  const double units = std::nearbyint(std::ldexp(std::fabs(value), mantissa - exponent));
  const int bits = ((exponent + bias) << mantissa) + static_cast<int>(units) - (1 << mantissa);
  return static_cast<std::uint16_t>(sign | std::min(bits, infinity));
}

double decode(DType dtype, std::uint16_t element) {
  const auto [mantissa, bias] = format_of(dtype);
  const int exponent = (element & 0x7fff) >> mantissa;
  const int fraction = element & ((1 << mantissa) - 1);
  const double sign = (element & 0x8000) != 0 ? -1 : 1;
  if (exponent == 2 * bias + 1) return fraction == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa);
  return sign * std::ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
}

Bytes elements(DType dtype, const std::vector<double>& values) {
  Bytes bytes;
  for (const double value : values) {
    if (dtype == DType::fp32)
      append(bytes, std::vector<float>{static_cast<float>(value)});
    else
      append(bytes, std::vector<std::uint16_t>{encode(dtype, value)});
  }
  return bytes;
}

Matrix integer_matrix(std::uint64_t seed, int rows, int columns, int range) {
  return {rows, columns, random_integers(seed, static_cast<std::size_t>(rows * columns), range)};
}

Matrix fraction_matrix(std::uint64_t seed, int rows, int columns, DType dtype) {
  Matrix matrix{rows, columns, random_fractions(seed, static_cast<std::size_t>(rows * columns))};
  for (double& value : matrix.values)
    if (dtype != DType::fp32) value = decode(dtype, encode(dtype, value));
  return matrix;
}

Matrix product(const Matrix& a, const Matrix& b, const Matrix& c) {
  Matrix sums = c;
  for (int row = 0; row < a.rows; ++row)
    for (int column = 0; column < b.columns; ++column)
      for (int k = 0; k < a.columns; ++k) sums.at(row, column) += a.at(row, k) * b.at(k, column);
  return sums;
}

Matrix product_size(const Matrix& a, const Matrix& b, const Matrix& c) {
  Matrix sizes[] = {a, b, c};
  for (Matrix& matrix : sizes)
    for (double& value : matrix.values) value = std::fabs(value);
  return product(sizes[0], sizes[1], sizes[2]);
}

double sum_bound(double size, int terms) { return terms * 0x1p-23 * size; }

}  // namespace flashwright::conformance
