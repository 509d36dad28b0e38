// The judge of gradients is judged here: by finite differences of the forward reference.
#include "core/reference_gradient.hpp"

#include <cmath>

#include "core/dtype.hpp"
#include "core/expr_grad.hpp"
#include "core/expr_parse.hpp"
#include "core/reference.hpp"
#include "tests/support/host_problem.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

const Target kTarget = {BackendKind::cpu, "avx2"};

std::string slope_of(const char* text) { return to_string(*derivative(parse_expr(text), "score")); }

// What dO and d_lse are the gradients of: sum of dO * O + d_lse * LSE over all queries.
double loss(const HostProblem& host) {
  const Problem problem = normalise(host.config, kTarget);
  double sum = 0;
  for (std::int64_t b = 0; b < host.shape.batch; ++b)
    for (std::int64_t h = 0; h < host.shape.heads_q; ++h)
      for (std::int64_t q = 0; q < host.shape.seq_q; ++q) {
        const ReferenceRow row = reference_row(host.config, problem, host.arguments, b, h, q);
        for (std::size_t d = 0; d < row.o.size(); ++d)
          sum += row.o[d] * host.d_o.at(b, q, h, static_cast<std::int64_t>(d));
        if (host.arguments.d_lse && std::isfinite(row.lse))
          sum += row.lse * host.d_lse.at(b, h, q, 0);
      }
  return sum;
}

constexpr double kStep = 0x1p-13;

// Inputs as multiples of the step, so that every step is exact in fp32.
void snap(HostTensor& tensor) {
  const auto& shape = tensor.view().shape;
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t s = 0; s < shape[1]; ++s)
      for (std::int64_t h = 0; h < shape[2]; ++h)
        for (std::int64_t d = 0; d < shape[3]; ++d)
          tensor.set(b, s, h, d, std::round(tensor.at(b, s, h, d) / kStep) * kStep);
}

// The central difference for one element of an input.
double difference(HostProblem& host, HostTensor& tensor, std::int64_t b, std::int64_t s,
                  std::int64_t h, std::int64_t d) {
  const double middle = tensor.at(b, s, h, d);
  tensor.set(b, s, h, d, middle + kStep);
  const double above = loss(host);
  tensor.set(b, s, h, d, middle - kStep);
  const double below = loss(host);
  tensor.set(b, s, h, d, middle);
  return (above - below) / (2 * kStep);
}

// Compares some elements of each gradient with finite differences.
void check_differences(HostProblem& host) {
  constexpr double kTolerance = 1e-6;  // of the differences: their step squared, and rounding
  for (HostTensor* tensor : {&host.q, &host.k, &host.v}) snap(*tensor);
  for (std::int64_t b = 0; b < host.shape.batch; ++b)
    for (std::int64_t s = 0; s < host.shape.seq_q; s += 2)
      for (std::int64_t h = 0; h < host.shape.heads_q; h += 2)
        for (const std::int64_t d : {std::int64_t{0}, std::int64_t{5}}) {
          const double expected = difference(host, host.q, b, s, h, d);
          GradientReference reference(host.config, normalise(host.config, kTarget), host.arguments,
                                      RowStatistics::exact);
          CHECK(reference.dq(b, h, s).values[static_cast<std::size_t>(d)] ==
                doctest::Approx(expected).scale(1).epsilon(kTolerance));
        }
  for (std::int64_t b = 0; b < host.shape.batch; ++b)
    for (std::int64_t s = 0; s < host.shape.seq_kv; s += 2)
      for (std::int64_t h = 0; h < host.shape.heads_kv; ++h) {
        const auto d = static_cast<std::size_t>(s % 8);
        const double of_k = difference(host, host.k, b, s, h, static_cast<std::int64_t>(d));
        const double of_v = difference(host, host.v, b, s, h, static_cast<std::int64_t>(d));
        const Problem problem = normalise(host.config, kTarget);
        GradientReference reference(host.config, problem, host.arguments, RowStatistics::exact);
        const auto rows = reference.keys(b, h, {s});
        CHECK(rows[0].dk.values[d] == doctest::Approx(of_k).scale(1).epsilon(kTolerance));
        CHECK(rows[0].dv.values[d] == doctest::Approx(of_v).scale(1).epsilon(kTolerance));
      }
}

Config backward_config(const Mask& mask) {
  Config config;
  config.direction = "backward";
  config.dtype = DType::fp32;
  config.head_dim = 8;
  config.head_dim_v = 16;
  config.mask = mask;
  return config;
}

}  // namespace

TEST_CASE("derivatives of expressions") {
  CHECK(slope_of("score") == "1");
  CHECK(slope_of("slope") == "0");
  CHECK(slope_of("score + slope * (kv - q)") == "1");
  CHECK(slope_of("softcap * tanh(score / softcap)") ==
        "1 - tanh(score / softcap) * tanh(score / softcap)");
  CHECK(slope_of("3 * score") == "3");
  CHECK(slope_of("-score / slope") == "-1 / slope");
  CHECK(slope_of("score * score") == "score + score");
  CHECK(slope_of("slope / score") == "-(slope / (score * score))");
  CHECK(slope_of("abs(score)") == "score < 0 ? -1 : 1");
  CHECK(slope_of("max(score, 0)") == "score >= 0 ? 1 : 0");
  CHECK(slope_of("min(slope, q)") == "0");
  CHECK(slope_of("kv > q ? score : 2 * score") == "kv > q ? 1 : 2");
  CHECK(slope_of("score < 3") == "0");
}

TEST_CASE("derivatives agree with differences of the value") {
  property("differences", [] {
    const char* const text = *rc::gen::element(
        "softcap * tanh(score / softcap) + slope * (kv - q)", "score * score / (score + 9)",
        "max(score, slope) * tanh(score)", "(score - slope) / softcap", "abs(score) * score",
        "-min(score, 1) * score + 2");
    const double at = *rc::gen::inRange(-40, 41) / 16.0 + 0.013;
    const ExprPtr expr = parse_expr(text);
    const auto value = [](const Expr& of, double score) {
      return evaluate(of, [score](std::string_view name) {
        if (name == "score") return score;
        if (name == "softcap") return 3.0;
        return name == "slope" ? -0.75 : name == "kv" ? 5.0 : 2.0;
      });
    };
    const double step = 1e-6;
    const double expected = (value(*expr, at + step) - value(*expr, at - step)) / (2 * step);
    RC_ASSERT(std::fabs(value(*derivative(expr, "score"), at) - expected) <
              1e-6 * (1 + std::fabs(expected)));
  });
}

TEST_CASE("gradients agree with finite differences") {
  for (const Mask& mask : {Mask::none(), Mask::causal(), Mask::window(2, 1), Mask::blocks()})
    for (const bool changed : {false, true})
      for (const double dropout : {0.0, 0.4}) {
        Config config = backward_config(mask);
        config.dropout = dropout;
        if (changed) config.softcap = 0.8;
        config.alibi = changed;
        CAPTURE(to_json(config));
        // More queries than keys: under a causal mask the first ones see nothing.
        HostProblem host(config, {1, 4, 2, 5, 4}, Layout::padded_rows, changed ? 3 : 4);
        if (mask.kind == Mask::Kind::blocks) host.use_random_blocks(2, 3, true, 11);
        check_differences(host);
      }
}

TEST_CASE("a query without keys has no gradient, and adds none") {
  HostProblem host(backward_config(Mask::causal()), {1, 2, 1, 6, 2}, Layout::rows_of_heads, 3);
  const Problem problem = normalise(host.config, kTarget);
  host.d_o.set(0, 0, 0, 0, 1e30);  // of a query that sees nothing
  GradientReference reference(host.config, problem, host.arguments, RowStatistics::exact);
  for (const double value : reference.dq(0, 0, 0).values) CHECK(value == 0);
  const auto rows = reference.keys(0, 0, {0});
  for (const double value : rows[0].dv.values) CHECK(std::fabs(value) < 1e3);
}

TEST_CASE("one query and one key: dV is dO, and nothing reaches Q and K") {
  HostProblem host(backward_config(Mask::none()), {1, 1, 1, 1, 1}, Layout::rows_of_heads, 4);
  const Problem problem = normalise(host.config, kTarget);
  GradientReference reference(host.config, problem, host.arguments, RowStatistics::exact);
  const auto rows = reference.keys(0, 0, {0});
  for (std::int64_t d = 0; d < 16; ++d)
    CHECK(rows[0].dv.values[static_cast<std::size_t>(d)] == host.d_o.at(0, 0, 0, d));
  for (const double value : rows[0].dk.values) CHECK(value == 0);
  for (const double value : reference.dq(0, 0, 0).values) CHECK(value == 0);
}

TEST_CASE("statistics of the forward pass serve as well as exact ones") {
  Config config = backward_config(Mask::causal());
  config.dropout = 0.3;
  HostProblem host(config, {2, 4, 2, 9, 13}, Layout::heads_of_rows, 6);
  host.fill_forward();
  const Problem problem = normalise(config, kTarget);
  GradientReference exact(config, problem, host.arguments, RowStatistics::exact);
  GradientReference given(config, problem, host.arguments, RowStatistics::given);
  const GradientRow a = exact.dq(1, 3, 7), b = given.dq(1, 3, 7);
  for (std::size_t d = 0; d < a.values.size(); ++d)
    CHECK(a.values[d] == doctest::Approx(b.values[d]).epsilon(1e-5));
  const auto c = exact.keys(1, 1, {0, 12}), e = given.keys(1, 1, {0, 12});
  for (std::size_t d = 0; d < 8; ++d)
    CHECK(c[0].dk.values[d] == doctest::Approx(e[0].dk.values[d]).epsilon(1e-5));
}

TEST_CASE("the judge takes right gradients and no others") {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    CAPTURE(to_string(dtype));
    Config config = backward_config(Mask::causal());
    config.dtype = dtype;
    HostProblem host(config, {1, 2, 1, 7, 9}, Layout::rows_of_heads, 3);
    const Problem problem = normalise(config, kTarget);
    host.fill_forward();
    GradientReference exact(config, problem, host.arguments, RowStatistics::exact);
    for (std::int64_t h = 0; h < 2; ++h)
      for (std::int64_t q = 0; q < 7; ++q)
        for (std::int64_t d = 0; d < 8; ++d)
          host.dq.set(0, q, h, d, exact.dq(0, h, q).values[static_cast<std::size_t>(d)]);
    for (std::int64_t kv = 0; kv < 9; ++kv) {
      const auto rows = exact.keys(0, 0, {kv});
      for (std::int64_t d = 0; d < 16; ++d) {
        if (d < 8) host.dk.set(0, kv, 0, d, rows[0].dk.values[static_cast<std::size_t>(d)]);
        host.dv.set(0, kv, 0, d, rows[0].dv.values[static_cast<std::size_t>(d)]);
      }
    }
    CHECK(host.fault(problem, 100) == "");
    const double right = host.dk.at(0, 3, 0, 2);
    host.dk.set(0, 3, 0, 2, right + 0.1);
    CHECK(contains(host.fault(problem, 100), "dk: error"));
    host.dk.set(0, 3, 0, 2, right);
    host.dv.set(0, 8, 0, 15, std::nan(""));
    CHECK(contains(host.fault(problem, 100), "dv: error"));
    host.arguments.dv.reset();  // not wanted: not looked at
    CHECK(host.fault(problem, 100) == "");
  }
}
