// What the kernels of the suite compute on: random bits, floats that show how a conversion rounds, and
// conversions of our own, written for clearness and shared with no other part of the project.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tests/conformance/case.hpp"

namespace flashwright::conformance {

// Appends values byte by byte.
template <typename Value>
void append(Bytes& bytes, const std::vector<Value>& values) {
  const auto* const first = reinterpret_cast<const std::uint8_t*>(values.data());
  bytes.insert(bytes.end(), first, first + values.size() * sizeof(Value));
}
template <typename Value>
Bytes bytes_of(const std::vector<Value>& values) {
  Bytes bytes;
  append(bytes, values);
  return bytes;
}
template <typename Value>
Value value_at(const Bytes& bytes, std::size_t offset) {
  Value value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}
template <typename Value>
void put(Bytes& bytes, std::size_t offset, Value value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

inline Bytes untouched(std::size_t bytes) { return Bytes(bytes, kUntouched); }

// Random bits; the same on every machine, since no distribution of the standard library is used.
std::vector<std::uint32_t> random_words(std::uint64_t seed, std::size_t count);
// Whole numbers from -range to range.
std::vector<double> random_integers(std::uint64_t seed, std::size_t count, int range);
// Multiples of 2^-20 in (-1, 1).
std::vector<double> random_fractions(std::uint64_t seed, std::size_t count);

// Zeros, denormals, ties of every narrower type, overflows and infinities; bits of floats.
std::vector<std::uint32_t> interesting_floats();
std::vector<std::uint32_t> interesting_nans();
bool is_nan(std::uint32_t bits);
float float_of(std::uint32_t bits);
std::uint32_t bits_of(float value);

// What every instruction on floats gives for a NaN, and every conversion to 16 bits.
constexpr std::uint32_t kNan = 0x7fffffff;
constexpr std::uint16_t kNan16 = 0x7fff;

// The element nearest to a number, ties to even, and the number that an element is.
std::uint16_t encode(DType dtype, double value);
double decode(DType dtype, std::uint16_t element);
// Elements of a dtype as bytes: two or four each.
Bytes elements(DType dtype, const std::vector<double>& values);

// A matrix of numbers, row by row.
struct Matrix {
  int rows = 0, columns = 0;
  std::vector<double> values;
  double& at(int row, int column) { return values[index(row, column)]; }
  double at(int row, int column) const { return values[index(row, column)]; }

 private:
  std::size_t index(int row, int column) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) +
           static_cast<std::size_t>(column);
  }
};
Matrix integer_matrix(std::uint64_t seed, int rows, int columns, int range);
// Fractions, rounded to what the dtype holds.
Matrix fraction_matrix(std::uint64_t seed, int rows, int columns, DType dtype);
// c + a b, in doubles.
Matrix product(const Matrix& a, const Matrix& b, const Matrix& c);
// The sum of the sizes of all terms of each element of product().
Matrix product_size(const Matrix& a, const Matrix& b, const Matrix& c);
// How far a tensor core may be from the exact sum of `terms` terms whose sizes add up to `size`: it
// aligns them and cuts off what lies below the last bit of the largest, once for each.
double sum_bound(double size, int terms);

}  // namespace flashwright::conformance
