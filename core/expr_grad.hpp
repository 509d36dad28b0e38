// Derivatives of expressions: what turns a change of scores into the step back through it.
#pragma once

#include <string_view>

#include "core/expr.hpp"

namespace flashwright {

// The derivative with respect to one variable, with factors that cancel and sums of nothing left out. Where a branch
// or an absolute value has a corner, it is that of the side which the expression takes; comparisons and rounded
// quotients are constant between their steps.
ExprPtr derivative(const ExprPtr& expr, std::string_view variable);

}  // namespace flashwright
