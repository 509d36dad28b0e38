// The wrappers of wgmma: their operand lists grow with the shape, so they are printed.
#pragma once

#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "generator/specialise.hpp"

namespace flashwright::sm90 {

// A product of a 64 x 16 matrix a with a 16 x n matrix b, elements of 16 bits, sums of 32.
struct ProductShape {
  int n = 64;  // a multiple of 8, up to 256
  // Whether a lies in registers, as the words of multiply_add() of each warp, or in shared memory.
  bool a_in_registers = false;
  // Which dimension neighbours in shared memory share: the depth of the product (K-major), as in the
  // two operands of Q K^T, or the rows of a and columns of b, as in the values of P V.
  bool a_k_major = true, b_k_major = true;
  // Whether d is overwritten: the first step of a sum, which needs no zeros.
  bool first = false;
};

// "wgmma_ss_n128_kk_first": where a and b lie, n, and which operands are K-major (k) or not (m).
std::string product_name(const ProductShape& shape);

// The wrapper, with its comment. Throws Error(internal) for a shape that does not exist.
std::vector<Line> print_product(const ProductShape& shape, DType dtype);

}  // namespace flashwright::sm90
