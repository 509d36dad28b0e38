// Masks as emitted code: the expressions of the mask table, printed as operations on scalars (ranges of
// keys) and on vectors of queries (the test of one element).
#include <functional>
#include <map>

#include "core/error.hpp"
#include "core/mask.hpp"
#include "generator/cpu/kernel.hpp"
#include "generator/cpu/module.hpp"

namespace flashwright {

using namespace ir;

namespace {

using Names = std::map<std::string, V, std::less<>>;

// Prints an expression tree over integers of 64 bits, on scalars or on vectors. Truth values are one bit
// until arithmetic needs them as 0 or 1.
class ExprPrinter {
 public:
  ExprPrinter(Builder& ir, Type type, const Names& names) : ir_(ir), type_(type), names_(names) {}

  V integer(const Expr& expr) {
    const V value = print(expr);
    return truth_ ? widen(value, Kind::i64) : value;
  }
  V truth(const Expr& expr) {
    const V value = print(expr);
    return truth_ ? value : negate_bit(equal(value, std::int64_t{0}));
  }

 private:
  V print(const Expr& expr) {
    switch (expr.op) {
      case Op::number:
        return as_integer(ir_.number(type_, static_cast<std::int64_t>(expr.value)));
      case Op::variable:
        return as_integer(named(expr.name));
      case Op::logical_not:
        return as_truth(negate_bit(truth(arg(expr, 0))));
      case Op::logical_and:
        return as_truth(truth(arg(expr, 0)) & truth(arg(expr, 1)));
      case Op::logical_or:
        return as_truth(truth(arg(expr, 0)) | truth(arg(expr, 1)));
      case Op::select: {
        const V condition = truth(arg(expr, 0)), a = integer(arg(expr, 1)),
                b = integer(arg(expr, 2));
        return as_integer(select(condition, a, b));
      }
      default:
        break;
    }
    const V a = integer(arg(expr, 0));
    const V b = expr.args.size() > 1 ? integer(arg(expr, 1)) : V{};
    return binary(expr, a, b);
  }

  V named(const std::string& name) const {
    const auto found = names_.find(name);
    if (found != names_.end()) return found->second;
    throw Error(Status::internal, "mask expression: '" + name + "' has no value here");
  }

  V binary(const Expr& expr, V a, V b) {
    const V zero = ir_.number(type_, std::int64_t{0});
    switch (expr.op) {
      case Op::negate:
        return as_integer(zero - a);
      case Op::add:
        return as_integer(a + b);
      case Op::sub:
        return as_integer(a - b);
      case Op::mul:
        return as_integer(a * b);
      case Op::min:
        return as_integer(smaller(a, b));
      case Op::max:
        return as_integer(larger(a, b));
      case Op::abs:
        return as_integer(larger(a, zero - a));
      case Op::floor_div:
        return as_integer(floor_divide(a, b));
      case Op::ceil_div:
        return as_integer(zero - floor_divide(zero - a, b));
      case Op::lt:
        return as_truth(less(a, b));
      case Op::gt:
        return as_truth(less(b, a));
      case Op::le:
        return as_truth(less_equal(a, b));
      case Op::ge:
        return as_truth(less_equal(b, a));
      case Op::eq:
        return as_truth(equal(a, b));
      case Op::ne:
        return as_truth(negate_bit(equal(a, b)));
      default:
        break;
    }
    throw Error(Status::unsupported,
                "mask expression: '" + std::string(symbol(expr.op)) +
                    "' has no meaning on whole numbers; use floor_div or ceil_div");
  }

  V floor_divide(V a, V b) {
    const V zero = ir_.number(type_, std::int64_t{0});
    const V quotient = divide(a, b), rest = a - quotient * b;
    const V ragged = negate_bit(equal(rest, zero)) & less(rest ^ b, zero);
    return select(ragged, quotient - 1, quotient);
  }

  static const Expr& arg(const Expr& expr, std::size_t i) { return *expr.args[i]; }
  V as_integer(V value) {
    truth_ = false;
    return value;
  }
  V as_truth(V value) {
    truth_ = true;
    return value;
  }

  Builder& ir_;
  Type type_;
  const Names& names_;
  bool truth_ = false;  // whether the value printed last is a truth value
};

// One pass over a tile of scores: `visible(key, vector)` gives the truth values of one vector of
// queries, or nothing when all are visible.
using Visible = std::function<V(V key, int vector)>;

Values hide(Kernel& k, V scores, V from, V to, const Values& maxima, const Visible& visible) {
  const Tiling& t = k.tiling;
  std::vector<Carried> tops;
  for (const V top : maxima) tops.push_back({top, "max"});
  return k.ir.loop("mask", from, to, 1, tops, [&](V key, const Values& carried) {
    Values next;
    for (int n = 0; n < t.query_vectors; ++n) {
      const V place = k.at(scores, key, n * t.lanes);
      V score = k.load_floats(place).named("score");
      if (const V keep = visible(key, n); keep) {
        score = select(keep, score, k.all(-kInfinity)).named("masked");
        k.store_floats(score, place);
      }
      next.push_back(larger_float(score, carried[static_cast<std::size_t>(n)]).named("max"));
    }
    return next;
  });
}

// Keys that only fill up the last block of the tile.
void hide_padding(Kernel& k, V scores, V count, V padded) {
  k.ir.loop("mask.padding", count, padded, 1, [&](V key) {
    for (int n = 0; n < k.tiling.query_vectors; ++n)
      k.store_floats(k.all(-kInfinity), k.at(scores, key, n * k.tiling.lanes));
  });
}

Values load_rows(Kernel& k, int buffer) {
  Values out;
  for (int n = 0; n < k.tiling.query_vectors; ++n)
    out.push_back(k.load_floats(k.ir.offset(k.buffer(buffer), n * k.tiling.lanes * 4)));
  return out;
}
void store_rows(Kernel& k, int buffer, const Values& values) {
  for (int n = 0; n < k.tiling.query_vectors; ++n)
    k.store_floats(values[static_cast<std::size_t>(n)],
                   k.ir.offset(k.buffer(buffer), n * k.tiling.lanes * 4));
}

}  // namespace

KeyRange key_range(Kernel& k, const TaskRows& rows) {
  Builder& ir = k.ir;
  const MaskInfo& mask = info(k.problem.mask);
  const V seq_kv = k.param(Param::seq_kv);
  Names names{{"seq_kv", seq_kv}};
  if (k.problem.mask != Mask::Kind::none && k.has(Param::q_position)) {
    const V first = k.param(Param::q_position);
    names["q_first"] = (rows.lowest_query + first).named("q_first");
    names["q_last"] = (rows.highest_query + first).named("q_last");
  }
  for (const std::string& name : mask.parameters) names[name] = k.param(param_named(name));
  ExprPrinter print(ir, {Kind::i64}, names);
  const auto range = [&](const ExprPtr& expr, const char* name) {
    return print.integer(*expr).named(name);
  };
  KeyRange out;
  // Tiles begin at multiples of 32 keys, the unit of the dropout bits.
  out.begin = (larger(range(mask.begin, "mask.begin"), ir.i64(0)) & -32).named("keys.begin");
  out.end = smaller(range(mask.end, "mask.end"), seq_kv).named("keys.end");
  out.full_begin = range(mask.full_begin, "full.begin");
  out.full_end = smaller(range(mask.full_end, "full.end"), seq_kv).named("full.end");
  return out;
}

V integer_of(Kernel& k, const Expr& rule) {
  Names names;
  for (const std::string& name : variables(rule)) names[name] = k.param(param_named(name));
  return ExprPrinter(k.ir, {Kind::i64}, names).integer(rule);
}

void mask_tile(Kernel& k, V scores, V first_key, V count, V padded) {
  Builder& ir = k.ir;
  const MaskInfo& mask = info(k.problem.mask);
  const Type longs{Kind::i64, k.tiling.lanes};
  const bool tests = mask.keep->op != Op::number;
  Names names;
  if (tests)
    for (const std::string& name : mask.parameters)
      names[name] = splat(k.param(param_named(name)), k.tiling.lanes);
  const Visible visible = [&](V key, int vector) -> V {
    if (!tests) return {};
    names["kv"] = splat(first_key + key, k.tiling.lanes);
    const V place = ir.offset(k.buffer(k.tiling.at.positions), vector * k.tiling.lanes * 8);
    names["q"] = ir.load(longs, place, k.tiling.lanes * 4);
    return ExprPrinter(ir, longs, names).truth(*mask.keep).named("keep");
  };
  store_rows(k, k.tiling.at.tile_max,
             hide(k, scores, ir.i64(0), count, load_rows(k, k.tiling.at.row_max), visible));
  hide_padding(k, scores, count, padded);
}

void mask_tile_by_bits(Kernel& k, V scores, V tested, V bits, V words_per_row, V row_count, V count,
                       V padded) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  const Type words{Kind::i32, t.lanes};
  std::vector<Carried> tops;
  for (const V top : load_rows(k, t.at.row_max)) tops.push_back({top, "max"});
  const Values maxima =
      ir.loop("mask.word", ir.i64(0), count, 32, tops, [&](V first, const Values& carried) {
        // The word of each row, side by side; a full block has all bits set.
        ir.loop("mask.row", ir.i64(0), ir.i64(t.tile_q), 1, [&](V row) {
          const V place = ir.element(k.buffer(t.at.words), Kind::i32, row);
          ir.store(ir.bits32(0xffffffffu), place, 4);
          ir.when("mask.partial", tested, [&] {
            const V last = smaller(row, row_count - 1);
            const V from =
                ir.element(bits, Kind::i32, last * words_per_row + shift_right(first, 5));
            ir.store(ir.load({Kind::i32}, from, 4), place, 4);
          });
        });
        return hide(k, scores, first, smaller(first + 32, count), carried, [&](V key, int vector) {
          const V place = ir.offset(k.buffer(t.at.words), vector * t.lanes * 4);
          const V word = ir.load(words, place, t.lanes * 4).named("word");
          const V bit = shift_right(word, splat(narrow(key - first, Kind::i32), t.lanes)) &
                        ir.number(words, std::int64_t{1});
          return equal(bit, ir.number(words, std::int64_t{1})).named("keep");
        });
      });
  store_rows(k, t.at.tile_max, maxima);
  hide_padding(k, scores, count, padded);
}

}  // namespace flashwright
