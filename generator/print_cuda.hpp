// Expressions as CUDA C++.
#pragma once

#include <string>

#include "core/expr.hpp"

namespace flashwright {

// Integer expression. Names in `params` are fields of the parameter struct and print as
// params.NAME; the others are local variables.
std::string print_cuda(const Expr& expr);

}  // namespace flashwright
