// Arithmetic that kernels need and the instruction set lacks, on vectors of fp32: powers and logarithms,
// element conversions, transposition, dropout bits. No call ever leaves the kernel.
#pragma once

#include "flashwright/config.hpp"
#include "generator/cpu/ir.hpp"

namespace flashwright::ir {

// 2^x for x <= 0, exactly 1 at 0, 0 below -126, NaN for NaN. Degree 5: error below 2 ulp; degree 4:
// relative error below 4e-6, enough for results of 16 bits.
V exp2_negative(V x, int degree);

// Hyperbolic tangent, relative error of a few ulp; NaN for NaN.
V tanh(V x);

// Base-2 logarithm of a normal positive number, error below 2 ulp; NaN for NaN.
V log2_positive(V x);

// `lanes` elements of a user's tensor as fp32, and back. Aligned to the element only.
V load_elements(Builder& ir, V pointer, DType dtype, int lanes);
void store_elements(Builder& ir, V values, V pointer, DType dtype, int lanes);
Kind storage(DType dtype);

// Rows become columns: lane j of result i is lane i of rows[j]. As many rows as lanes: 4, 8 or 16.
Values transpose(const Values& rows);

// Keep words of core/philox.hpp for one group of 32 keys, one query a lane.
class KeepWords {
 public:
  KeepWords(Builder& ir, V key, V threshold, int lanes);  // i64, i32
  V operator()(V heads, V queries, V key_word) const;     // vectors of i32, and i64

 private:
  Values random(Values counter) const;
  Builder& ir_;
  int lanes_;
  Values round_keys_;  // two for each round
  Values limits_;      // all ones where a bit of the threshold is set
};

}  // namespace flashwright::ir
