// Fragments of matrices: ldmatrix, stmatrix and mma.sync. Expected values follow the PTX manual's
// figures of the fragments: lane l has g = l / 4 and t = l % 4.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tests/conformance/case.hpp"
#include "tests/conformance/values.hpp"

namespace flashwright::conformance {
namespace {

using Words = std::vector<std::uint32_t>;
using Halves = std::vector<std::uint16_t>;

constexpr std::size_t kTile = 2048;  // bytes of shared memory that hold the 32 rows, and gaps

// 32 places of 16 bytes in a tile of 2048, in no order.
Words row_places(std::uint64_t seed) {
  Words places(kTile / 16);
  for (std::uint32_t i = 0; i < places.size(); ++i) places[i] = 16 * i;
  const Words draws = random_words(seed, places.size());
  for (std::size_t i = places.size() - 1; i > 0; --i)
    std::swap(places[i], places[draws[i] % (i + 1)]);
  places.resize(32);
  return places;
}

// Row and column of the two elements of a lane's word in an 8 x 8 matrix.
struct Place {
  std::size_t row, column;
};
Place place_of(std::size_t lane, std::size_t half, bool transposed) {
  const std::size_t g = lane / 4, t = lane % 4;
  return transposed ? Place{2 * t + half, g} : Place{g, 2 * t + half};
}

// Every lane's words of a load, four matrices of 8 rows that lie anywhere.
Case load_matrices(bool transposed) {
  const std::string wrapper = transposed ? "load_matrices_transposed" : "load_matrices";
  Case c;
  c.group = "matrix";
  c.name = wrapper;
  c.covers = wrapper;
  c.body = fmt::format(R"(
const u32 shared = shared_memory();
fill_shared(params, shared, 0, {0});
synchronize_block();
u32 r[4];
{1}(r, shared + input_word(params, {0} / 4 + lane_index()));
for (int i = 0; i < 4; ++i) output_word(params, 4 * lane_index() + i, r[i]);
)",
                       kTile, wrapper);
  c.smem_bytes = kTile;
  c.input = bytes_of(random_words(40, kTile / 4));
  const Words places = row_places(41);
  Halves out;
  for (std::size_t lane = 0; lane < 32; ++lane)
    for (std::size_t matrix = 0; matrix < 4; ++matrix)
      for (std::size_t half = 0; half < 2; ++half) {
        const Place at = place_of(lane, half, transposed);
        out.push_back(
            value_at<std::uint16_t>(c.input, places[8 * matrix + at.row] + 2 * at.column));
      }
  append(c.input, places);
  c.expected = bytes_of(out);
  return c;
}

Case store_matrices(bool transposed) {
  const std::string wrapper = transposed ? "store_matrices_transposed" : "store_matrices";
  Case c;
  c.group = "matrix";
  c.name = wrapper;
  c.covers = wrapper;
  c.needs = Needs::sm_90a;
  c.body = fmt::format(R"(
const u32 shared = shared_memory();
fill_shared(params, shared, 0, {0});
synchronize_block();
u32 r[4];
for (int i = 0; i < 4; ++i) r[i] = input_word(params, {0} / 4 + 32 + 4 * lane_index() + i);
{1}(shared + input_word(params, {0} / 4 + lane_index()), r);
synchronize_block();
dump_shared(params, shared, 0, {0});
)",
                       kTile, wrapper);
  c.smem_bytes = kTile;
  c.input = bytes_of(random_words(42, kTile / 4));
  c.expected = c.input;
  const Words places = row_places(43), words = random_words(44, 128);
  for (std::size_t lane = 0; lane < 32; ++lane)
    for (std::size_t matrix = 0; matrix < 4; ++matrix)
      for (std::size_t half = 0; half < 2; ++half) {
        const Place at = place_of(lane, half, transposed);
        put(c.expected, places[8 * matrix + at.row] + 2 * at.column,
            static_cast<std::uint16_t>(words[4 * lane + matrix] >> 16 * half));
      }
  append(c.input, places);
  append(c.input, words);
  return c;
}

// Several problems d = c + a b, one for each warp: 16 x k by k x 8.
struct Problem {
  Matrix a, b, c;
};

Matrix transposed(const Matrix& matrix) {
  Matrix out{matrix.columns, matrix.rows, std::vector<double>(matrix.values.size())};
  for (int row = 0; row < matrix.rows; ++row)
    for (int column = 0; column < matrix.columns; ++column)
      out.at(column, row) = matrix.at(row, column);
  return out;
}

// The kernel loads the fragments from a, row by row, and b, column by column.
std::string multiply_body(int depth, int element_bytes, const std::string& wrapper) {
  const int per_word = 4 / element_bytes, a_words = 16 * depth / per_word;
  return fmt::format(R"(
const int g = lane_index() / 4, t = lane_index() % 4;
const int first_a = warp_index() * {3}, first_b = first_a + {0}, first_c = first_b + {0} / 2;
u32 a[4], b[2];
float d[4];
for (int i = 0; i < 4; ++i)
  a[i] = input_word(params, first_a + (g + i % 2 * 8) * {1} + t + i / 2 * 4);
for (int i = 0; i < 2; ++i) b[i] = input_word(params, first_b + g * {1} + t + 4 * i);
for (int i = 0; i < 4; ++i)
  d[i] = input_float(params, first_c + (g + i / 2 * 8) * 8 + 2 * t + i % 2);
{2}(d, a, b[0], b[1]);
for (int i = 0; i < 4; ++i) output_float(params, 4 * thread_index() + i, d[i]);
)",
                     a_words, depth / per_word, wrapper, a_words * 3 / 2 + 128);
}

Case multiply_case(const std::string& name, DType dtype, const std::vector<Problem>& problems,
                   const std::string& wrapper, int terms) {
  Case c;
  c.group = "matrix";
  c.name = fmt::format("{}_{}", name, info(dtype).name);
  c.covers = wrapper;
  c.dtype = dtype;
  c.threads = 32 * static_cast<int>(problems.size());
  c.body = multiply_body(problems.front().a.columns, info(dtype).bytes, wrapper);
  std::vector<float> out;
  for (const Problem& p : problems) {
    for (const Bytes& part : {elements(dtype, p.a.values), elements(dtype, transposed(p.b).values),
                              elements(DType::fp32, p.c.values)})
      c.input.insert(c.input.end(), part.begin(), part.end());
    const Matrix sums = product(p.a, p.b, p.c), sizes = product_size(p.a, p.b, p.c);
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        out.push_back(static_cast<float>(sums.at(row, column)));
        if (terms != 0) c.bound.push_back(sum_bound(sizes.at(row, column), terms));
      }
  }
  c.expected = bytes_of(out);
  return c;
}

int depth_of(DType dtype) { return dtype == DType::fp32 ? 8 : 16; }

// Every sum is exact: a wrong place shows as a wrong number.
Case integers(DType dtype, const std::string& wrapper) {
  std::vector<Problem> problems;
  for (std::uint64_t seed = 50; seed < 54; ++seed)
    problems.push_back({integer_matrix(seed, 16, depth_of(dtype), 16),
                        integer_matrix(seed + 10, depth_of(dtype), 8, 16),
                        integer_matrix(seed + 20, 16, 8, 1000)});
  return multiply_case("integers_" + wrapper, dtype, problems, wrapper, 0);
}

Case fractions(DType dtype, const std::string& wrapper, int products) {
  std::vector<Problem> problems;
  for (std::uint64_t seed = 80; seed < 84; ++seed)
    problems.push_back({fraction_matrix(seed, 16, depth_of(dtype), dtype),
                        fraction_matrix(seed + 10, depth_of(dtype), 8, dtype),
                        fraction_matrix(seed + 20, 16, 8, DType::fp32)});
  return multiply_case("fractions_" + wrapper, dtype, problems, wrapper,
                       products * depth_of(dtype) + 1);
}

// One beside products that get smaller from column to column, 2^-18 to 2^-25, all of them or one
// alone, of either sign, with the one in the sum or among the products: shows what is cut off.
Case rounding(DType dtype, const std::string& wrapper) {
  const int depth = depth_of(dtype);
  std::vector<Problem> problems;
  for (int kind = 0; kind < 4; ++kind) {
    Problem p{{16, depth, std::vector<double>(static_cast<std::size_t>(16 * depth))},
              {depth, 8, std::vector<double>(static_cast<std::size_t>(8 * depth))},
              {16, 8, std::vector<double>(128)}};
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < depth; ++k)
        p.a.at(row, k) = (k <= row || kind % 2 == 0 ? 0x1p-9 : 0) * (row % 2 == 0 ? 1 : -1);
    for (int column = 0; column < 8; ++column) {
      for (int k = 0; k < depth; ++k) p.b.at(k, column) = std::ldexp(1, -9 - column);
      for (int row = 0; row < 16; ++row) {
        if (kind < 2)
          p.c.at(row, column) = 1;
        else
          p.a.at(row, depth / 2) = 1;
      }
      if (kind >= 2) p.b.at(depth / 2, column) = 1;
    }
    problems.push_back(p);
  }
  return multiply_case("rounding_" + wrapper, dtype, problems, wrapper, depth + 1);
}

// Infinities and NaN among the operands.
Case specials(DType dtype, const std::string& wrapper) {
  Problem p{integer_matrix(110, 16, depth_of(dtype), 4), integer_matrix(111, depth_of(dtype), 8, 4),
            integer_matrix(112, 16, 8, 4)};
  p.a.at(1, 2) = HUGE_VAL;
  p.a.at(3, 4) = -HUGE_VAL;
  p.a.at(5, 6) = std::nan("");
  p.b.at(3, 1) = HUGE_VAL;
  p.c.at(7, 7) = -HUGE_VAL;
  p.c.at(8, 3) = std::nan("");
  Case c = multiply_case("specials_" + wrapper, dtype, {p}, wrapper, 0);
  c.nan_bytes = 4;
  return c;
}

// tf32 operands whose lower 13 bits are set: which the manual leaves open.
Case long_operands() {
  Case c = fractions(DType::fp32, "multiply_add_tf32", 1);
  c.name = "long_operands_multiply_add_tf32";
  c.output = untouched(c.expected.size());
  c.expected.clear();
  return c;
}

// Fractions that tf32 holds.
Case tf32_fractions() {
  std::vector<Problem> problems;
  for (std::uint64_t seed = 120; seed < 124; ++seed)
    problems.push_back({fraction_matrix(seed, 16, 8, DType::bf16),
                        fraction_matrix(seed + 10, 8, 8, DType::bf16),
                        fraction_matrix(seed + 20, 16, 8, DType::fp32)});
  return multiply_case("fractions_multiply_add_tf32", DType::fp32, problems, "multiply_add_tf32",
                       9);
}

}  // namespace

std::vector<Case> matrix_cases() {
  std::vector<Case> cases = {load_matrices(false), load_matrices(true), store_matrices(false),
                             store_matrices(true)};
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    cases.push_back(integers(dtype, "multiply_add"));
    cases.push_back(fractions(dtype, "multiply_add", 1));
    cases.push_back(rounding(dtype, "multiply_add"));
    cases.push_back(specials(dtype, "multiply_add"));
  }
  cases.push_back(integers(DType::fp32, "multiply_add_tf32"));
  cases.push_back(tf32_fractions());
  cases.push_back(long_operands());
  cases.push_back(rounding(DType::fp32, "multiply_add_tf32"));
  cases.push_back(specials(DType::fp32, "multiply_add_tf32"));
  // Three products of halves instead of one.
  cases.push_back(integers(DType::fp32, "multiply_add"));
  cases.push_back(fractions(DType::fp32, "multiply_add", 4));
  cases.back().covers = "multiply_add split";
  for (Case& c : cases)
    if (c.output.empty()) c.output = untouched(c.expected.size());
  return cases;
}

}  // namespace flashwright::conformance
