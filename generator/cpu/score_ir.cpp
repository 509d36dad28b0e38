// What happens to a score between product and mask: its expression, printed as operations on vectors of
// queries.
#include "core/error.hpp"
#include "core/score.hpp"
#include "generator/cpu/kernel.hpp"
#include "generator/cpu/math_ir.hpp"

namespace flashwright {

using namespace ir;

namespace {

// Prints a floating-point expression. `names` gives values of subtrees by their text.
class FloatPrinter {
 public:
  FloatPrinter(Builder& ir, Type type, const ScoreNames& names)
      : ir_(ir), type_(type), names_(names) {}

  V print(const Expr& expr) const {
    if (const auto found = names_.find(to_string(expr)); found != names_.end())
      return found->second;
    if (expr.op == Op::number) return ir_.number(type_, expr.value);
    if (expr.op == Op::add && expr.args[1]->op == Op::mul)
      return fma(print(*expr.args[1]->args[0]), print(*expr.args[1]->args[1]), arg(expr, 0));
    switch (expr.op) {
      case Op::negate:
        return ir_.number(type_, -0.0) - arg(expr, 0);
      case Op::add:
        return arg(expr, 0) + arg(expr, 1);
      case Op::sub:
        return arg(expr, 0) - arg(expr, 1);
      case Op::mul:
        return arg(expr, 0) * arg(expr, 1);
      case Op::div:
        return divide_float(arg(expr, 0), arg(expr, 1));
      case Op::max:
        return larger_float(arg(expr, 0), arg(expr, 1));
      case Op::tanh:
        return tanh(arg(expr, 0));
      default:
        throw Error(Status::internal, "score expression: no value for " + to_string(expr));
    }
  }

 private:
  V arg(const Expr& expr, std::size_t i) const { return print(*expr.args[i]); }

  Builder& ir_;
  Type type_;
  const ScoreNames& names_;
};

}  // namespace

ScoreChange::ScoreChange(Kernel& kernel, V key)
    : k(kernel),
      factor_(splat(k.param(k.problem.softcap ? Param::softcap_log2 : Param::scale_log2),
                    k.tiling.lanes)
                  .named("scale")) {
  if (k.problem.softcap)
    names_["softmax_scale / softcap"] = splat(k.param(Param::tanh_scale), k.tiling.lanes);
  if (k.problem.softcap || k.problem.alibi) value_ = fold_score(score_expr(k.problem)).value;
  if (k.problem.softcap) derivative_ = fold_score(score_derivative(k.problem)).value;
  if (k.problem.alibi) key_ = splat(to_float(key), k.tiling.lanes);
}

V ScoreChange::operator()(V product, int j, int vector) {
  if (!value_) return (product * factor_).named("score");
  if (k.problem.alibi) {
    const std::int64_t place = std::int64_t{vector} * k.tiling.lanes * 4;
    const auto row = [&](int table) { return k.load_floats(k.ir.offset(k.buffer(table), place)); };
    names_["slope / softcap"] = names_["slope / softmax_scale"] =
        row(k.tiling.at.slopes).named("slope");
    names_["kv - q"] = (row(k.tiling.at.distances) + (key_ + k.all(j))).named("distance");
  }
  names_["score"] = product;
  const V value = FloatPrinter(k.ir, k.floats(), names_).print(*value_).named("modified");
  return (value * factor_).named("score");
}

V ScoreChange::derivative() {
  return FloatPrinter(k.ir, k.floats(), names_).print(*derivative_).named("derivative");
}

void fill_distances(Kernel& k, V first_key) {
  const Type longs{Kind::i64, k.tiling.lanes};
  k.each_vector("distance.rows", [&](V column) {
    const V positions =
        k.ir.load(longs, k.ir.element(k.buffer(k.tiling.at.positions), Kind::i64, column),
                  k.tiling.lanes * 4);
    k.store_floats(to_float(splat(first_key, k.tiling.lanes) - positions).named("first.distance"),
                   k.ir.element(k.buffer(k.tiling.at.distances), Kind::f32, column));
  });
}

}  // namespace flashwright
