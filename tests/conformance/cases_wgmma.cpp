// wgmma: every printed form, K-major and MN-major tiles in slabs of each swizzle, a in shared memory or
// in registers. Tiles are laid out by the host and copied into shared memory as they are.
#include <fmt/format.h>

#include <cmath>

#include "tests/conformance/case.hpp"
#include "tests/conformance/tiles.hpp"

namespace flashwright::conformance {
namespace {

using sm90::product_name;
using sm90::ProductShape;

// An odd number of steps of 16, so that K-major slabs of 128 bytes are left as well.
constexpr int kDepth = 80;

struct Form {
  ProductShape shape;
  int swizzle = 128;
  DType dtype = DType::bf16;
};

// A matrix in slabs of `swizzle` bytes: all rows of the first columns, then all rows of the next.
Bytes slabs(const Matrix& matrix, int swizzle, DType dtype) {
  const int width = swizzle / 2, count = (matrix.columns + width - 1) / width;
  Bytes image(static_cast<std::size_t>(count * matrix.rows * swizzle));
  for (int row = 0; row < matrix.rows; ++row)
    for (int column = 0; column < matrix.columns; ++column) {
      const int offset = (column / width * matrix.rows + row) * swizzle + column % width * 2;
      put(image, swizzled(static_cast<std::size_t>(offset), swizzle),
          encode(dtype, matrix.at(row, column)));
    }
  image.resize(round_up(image.size(), 1024));
  return image;
}

Matrix transposed(const Matrix& matrix) {
  Matrix out{matrix.columns, matrix.rows, std::vector<double>(matrix.values.size())};
  for (int row = 0; row < matrix.rows; ++row)
    for (int column = 0; column < matrix.columns; ++column)
      out.at(column, row) = matrix.at(row, column);
  return out;
}

// Bytes to one step of 16 along the depth. A K-major tile has `rows` rows and goes on in its row, then in
// the next slab; an MN-major one has a row for each element of the depth.
int step_offset(int step, int rows, int swizzle, bool k_major) {
  const int width = swizzle / 2, column = 16 * step;
  return k_major ? column / width * rows * swizzle + column % width * 2 : column * swizzle;
}

// "tile_descriptor<64>(a + 32, 512, 0)" for one step.
std::string descriptor(const char* tile, int step, int rows, int swizzle, bool k_major) {
  return fmt::format("tile_descriptor<{}>({} + {}, {}, {})", swizzle, tile,
                     step_offset(step, rows, swizzle, k_major), 8 * swizzle,
                     k_major ? 0 : rows * swizzle);
}

// The words of a fragment of a, from a matrix in the input, row by row from word `first` on.
std::string fragments(std::size_t first) {
  return fmt::format(R"(
const int row = warp_index() * 16 + lane_index() / 4;
u32 words[{0} / 16][4];
for (int step = 0; step < {0} / 16; ++step)
  for (int i = 0; i < 4; ++i)
    words[step][i] = input_word(params, {1} + (row + i % 2 * 8) * ({0} / 2) + 8 * step +
                                            lane_index() % 4 + i / 2 * 4);
)",
                     kDepth, first);
}

std::string products_text(const Form& form) {
  std::string text;
  const ProductShape& shape = form.shape;
  for (int step = 0; step < kDepth / 16; ++step) {
    ProductShape one = shape;
    one.first = step == 0;
    const std::string a =
        shape.a_in_registers
            ? fmt::format("words[{}]", step)
            : descriptor("a", step, shape.a_k_major ? 64 : kDepth, form.swizzle, shape.a_k_major);
    const std::string b =
        descriptor("b", step, shape.b_k_major ? shape.n : kDepth, form.swizzle, shape.b_k_major);
    text += fmt::format("{}(d, {},\n    {});\n", product_name(one), a, b);
  }
  return text;
}

// Fills in what a case needs to compute a b; sums of small integers are exact.
Case product_case(const std::string& name, const Form& form, const Matrix& a, const Matrix& b,
                  std::size_t shift = 0) {
  Case c;
  c.group = "wgmma";
  c.name = name;
  c.covers =
      "fence_products commit_products wait_products hold tile_descriptor swizzled_memory "
      "fence_async_shared";
  if (form.shape.a_in_registers) c.covers += " hold_operands";
  c.needs = Needs::sm_90a;
  c.dtype = form.dtype;
  c.threads = 128;
  ProductShape first = form.shape;
  first.first = true;
  c.products = {form.shape, first};
  const ProductShape& shape = form.shape;
  const Bytes a_image = shape.a_in_registers
                            ? Bytes()
                            : slabs(shape.a_k_major ? a : transposed(a), form.swizzle, form.dtype);
  const Bytes b_image = slabs(shape.b_k_major ? transposed(b) : b, form.swizzle, form.dtype);
  append(c.input, a_image);
  append(c.input, b_image);
  const std::size_t tiles = c.input.size();
  if (shape.a_in_registers) append(c.input, elements(form.dtype, a.values));
  c.smem_bytes = static_cast<int>(shift + tiles);
  c.body = fmt::format(
      "const u32 a = swizzled_memory() + {}, b = a + {};\n"
      "fill_shared(params, a, 0, {});\nfence_async_shared();\nsynchronize_block();\n",
      shift, a_image.size(), tiles);
  if (shape.a_in_registers) c.body += fragments(tiles / 4);
  c.body += fmt::format("float d[{}];\nfence_products();\n{}", shape.n / 2, products_text(form));
  c.body += fmt::format(R"(commit_products();
wait_products<0>();
hold(d);
{1}for (int i = 0; i < {0}; ++i) output_float(params, {0} * thread_index() + i, d[i]);
)",
                        shape.n / 2, shape.a_in_registers ? "hold_operands(words);\n" : "");
  return c;
}

// The accumulator: register 4j + i of lane l in warp w has row 16 w + l / 4 + i / 2 * 8 and column
// 8 j + l % 4 * 2 + i % 2.
void expect(Case& c, const Matrix& a, const Matrix& b, bool exact) {
  Matrix zero{a.rows, b.columns, std::vector<double>(static_cast<std::size_t>(a.rows * b.columns))};
  const Matrix sums = product(a, b, zero), sizes = product_size(a, b, zero);
  std::vector<float> out;
  for (int thread = 0; thread < 128; ++thread)
    for (int i = 0; i < b.columns / 2; ++i) {
      const int row = thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
      const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      out.push_back(static_cast<float>(sums.at(row, column)));
      if (!exact) c.bound.push_back(sum_bound(sizes.at(row, column), a.columns + a.columns / 16));
    }
  c.expected = bytes_of(out);
}

Case integers(const Form& form) {
  const Matrix a = integer_matrix(200, 64, kDepth, 8);
  const Matrix b = integer_matrix(201, kDepth, form.shape.n, 8);
  Case c = product_case(fmt::format("{}_{}_swizzle_{}", product_name(form.shape),
                                    info(form.dtype).name, form.swizzle),
                        form, a, b);
  expect(c, a, b, true);
  return c;
}

Case fractions(const Form& form) {
  const Matrix a = fraction_matrix(202, 64, kDepth, form.dtype);
  const Matrix b = fraction_matrix(203, kDepth, form.shape.n, form.dtype);
  Case c = product_case(
      fmt::format("fractions_{}_{}", product_name(form.shape), info(form.dtype).name), form, a, b);
  expect(c, a, b, false);
  return c;
}

// A one among products of 2^-18 to 2^-25, one step of the depth after another: shows what is cut off.
Case rounding(DType dtype) {
  Matrix a{64, kDepth, std::vector<double>(64 * kDepth)},
      b{kDepth, 8, std::vector<double>(8 * kDepth)};
  for (int k = 0; k < kDepth; ++k) {
    for (int row = 0; row < 64; ++row)
      a.at(row, k) = k == row ? 1 : (row % 2 == 0 ? 1 : -1) * 0x1p-9;
    for (int column = 0; column < 8; ++column) b.at(k, column) = std::ldexp(1, -9 - column);
  }
  // The one is the only large product of its row: b is one where all rows of a but one are small.
  for (int column = 0; column < 8; ++column) b.at(5, column) = 1;
  const Form form{{8, false, true, true, false}, 128, dtype};
  Case c = product_case(fmt::format("rounding_{}", info(dtype).name), form, a, b);
  expect(c, a, b, false);
  return c;
}

// A K-major tile does not use the distance of slabs, whatever it says; tiles far behind the start.
Case unused_distance() {
  const Form form{{64, false, true, true, false}, 128, DType::bf16};
  const Matrix a = integer_matrix(204, 64, kDepth, 8), b = integer_matrix(205, kDepth, 64, 8);
  Case c = product_case("descriptor_fields", form, a, b, 96 * 1024);
  std::size_t at = 0;
  for (int i = 0; (at = c.body.find(", 1024, 0)", at)) != std::string::npos; ++i)
    c.body.replace(at, 10, fmt::format(", 1024, {})", i % 3 * 2032 + 16));
  expect(c, a, b, true);
  return c;
}

// Descriptors of later steps made from that of the first, in slabs of both kinds.
Case advanced_descriptors() {
  const Form form{{64, false, true, false, false}, 64, DType::bf16};
  const Matrix a = integer_matrix(208, 64, kDepth, 8), b = integer_matrix(209, kDepth, 64, 8);
  Case c = product_case("advance_descriptor", form, a, b);
  c.covers += " advance_descriptor";
  for (const char* tile : {"a", "b"})
    for (int step = 1; step < kDepth / 16; ++step) {
      const bool k_major = tile[0] == 'a';
      const auto text = [&](int at) {
        return descriptor(tile, at, k_major ? 64 : kDepth, form.swizzle, k_major);
      };
      const int bytes = step_offset(step, k_major ? 64 : kDepth, form.swizzle, k_major);
      const std::string old = text(step);
      c.body.replace(c.body.find(old), old.size(),
                     fmt::format("advance_descriptor({}, {})", text(0), bytes));
    }
  expect(c, a, b, true);
  return c;
}

// Two groups in flight; the first is read while the second may still run.
Case two_groups() {
  Form form{{64, false, true, false, false}, 128, DType::fp16};
  const Matrix a = integer_matrix(206, 64, kDepth, 8), b = integer_matrix(207, kDepth, 64, 8);
  Case c = product_case("two_groups", form, a, b);
  const std::string all = products_text(form);
  std::string other = all;
  for (std::size_t at = 0; (at = other.find("(d,", at)) != std::string::npos; ++at)
    other.replace(at, 3, "(e,");
  const std::size_t start = c.body.find("float d[32];");
  c.body.resize(start);
  c.body += fmt::format(R"(float d[32], e[32];
fence_products();
{}commit_products();
fence_products();
{}commit_products();
wait_products<1>();
hold(d);
for (int i = 0; i < 32; ++i) output_float(params, 32 * thread_index() + i, d[i]);
wait_products<0>();
hold(e);
for (int i = 0; i < 32; ++i) output_float(params, 4096 + 32 * thread_index() + i, 2.0f * e[i]);
)",
                        all, other);
  expect(c, a, b, true);
  const std::size_t words = c.expected.size() / 4;
  for (std::size_t i = 0; i < words; ++i)
    append(c.expected, std::vector<float>{2 * value_at<float>(c.expected, 4 * i)});
  return c;
}

}  // namespace

std::vector<Case> wgmma_cases() {
  const ProductShape layouts[] = {{0, false, true, true},  {0, false, true, false},
                                  {0, false, false, true}, {0, false, false, false},
                                  {0, true, true, true},   {0, true, true, false}};
  const int widths[] = {8, 64, 80, 128, 176, 256}, swizzles[] = {128, 64, 32};
  std::vector<Case> cases;
  // Each form meets three widths with each dtype, and each swizzle.
  for (int dtype = 0; dtype < 2; ++dtype)
    for (int layout = 0; layout < 6; ++layout)
      for (int i = 0; i < 3; ++i) {
        Form form{layouts[layout], swizzles[i], dtype == 0 ? DType::bf16 : DType::fp16};
        form.shape.n = widths[(2 * i + layout + dtype) % 6];
        cases.push_back(integers(form));
      }
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    cases.push_back(fractions({{64, false, true, true, false}, 128, dtype}));
    cases.push_back(fractions({{64, true, true, false, false}, 64, dtype}));
    cases.push_back(rounding(dtype));
  }
  cases.push_back(unused_distance());
  cases.push_back(advanced_descriptors());
  cases.push_back(two_groups());
  for (Case& c : cases) c.output = untouched(c.expected.size());
  return cases;
}

}  // namespace flashwright::conformance
