// Text to expression tree. The language: numbers, names, + - * /, comparisons, && || !, c ? a : b,
// parentheses and the functions min max abs tanh ceil_div floor_div.
#pragma once

#include <string_view>

#include "core/expr.hpp"

namespace flashwright {

// Throws Error(bad_argument) that quotes the text and marks the place with a caret.
ExprPtr parse_expr(std::string_view text);

}  // namespace flashwright
