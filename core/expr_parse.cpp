#include "core/expr_parse.hpp"

#include <array>
#include <cctype>
#include <charconv>
#include <string>

#include "core/error.hpp"

namespace flashwright {
namespace {

// Recursive descent, one function per level of precedence.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  ExprPtr run() {
    ExprPtr expr = conditional();
    skip_space();
    if (at_ != text_.size()) fail("unexpected text");
    return expr;
  }

 private:
  struct BinaryOp {
    const char* text;
    Op op;
    int level;
  };
  // Longer operators first, so that "<=" is not read as "<".
  static constexpr std::array kBinary = {
      BinaryOp{"||", Op::logical_or, 0}, BinaryOp{"&&", Op::logical_and, 1},
      BinaryOp{"<=", Op::le, 2},         BinaryOp{">=", Op::ge, 2},
      BinaryOp{"==", Op::eq, 2},         BinaryOp{"!=", Op::ne, 2},
      BinaryOp{"<", Op::lt, 2},          BinaryOp{">", Op::gt, 2},
      BinaryOp{"+", Op::add, 3},         BinaryOp{"-", Op::sub, 3},
      BinaryOp{"*", Op::mul, 4},         BinaryOp{"/", Op::div, 4},
  };
  static constexpr int kUnaryLevel = 5;
  static constexpr int kMaxDepth = 200;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(Status::bad_argument, "expression: " + what + " at column " +
                                          std::to_string(at_ + 1) + "\n  " + std::string(text_) +
                                          "\n  " + std::string(at_, ' ') + "^");
  }

  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }

  bool take(std::string_view token) {
    skip_space();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  void expect(std::string_view token) {
    if (!take(token)) fail("expected '" + std::string(token) + "'");
  }

  ExprPtr conditional() {
    if (++depth_ > kMaxDepth) fail("nested too deeply");
    ExprPtr condition = binary(0);
    if (take("?")) {
      ExprPtr yes = conditional();
      expect(":");
      condition = call(Op::select, {condition, yes, conditional()});
    }
    --depth_;
    return condition;
  }

  ExprPtr binary(int level) {
    if (level == kUnaryLevel) return unary();
    ExprPtr left = binary(level + 1);
    for (bool found = true; found;) {
      found = false;
      for (const BinaryOp& op : kBinary) {
        if (op.level != level || !take(op.text)) continue;
        left = call(op.op, {left, binary(level + 1)});
        found = true;
        break;
      }
    }
    return left;
  }

  ExprPtr unary() {
    if (++depth_ > kMaxDepth) fail("nested too deeply");
    ExprPtr out;
    if (take("-")) {
      out = call(Op::negate, {unary()});
    } else if (take("!")) {
      out = call(Op::logical_not, {unary()});
    } else {
      out = primary();
    }
    --depth_;
    return out;
  }

  ExprPtr primary() {
    skip_space();
    if (take("(")) {
      ExprPtr inside = conditional();
      expect(")");
      return inside;
    }
    if (at_ == text_.size()) fail("unexpected end");
    const char c = text_[at_];
    if (std::isdigit(static_cast<unsigned char>(c)) || c == '.') {
      double value = 0;
      const auto [end, error] =
          std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
      if (error != std::errc{}) fail("bad number");
      at_ = static_cast<std::size_t>(end - text_.data());
      return number(value);
    }
    if (!std::isalpha(static_cast<unsigned char>(c)) && c != '_') fail("unexpected character");
    const std::size_t start = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_'))
      ++at_;
    const std::string name(text_.substr(start, at_ - start));
    if (!take("(")) return variable(name);
    return function(name, start);
  }

  ExprPtr function(const std::string& name, std::size_t start) {
    for (const Op op : {Op::min, Op::max, Op::abs, Op::tanh, Op::ceil_div, Op::floor_div}) {
      if (name != symbol(op)) continue;
      std::vector<ExprPtr> args{conditional()};
      while (take(",")) args.push_back(conditional());
      expect(")");
      if (static_cast<int>(args.size()) != arity(op)) {
        at_ = start;
        fail(name + " takes " + std::to_string(arity(op)) + " operands, " +
             std::to_string(args.size()) + " given,");
      }
      return call(op, std::move(args));
    }
    at_ = start;
    fail("unknown function '" + name + "' (known: min max abs tanh ceil_div floor_div)");
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

ExprPtr parse_expr(std::string_view text) { return Parser(text).run(); }

}  // namespace flashwright
