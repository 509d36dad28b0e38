#include "core/score.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/expr_grad.hpp"
#include "core/expr_parse.hpp"

namespace flashwright {
namespace {

bool only(const Expr& expr, std::initializer_list<std::string_view> allowed) {
  const std::vector<std::string> names = variables(expr);
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return std::find(allowed.begin(), allowed.end(), name) != allowed.end();
  });
}

// a * b and a / b where a null operand stands for 1.
ExprPtr times(const ExprPtr& a, const ExprPtr& b) {
  if (!a || !b) return a ? a : b;
  return call(Op::mul, {a, b});
}
ExprPtr over(const ExprPtr& a, const ExprPtr& b) {
  if (!b) return a;
  if (a && to_string(*a) == to_string(*b)) return nullptr;
  return call(Op::div, {a ? a : number(1), b});
}

// A tree as factor * value, where the factor is the same for a row; either may be null for 1.
FoldedScore split(const ExprPtr& expr);

ExprPtr joined(const FoldedScore& parts) {
  const ExprPtr product = times(parts.factor, parts.value);
  return product ? product : number(1);
}

// The sum in units of the factor on the left.
FoldedScore split_sum(Op op, const FoldedScore& a, const FoldedScore& b) {
  const bool plain_number = !a.value && a.factor->op == Op::number && !b.factor;
  if (plain_number) return {nullptr, call(op, {a.factor, b.value})};
  const ExprPtr right = times(over(b.factor, a.factor), b.value);
  return {a.factor, call(op, {a.value ? a.value : number(1), right ? right : number(1)})};
}

FoldedScore split(const ExprPtr& expr) {
  if (same_for_row(*expr)) return {expr, nullptr};
  if (expr->op == Op::variable) {
    if (expr->name == "score") return {variable("softmax_scale"), expr};
    return {nullptr, expr};
  }
  std::vector<FoldedScore> parts;
  for (const ExprPtr& arg : expr->args) parts.push_back(split(arg));
  switch (expr->op) {
    case Op::mul:
      return {times(parts[0].factor, parts[1].factor), times(parts[0].value, parts[1].value)};
    case Op::div:
      if (!parts[1].value) return {over(parts[0].factor, parts[1].factor), parts[0].value};
      break;
    case Op::negate:
      return {parts[0].factor, call(Op::negate, {parts[0].value})};
    case Op::add:
    case Op::sub:
      return split_sum(expr->op, parts[0], parts[1]);
    default:
      break;
  }
  std::vector<ExprPtr> args;
  for (const FoldedScore& part : parts) args.push_back(joined(part));
  return {nullptr, call(expr->op, std::move(args))};
}

}  // namespace

bool same_for_row(const Expr& expr) { return only(expr, {"softmax_scale", "softcap", "slope"}); }

ExprPtr score_expr(bool softcap, bool alibi) {
  static const ExprPtr kCapped = parse_expr("softcap * tanh(score / softcap)");
  static const ExprPtr kAlibi = parse_expr("score + slope * (kv - q)");
  ExprPtr out = variable("score");
  if (softcap) out = substitute(kCapped, "score", out);
  if (alibi) out = substitute(kAlibi, "score", out);
  return out;
}

ExprPtr score_derivative(const Problem& problem) {
  static const ExprPtr kOfCap = derivative(score_expr(true, false), "score");
  // What is added to a score does not depend on it.
  return problem.softcap ? kOfCap : number(1);
}

FoldedScore fold_score(const ExprPtr& expr) {
  FoldedScore out = split(expr);
  // A factor of each head, and a score that is the same for a whole row, stay in the value.
  if (out.factor && (!out.value || !only(*out.factor, {"softmax_scale", "softcap"})))
    out = {nullptr, joined(out)};
  return out;
}

}  // namespace flashwright
