#include "core/expr.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "core/error.hpp"

namespace flashwright {
namespace {

struct OpInfo {
  Op op;
  const char* symbol;
  int arity;
  int precedence;  // 0 for leaves and functions, which never need parentheses
};

constexpr std::array kOps = {
    OpInfo{Op::number, "number", 0, 0},
    OpInfo{Op::variable, "variable", 0, 0},
    OpInfo{Op::negate, "-", 1, 7},
    OpInfo{Op::logical_not, "!", 1, 7},
    OpInfo{Op::add, "+", 2, 5},
    OpInfo{Op::sub, "-", 2, 5},
    OpInfo{Op::mul, "*", 2, 6},
    OpInfo{Op::div, "/", 2, 6},
    OpInfo{Op::lt, "<", 2, 4},
    OpInfo{Op::le, "<=", 2, 4},
    OpInfo{Op::gt, ">", 2, 4},
    OpInfo{Op::ge, ">=", 2, 4},
    OpInfo{Op::eq, "==", 2, 4},
    OpInfo{Op::ne, "!=", 2, 4},
    OpInfo{Op::logical_and, "&&", 2, 3},
    OpInfo{Op::logical_or, "||", 2, 2},
    OpInfo{Op::select, "?", 3, 1},
    OpInfo{Op::min, "min", 2, 0},
    OpInfo{Op::max, "max", 2, 0},
    OpInfo{Op::abs, "abs", 1, 0},
    OpInfo{Op::tanh, "tanh", 1, 0},
    OpInfo{Op::ceil_div, "ceil_div", 2, 0},
    OpInfo{Op::floor_div, "floor_div", 2, 0},
};

const OpInfo& op_info(Op op) { return kOps[static_cast<std::size_t>(op)]; }

double apply(Op op, double a, double b, double c) {
  switch (op) {
    case Op::negate:
      return -a;
    case Op::logical_not:
      return a == 0;
    case Op::add:
      return a + b;
    case Op::sub:
      return a - b;
    case Op::mul:
      return a * b;
    case Op::div:
      return a / b;
    case Op::lt:
      return a < b;
    case Op::le:
      return a <= b;
    case Op::gt:
      return a > b;
    case Op::ge:
      return a >= b;
    case Op::eq:
      return a == b;
    case Op::ne:
      return a != b;
    case Op::logical_and:
      return a != 0 && b != 0;
    case Op::logical_or:
      return a != 0 || b != 0;
    case Op::select:
      return a != 0 ? b : c;
    case Op::min:
      return std::min(a, b);
    case Op::max:
      return std::max(a, b);
    case Op::abs:
      return std::fabs(a);
    case Op::tanh:
      return std::tanh(a);
    case Op::ceil_div:
      return std::ceil(a / b);
    case Op::floor_div:
      return std::floor(a / b);
    case Op::number:
    case Op::variable:
      break;
  }
  throw Error(Status::internal, "expression: a leaf was applied");
}

// Fifteen digits where they tell the number, seventeen otherwise; the same under every locale.
std::string print_number(double value) {
  std::array<char, 32> text;
  char* end = text.data();
  for (const int digits : {15, 17}) {
    end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general,
                        digits)
              .ptr;
    double back = 0;
    std::from_chars(text.data(), end, back);
    if (back == value) break;
  }
  return {text.data(), end};
}

std::string print(const Expr& expr, int outer) {
  const OpInfo& op = op_info(expr.op);
  if (expr.op == Op::variable) return expr.name;
  if (expr.op == Op::number) return print_number(expr.value);
  std::string out;
  if (op.precedence == 0) {
    for (const ExprPtr& arg : expr.args) out += (out.empty() ? "" : ", ") + print(*arg, 0);
    return std::string(op.symbol) + "(" + out + ")";
  }
  if (expr.op == Op::select) {
    out =
        print(*expr.args[0], 2) + " ? " + print(*expr.args[1], 2) + " : " + print(*expr.args[2], 1);
  } else if (op.arity == 1) {
    out = op.symbol + print(*expr.args[0], op.precedence);
  } else {  // left-associative: an equal operator on the right needs parentheses
    out = print(*expr.args[0], op.precedence) + " " + op.symbol + " " +
          print(*expr.args[1], op.precedence + 1);
  }
  return op.precedence < outer ? "(" + out + ")" : out;
}

void collect(const Expr& expr, std::vector<std::string>& names) {
  if (expr.op == Op::variable && std::find(names.begin(), names.end(), expr.name) == names.end())
    names.push_back(expr.name);
  for (const ExprPtr& arg : expr.args) collect(*arg, names);
}

}  // namespace

ExprPtr number(double value) { return std::make_shared<Expr>(Expr{Op::number, value, {}, {}}); }
ExprPtr variable(std::string name) {
  return std::make_shared<Expr>(Expr{Op::variable, 0, std::move(name), {}});
}
ExprPtr call(Op op, std::vector<ExprPtr> args) {
  return std::make_shared<Expr>(Expr{op, 0, {}, std::move(args)});
}

const char* symbol(Op op) { return op_info(op).symbol; }
int arity(Op op) { return op_info(op).arity; }

double evaluate(const Expr& expr, const Lookup& lookup) { return evaluate(expr, lookup, nullptr); }

double evaluate(const Expr& expr, const Lookup& lookup, const Finish& finish) {
  if (expr.op == Op::number) return expr.value;
  if (expr.op == Op::variable) return lookup(expr.name);
  double args[3] = {0, 0, 0};
  for (std::size_t i = 0; i < expr.args.size(); ++i)
    args[i] = evaluate(*expr.args[i], lookup, finish);
  const double value = apply(expr.op, args[0], args[1], args[2]);
  return finish ? finish(expr, value) : value;
}

ExprPtr substitute(const ExprPtr& expr, std::string_view name, const ExprPtr& value) {
  if (expr->op == Op::variable && expr->name == name) return value;
  if (expr->args.empty()) return expr;
  std::vector<ExprPtr> args;
  for (const ExprPtr& arg : expr->args) args.push_back(substitute(arg, name, value));
  return call(expr->op, std::move(args));
}

std::vector<std::string> variables(const Expr& expr) {
  std::vector<std::string> names;
  collect(expr, names);
  return names;
}

std::string to_string(const Expr& expr) { return print(expr, 0); }

Rule::Rule(const Expr& expr, const std::vector<std::string>& names) {
  for (const ExprPtr& arg : expr.args) {
    const Rule part(*arg, names);
    steps_.insert(steps_.end(), part.steps_.begin(), part.steps_.end());
  }
  int index = -1;
  if (expr.op == Op::variable) {
    const auto found = std::find(names.begin(), names.end(), expr.name);
    if (found == names.end())
      throw Error(Status::internal, "rule: unknown variable '" + expr.name + "'");
    index = static_cast<int>(found - names.begin());
  }
  steps_.push_back({expr.op, index, expr.value});
  if (steps_.size() > 64) throw Error(Status::internal, "rule: too long: " + to_string(expr));
}

double Rule::operator()(const double* values) const {
  double stack[64];  // the constructor bounds the number of steps
  int top = 0;
  for (const Step& step : steps_) {
    if (step.op == Op::number) {
      stack[top++] = step.value;
    } else if (step.op == Op::variable) {
      stack[top++] = values[step.index];
    } else {
      const int operands = arity(step.op);
      top -= operands;
      const double* args = stack + top;
      stack[top++] =
          apply(step.op, args[0], operands > 1 ? args[1] : 0, operands > 2 ? args[2] : 0);
    }
  }
  return top == 1 ? stack[0] : 0;
}

}  // namespace flashwright
