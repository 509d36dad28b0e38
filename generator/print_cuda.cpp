#include "generator/print_cuda.hpp"

#include <algorithm>
#include <array>

#include "core/error.hpp"

namespace flashwright {
namespace {

// Variables of a mask row that the printed functions hold in locals; all others are launch
// parameters.
constexpr std::array kLocals = {"q", "kv", "q_first", "q_last"};

ExprPtr rename(const Expr& expr) {
  if (expr.op == Op::variable) {
    const bool local = std::find(kLocals.begin(), kLocals.end(), expr.name) != kLocals.end();
    return variable(local ? expr.name : "params." + expr.name);
  }
  if (expr.op == Op::number) return number(expr.value);
  std::vector<ExprPtr> args;
  for (const ExprPtr& arg : expr.args) args.push_back(rename(*arg));
  if (expr.op == Op::ceil_div || expr.op == Op::floor_div || expr.op == Op::div)
    throw Error(Status::internal, "print_cuda: division in " + to_string(expr));
  return call(expr.op, std::move(args));
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

}  // namespace

std::string print_cuda(const Expr& expr) {
  std::string text = to_string(*rename(expr));
  replace_all(text, "min(", "smaller(");
  replace_all(text, "max(", "larger(");
  return text;
}

}  // namespace flashwright
