// Expressions as CUDA C++.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/dtype.hpp"
#include "core/expr.hpp"

namespace flashwright {

// Integer expression. Names in `params` are fields of the parameter struct and print as
// params.NAME; the others are local variables.
std::string print_cuda(const Expr& expr);

// Floating-point expression of a kernel for elements of `dtype`. `names` says what a subtree, given as
// its text, is called in the kernel; whatever is left of numbers and operations is printed, sums of
// products as one operation. A variable without a name is an error.
using CudaNames = std::vector<std::pair<std::string, std::string>>;
std::string print_cuda_float(const Expr& expr, const CudaNames& names, DType dtype);

}  // namespace flashwright
