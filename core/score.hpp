// What happens to a score between the product of query and key and the mask. Each change is one
// expression in natural units; the reference evaluates it, and kernels print it in the folded form.
#pragma once

#include "core/expr.hpp"
#include "core/problem.hpp"

namespace flashwright {

// Variables: `score`, softmax_scale * q . k; `softcap`, the cap; `slope`, that of the head; `q` and `kv`,
// the positions of query (q_position included) and key. Without any change the expression is `score`.
ExprPtr score_expr(bool softcap, bool alibi);
inline ExprPtr score_expr(const Problem& problem) {
  return score_expr(problem.softcap, problem.alibi);
}

// The derivative of the changed score with respect to `score`: what a gradient is multiplied by on its way back.
// The number 1 unless there is a cap.
ExprPtr score_derivative(const Problem& problem);

// factor * value is the expression at score = softmax_scale * (the plain product, which `value` calls
// `score`). The factor is the same for the whole launch, so that the exponential takes it at no cost; it
// is null for 1. What `value` computes from softmax_scale, softcap and slope alone, it computes in subtrees
// of their own, outermost first: kernels are told these values or find them once for a row.
struct FoldedScore {
  ExprPtr factor, value;
};
FoldedScore fold_score(const ExprPtr& expr);

// Whether every variable of the tree is the same for a whole row of scores.
bool same_for_row(const Expr& expr);

}  // namespace flashwright
