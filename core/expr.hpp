// Small arithmetic expressions: masks, tile ranges, grid and workspace rules, and later the changes
// a user makes to a score. One tree, several readers: the evaluator here, the CUDA printer and the
// LLVM emitter of the generators.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace flashwright {

enum class Op {
  number,
  variable,  // leaves
  negate,
  logical_not,  // one operand
  add,
  sub,
  mul,
  div,  // arithmetic
  lt,
  le,
  gt,
  ge,
  eq,
  ne,  // comparisons give 0 or 1
  logical_and,
  logical_or,
  select,  // condition ? a : b
  min,
  max,
  abs,
  tanh,
  ceil_div,
  floor_div,  // functions
};

struct Expr;
using ExprPtr = std::shared_ptr<const Expr>;

struct Expr {
  Op op;
  double value = 0;  // Op::number
  std::string name;  // Op::variable
  std::vector<ExprPtr> args;
};

ExprPtr number(double value);
ExprPtr variable(std::string name);
ExprPtr call(Op op, std::vector<ExprPtr> args);

// The text of an operator ("+", "<=", "min") and how many operands it takes.
const char* symbol(Op op);
int arity(Op op);

// Value of the tree; `lookup` gives the value of a variable. Exact for integers below 2^53.
using Lookup = std::function<double(std::string_view name)>;
double evaluate(const Expr& expr, const Lookup& lookup);
// The same where `finish` has the last word on the value of every operation.
using Finish = std::function<double(const Expr& expr, double value)>;
double evaluate(const Expr& expr, const Lookup& lookup, const Finish& finish);

// The tree with every `name` replaced.
ExprPtr substitute(const ExprPtr& expr, std::string_view name, const ExprPtr& value);

// The names of all variables, each once, in order of first use.
std::vector<std::string> variables(const Expr& expr);

// Prints in the language of expr_parse.hpp, with no parenthesis that is not needed.
std::string to_string(const Expr& expr);

// A rule compiled for repeated evaluation: variables are indices into an array, and evaluating
// allocates nothing.
class Rule {
 public:
  Rule() = default;
  // `names` lists the variables that may occur, in the order of the array given to operator().
  Rule(const Expr& expr, const std::vector<std::string>& names);
  double operator()(const double* values) const;

 private:
  struct Step {
    Op op;
    int index;     // Op::variable
    double value;  // Op::number
  };
  std::vector<Step> steps_;  // postfix order
};

}  // namespace flashwright
