#include "core/expr_grad.hpp"

#include <algorithm>

namespace flashwright {
namespace {

bool is_number(const ExprPtr& expr, double value) {
  return expr->op == Op::number && expr->value == value;
}

// The factors of a product, those above and those below the line.
struct Factors {
  std::vector<ExprPtr> above, below;

  void add(const ExprPtr& expr, bool inverse = false) {
    if (expr->op == Op::mul || expr->op == Op::div) {
      add(expr->args[0], inverse);
      add(expr->args[1], inverse != (expr->op == Op::div));
    } else if (!is_number(expr, 1)) {
      (inverse ? below : above).push_back(expr);
    }
  }

  void cancel() {
    for (std::size_t i = 0; i < below.size();) {
      const std::string text = to_string(*below[i]);
      const auto same = std::find_if(above.begin(), above.end(), [&](const ExprPtr& factor) {
        return to_string(*factor) == text;
      });
      if (same == above.end()) {
        ++i;
        continue;
      }
      above.erase(same);
      below.erase(below.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
};

ExprPtr product(const std::vector<ExprPtr>& factors) {
  if (factors.empty()) return number(1);
  ExprPtr out = factors[0];
  for (std::size_t i = 1; i < factors.size(); ++i) out = call(Op::mul, {out, factors[i]});
  return out;
}

ExprPtr quotient(Factors factors) {
  factors.cancel();
  for (const ExprPtr& factor : factors.above)
    if (is_number(factor, 0)) return number(0);
  const ExprPtr above = product(factors.above);
  return factors.below.empty() ? above : call(Op::div, {above, product(factors.below)});
}

ExprPtr times(const ExprPtr& a, const ExprPtr& b) {
  Factors factors;
  factors.add(a);
  factors.add(b);
  return quotient(std::move(factors));
}
ExprPtr over(const ExprPtr& a, const ExprPtr& b) {
  Factors factors;
  factors.add(a);
  factors.add(b, true);
  return quotient(std::move(factors));
}
ExprPtr negated(const ExprPtr& a) { return is_number(a, 0) ? a : call(Op::negate, {a}); }
ExprPtr sum(const ExprPtr& a, const ExprPtr& b) {
  if (is_number(a, 0)) return b;
  return is_number(b, 0) ? a : call(Op::add, {a, b});
}
ExprPtr difference(const ExprPtr& a, const ExprPtr& b) {
  if (is_number(a, 0)) return negated(b);
  return is_number(b, 0) ? a : call(Op::sub, {a, b});
}
ExprPtr either(const ExprPtr& condition, const ExprPtr& a, const ExprPtr& b) {
  return to_string(*a) == to_string(*b) ? a : call(Op::select, {condition, a, b});
}

}  // namespace

ExprPtr derivative(const ExprPtr& expr, std::string_view variable) {
  const auto arg = [&](std::size_t i) { return expr->args[i]; };
  const auto of = [&](std::size_t i) { return derivative(expr->args[i], variable); };
  switch (expr->op) {
    case Op::variable:
      return number(expr->name == variable ? 1 : 0);
    case Op::negate:
      return negated(of(0));
    case Op::add:
      return sum(of(0), of(1));
    case Op::sub:
      return difference(of(0), of(1));
    case Op::mul:
      return sum(times(of(0), arg(1)), times(arg(0), of(1)));
    case Op::div: {
      const ExprPtr slope = of(1), plain = over(of(0), arg(1));
      if (is_number(slope, 0)) return plain;
      return difference(plain, over(times(arg(0), slope), times(arg(1), arg(1))));
    }
    case Op::tanh:
      return times(call(Op::sub, {number(1), call(Op::mul, {expr, expr})}), of(0));
    case Op::abs:
      return either(call(Op::lt, {arg(0), number(0)}), negated(of(0)), of(0));
    case Op::min:
      return either(call(Op::le, {arg(0), arg(1)}), of(0), of(1));
    case Op::max:
      return either(call(Op::ge, {arg(0), arg(1)}), of(0), of(1));
    case Op::select:
      return either(arg(0), of(1), of(2));
    default:
      return number(0);
  }
}

}  // namespace flashwright
