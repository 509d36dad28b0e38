// What happens to a score: the expressions, and the form in which kernels compute them.
#include "core/score.hpp"

#include <cmath>

#include "core/expr_parse.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

std::string folded(const char* text) {
  const FoldedScore parts = fold_score(parse_expr(text));
  return (parts.factor ? to_string(*parts.factor) : "1") + std::string(" | ") +
         (parts.value ? to_string(*parts.value) : "1");
}

double value_of(const ExprPtr& expr, double score) {
  if (!expr) return 1;
  return evaluate(*expr, [score](std::string_view name) {
    if (name == "score") return score;
    if (name == "softmax_scale") return 0.25;
    if (name == "softcap") return 3.0;
    if (name == "slope") return -0.5;
    return name == "q" ? 7.0 : 4.0;
  });
}

}  // namespace

TEST_CASE("the changes are softcap, then ALiBi, in natural units") {
  CHECK(to_string(*score_expr(false, false)) == "score");
  CHECK(to_string(*score_expr(true, false)) == "softcap * tanh(score / softcap)");
  CHECK(to_string(*score_expr(false, true)) == "score + slope * (kv - q)");
  CHECK(to_string(*score_expr(true, true)) == "softcap * tanh(score / softcap) + slope * (kv - q)");
  CHECK(value_of(score_expr(true, true), 2) == doctest::Approx(3 * std::tanh(2.0 / 3) + 1.5));
}

TEST_CASE("the factor of the whole goes to the softmax, others to values that are found once") {
  CHECK(folded("score") == "softmax_scale | score");
  CHECK(folded("softcap * tanh(score / softcap)") ==
        "softcap | tanh(softmax_scale / softcap * score)");
  CHECK(folded("score + slope * (kv - q)") ==
        "softmax_scale | score + slope / softmax_scale * (kv - q)");
  CHECK(folded("softcap * tanh(score / softcap) + slope * (kv - q)") ==
        "softcap | tanh(softmax_scale / softcap * score) + slope / softcap * (kv - q)");
  CHECK(folded("-score / 2") == "softmax_scale / 2 | -score");
  CHECK(folded("score - 1") == "softmax_scale | score - 1 / softmax_scale");
  CHECK(folded("abs(score) + softcap") == "1 | abs(softmax_scale * score) + softcap");
  // What differs between heads is no factor of a launch.
  CHECK(folded("slope * score") == "1 | slope * softmax_scale * score");
  CHECK(folded("softcap") == "1 | softcap");
}

TEST_CASE("folding changes no value") {
  for (const char* text :
       {"score", "softcap * tanh(score / softcap)", "score + slope * (kv - q)",
        "softcap * tanh(score / softcap) + slope * (kv - q)", "(score - softcap) * slope / 3",
        "kv <= q ? score : -score * 2", "max(score, q) - min(kv, score / 5)", "1 / (score + 9)",
        "score * score", "slope - score", "-(score + kv)",
        "abs(score) * softcap * softmax_scale"}) {
    INFO(text);
    const ExprPtr expr = parse_expr(text);
    const FoldedScore parts = fold_score(expr);
    for (const double plain : {-40.0, -1.0, 0.0, 0.5, 30.0})
      CHECK(value_of(parts.factor, plain) * value_of(parts.value, plain) ==
            doctest::Approx(value_of(expr, 0.25 * plain)));
  }
}
