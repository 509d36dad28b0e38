#include "core/expr.hpp"

#include <cmath>

#include "core/expr_parse.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace gen = rc::gen;

namespace {

const std::vector<std::string> kNames = {"q", "kv", "seq_kv", "window_left"};

bool same(const Expr& a, const Expr& b) {
  if (a.op != b.op || a.value != b.value || a.name != b.name || a.args.size() != b.args.size())
    return false;
  for (std::size_t i = 0; i < a.args.size(); ++i)
    if (!same(*a.args[i], *b.args[i])) return false;
  return true;
}

rc::Gen<ExprPtr> trees(int depth) {
  return gen::exec([depth]() -> ExprPtr {
    const int kind = depth == 0 ? *gen::inRange(0, 2) : *gen::inRange(0, 8);
    if (kind == 0) return number(*gen::oneOf(gen::inRange(0, 100), gen::inRange(0, 1 << 30)));
    if (kind == 1) return variable(*gen::elementOf(kNames));
    const Op op =
        *gen::element(Op::negate, Op::logical_not, Op::add, Op::sub, Op::mul, Op::div, Op::lt,
                      Op::le, Op::gt, Op::ge, Op::eq, Op::ne, Op::logical_and, Op::logical_or,
                      Op::select, Op::min, Op::max, Op::abs, Op::tanh, Op::ceil_div, Op::floor_div);
    std::vector<ExprPtr> args;
    for (int i = 0; i < arity(op); ++i) args.push_back(*trees(depth - 1));
    return call(op, args);
  });
}

double value_of(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (name == kNames[i]) return static_cast<double>(3 * i) - 4;
  return std::nan("");
}

bool equal(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

double evaluate(std::string_view text) { return evaluate(*parse_expr(text), value_of); }

}  // namespace

TEST_CASE("a variable is replaced wherever it stands") {
  const ExprPtr tree = substitute(parse_expr("q + tanh(q * kv)"), "q", parse_expr("kv - 1"));
  CHECK(to_string(*tree) == "kv - 1 + tanh((kv - 1) * kv)");
  CHECK(same(*substitute(tree, "q", number(1)), *tree));
}

TEST_CASE("every operation can be told to round") {
  const auto whole = [](const Expr&, double value) { return std::floor(value); };
  const ExprPtr tree = parse_expr("7 / 2 + 7 / 4");
  CHECK(evaluate(*tree, value_of) == 5.25);
  CHECK(evaluate(*tree, value_of, whole) == 4);
}

TEST_CASE("a printed tree reads back as the same tree") {
  property("print and parse", [] {
    const ExprPtr tree = *trees(4);
    const std::string text = to_string(*tree);
    RC_LOG() << text;
    RC_ASSERT(same(*parse_expr(text), *tree));
  });
}

TEST_CASE("a rule gives what the tree gives") {
  property("rule and evaluate", [] {
    const ExprPtr tree = *trees(3);
    std::vector<double> values;
    for (const std::string& name : kNames) values.push_back(value_of(name));
    RC_LOG() << to_string(*tree);
    double by_rule = 0;
    try {
      by_rule = Rule(*tree, kNames)(values.data());
    } catch (const Error& error) {
      RC_DISCARD(error.message);  // longer than a rule may be
    }
    RC_ASSERT(equal(by_rule, evaluate(*tree, value_of)));
  });
}

TEST_CASE("printing needs no parenthesis that changes nothing, and keeps those that do") {
  for (const char* text :
       {"a + b * c", "(a + b) * c", "a - (b - c)", "a - b - c", "-(a + b)", "!(a && b) || c",
        "a && (b || c)", "(a ? b : c) ? d : e", "a ? b : c ? d : e", "a ? (b ? c : d) : e",
        "ceil_div(seq_q, 64) * heads_q * batch", "min(a, max(b + 1, c))", "a / (b * c)",
        "a <= b == (c < d)", "(a ? 1 : 2) + 3"})
    CHECK(to_string(*parse_expr(text)) == text);
}

TEST_CASE("numbers print as they are") {
  // 2^53 - 1 has sixteen digits: every whole number below is exact, and so must be its text.
  for (const double value :
       {0.0, 1.0, 0.1, 1e-9, 1073741824.0, 9007199254740991.0, 0.30000000000000004}) {
    const std::string text = to_string(*number(value));
    CHECK(parse_expr(text)->value == value);
  }
  CHECK(to_string(*number(1073741824.0)) == "1073741824");
}

TEST_CASE("the language means what it says") {
  const std::vector<std::pair<std::string, double>> table = {{"1 + 2 * 3", 7},
                                                             {"(1 + 2) * 3", 9},
                                                             {"10 - 4 - 3", 3},
                                                             {"2 * -3", -6},
                                                             {"7 / 2", 3.5},
                                                             {"1 < 2", 1},
                                                             {"2 <= 1", 0},
                                                             {"1 == 1 && 2 != 2", 0},
                                                             {"0 || 3", 1},
                                                             {"!0", 1},
                                                             {"!5", 0},
                                                             {"0 ? 1 : 2", 2},
                                                             {"1 ? 0 ? 7 : 8 : 9", 8},
                                                             {"min(3, -2)", -2},
                                                             {"max(3, -2)", 3},
                                                             {"abs(-2.5)", 2.5},
                                                             {"ceil_div(7, 2)", 4},
                                                             {"ceil_div(8, 2)", 4},
                                                             {"floor_div(7, 2)", 3},
                                                             {"ceil_div(-7, 2)", -3},
                                                             {"floor_div(-7, 2)", -4},
                                                             {" q\t+ kv ", -5},
                                                             {"1.5e2", 150},
                                                             {".5", 0.5},
                                                             {"- - 2", 2},
                                                             {"1 <= 1 == 1", 1}};
  for (const auto& [text, expected] : table) {
    INFO(text);
    CHECK(evaluate(text) == expected);
  }
}

TEST_CASE("variables are listed once, in the order of their first use") {
  CHECK(variables(*parse_expr("b + a * b - min(c, a)")) == std::vector<std::string>{"b", "a", "c"});
  CHECK(variables(*parse_expr("1 + 2")).empty());
}

TEST_CASE("a syntax error quotes the text and marks the column") {
  struct Row {
    std::string text, what;
    int column;
  };
  const std::vector<Row> table = {{"", "unexpected end", 1},
                                  {"1 +", "unexpected end", 4},
                                  {"(1 + 2", "expected ')'", 7},
                                  {"1 $ 2", "unexpected text", 3},
                                  {"$", "unexpected character", 1},
                                  {"a + + b", "unexpected character", 5},
                                  {"min(1)", "min takes 2", 1},
                                  {"abs(1, 2)", "abs takes 1", 1},
                                  {"2 * tan(1)", "unknown function 'tan'", 5},
                                  {"a ? 1", "expected ':'", 6},
                                  {"1 2", "unexpected text", 3},
                                  {"min(1, 2", "expected ')'", 9},
                                  {"q <= ) 1", "unexpected character", 6},
                                  {"1e999", "bad number", 1},
                                  {"a = b", "unexpected text", 3},
                                  {"seq_q )", "unexpected text", 7}};
  for (const Row& row : table) {
    INFO(row.text);
    const Error error = error_of([&] { parse_expr(row.text); });
    CHECK(error.status == Status::bad_argument);
    CHECK(contains(error.message, row.what));
    CHECK(contains(error.message, "at column " + std::to_string(row.column)));
    const std::string caret =
        std::string("\n  ") + row.text + "\n  " + std::string(row.column - 1, ' ') + "^";
    CHECK(error.message.ends_with(caret));
  }
}

TEST_CASE("deep nesting is an error, not a crash") {
  for (const std::string& unit :
       {std::string("("), std::string("-"), std::string("1 ? "), std::string("abs(")}) {
    std::string text;
    for (int i = 0; i < 100000; ++i) text += unit;
    CHECK(contains(error_of([&] { parse_expr(text); }).message, "nested too deeply"));
  }
  std::string sum = "1";
  for (int i = 0; i < 1000; ++i) sum += " + 1";
  CHECK(evaluate(sum) == 1001);
}

TEST_CASE("a rule refuses variables that nobody supplies and rules that are too long") {
  const Error unknown = error_of([] { Rule(*parse_expr("q + depth"), kNames); });
  CHECK(unknown.status == Status::internal);
  CHECK(contains(unknown.message, "depth"));
  std::string sum = "1";
  for (int i = 0; i < 40; ++i) sum += " + 1";
  CHECK(contains(error_of([&] { Rule(*parse_expr(sum), kNames); }).message, "too long"));
}
