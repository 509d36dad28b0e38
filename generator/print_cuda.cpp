#include "generator/print_cuda.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.hpp"

namespace flashwright {
namespace {

// Variables of a mask row that the printed functions hold in locals; all others are launch
// parameters.
constexpr std::array kLocals = {"q", "kv", "q_first", "q_last", "kv_first", "kv_last"};

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

// A literal of type float: the shortest text that reads back as the same number.
std::string float_literal(double value) {
  std::string text = fmt::format("{}", static_cast<float>(value));
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text + "f";
}

class FloatPrinter {
 public:
  FloatPrinter(const CudaNames& names, DType dtype) : names_(names), dtype_(dtype) {}

  // `outer`: the precedence of what the text becomes a part of.
  std::string print(const Expr& expr, int outer) const {
    const std::string text = to_string(expr);
    for (const auto& [tree, name] : names_)
      if (tree == text) return name;
    switch (expr.op) {
      case Op::number:
        return float_literal(expr.value);
      case Op::add:
      case Op::sub:
        return sum(expr, outer);
      case Op::mul:
        return binary(expr, kProduct, outer);
      case Op::div:
        return binary(expr, kProduct, outer);
      case Op::negate:
        return fmt::format("-{}", print(arg(expr, 0), kUnary));
      case Op::lt:
      case Op::le:
      case Op::gt:
      case Op::ge:
      case Op::eq:
      case Op::ne:
        return binary(expr, kComparison, outer);
      case Op::logical_and:
        return binary(expr, kAnd, outer);
      case Op::logical_or:
        return binary(expr, kOr, outer);
      case Op::logical_not:
        return fmt::format("!{}", print(arg(expr, 0), kUnary));
      case Op::select:
        return enclosed(fmt::format("{} ? {} : {}", print(arg(expr, 0), kOr),
                                    print(arg(expr, 1), kOr), print(arg(expr, 2), kSelect)),
                        kSelect, outer);
      default:
        return function(expr);
    }
  }

 private:
  static constexpr int kSelect = 1, kOr = 2, kAnd = 3, kComparison = 4, kSum = 5, kProduct = 6,
                       kUnary = 7;

  static const Expr& arg(const Expr& expr, std::size_t i) { return *expr.args[i]; }

  static std::string enclosed(const std::string& text, int own, int outer) {
    return own < outer ? fmt::format("({})", text) : text;
  }

  std::string binary(const Expr& expr, int own, int outer) const {
    return enclosed(fmt::format("{} {} {}", print(arg(expr, 0), own), symbol(expr.op),
                                print(arg(expr, 1), own + 1)),
                    own, outer);
  }

  // A product among the operands goes into one operation with the sum.
  std::string sum(const Expr& expr, int outer) const {
    const Expr &a = arg(expr, 0), &b = arg(expr, 1);
    const char* const sign = expr.op == Op::sub ? "-" : "";
    if (b.op == Op::mul)
      return fmt::format("fused_multiply_add({}{}, {}, {})", sign,
                         print(arg(b, 0), *sign == '-' ? kUnary : 0), print(arg(b, 1), 0),
                         print(a, 0));
    if (a.op == Op::mul)
      return fmt::format("fused_multiply_add({}, {}, {}{})", print(arg(a, 0), 0),
                         print(arg(a, 1), 0), sign, print(b, *sign == '-' ? kUnary : 0));
    return binary(expr, kSum, outer);
  }

  std::string function(const Expr& expr) const {
    std::vector<std::string> parts;
    for (const ExprPtr& part : expr.args) parts.push_back(print(*part, 0));
    const std::string args = fmt::format("{}", fmt::join(parts, ", "));
    switch (expr.op) {
      case Op::tanh:
        // The instruction has an error of 2^-11, which shows in fp32 only.
        return fmt::format("{}({})", dtype_ == DType::fp32 ? "tanh_exact" : "tanh_approx", args);
      case Op::max:
        return fmt::format("larger_float({})", args);
      case Op::abs:
        return fmt::format("magnitude({})", args);
      default:
        throw Error(Status::internal, "print_cuda_float: no text for " + to_string(expr));
    }
  }

  const CudaNames& names_;
  DType dtype_;
};

}  // namespace

std::string print_cuda_float(const Expr& expr, const CudaNames& names, DType dtype) {
  return FloatPrinter(names, dtype).print(expr, 0);
}

std::string print_cuda(const Expr& expr) {
  std::string text = to_string(*rename(expr));
  replace_all(text, "min(", "smaller(");
  replace_all(text, "max(", "larger(");
  return text;
}

}  // namespace flashwright
