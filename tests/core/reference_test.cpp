// The judge of every backend is judged here, by attention written again from its definition.
#include "core/reference.hpp"

#include <cmath>
#include <limits>
#include <set>

#include "core/dtype.hpp"
#include "core/philox.hpp"
#include "tests/support/host_problem.hpp"
#include "tests/support/random.hpp"
#include "tests/support/testing.hpp"
#include "tests/support/tiny_attention.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace gen = rc::gen;

namespace {

const Target kTarget = {BackendKind::cpu, "avx2"};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

ReferenceRow exact_row(const HostProblem& host, std::int64_t b, std::int64_t h, std::int64_t q) {
  return reference_row(host.config, normalise(host.config, kTarget), host.arguments, b, h, q);
}

TinyAttention tiny_of(const HostProblem& host) {
  TinyAttention tiny;
  tiny.batch = host.shape.batch;
  tiny.heads_q = host.shape.heads_q;
  tiny.heads_kv = host.shape.heads_kv;
  tiny.seq_q = host.shape.seq_q;
  tiny.seq_kv = host.shape.seq_kv;
  tiny.head_dim = host.config.head_dim;
  tiny.head_dim_v = host.v.view().shape[3];
  tiny.scale =
      host.config.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(host.config.head_dim)));
  tiny.q = [&](auto... at) { return host.q.at(at...); };
  tiny.k = [&](auto... at) { return host.k.at(at...); };
  tiny.v = [&](auto... at) { return host.v.at(at...); };
  const Mask mask = host.config.mask;
  const std::int64_t position =
      host.arguments.q_position.value_or(host.shape.seq_kv - host.shape.seq_q);
  tiny.sees = [&host, mask, position](std::int64_t b, std::int64_t h, std::int64_t i,
                                      std::int64_t j) {
    const std::int64_t p = i + position;
    switch (mask.kind) {
      case Mask::Kind::none:
        return true;
      case Mask::Kind::causal:
        return j <= p;
      case Mask::Kind::window:
        return (mask.left < 0 || j >= p - mask.left) && (mask.right < 0 || j <= p + mask.right);
      case Mask::Kind::blocks:
        return visible(host.mask.lists, b, h, i, j);
    }
    return false;
  };
  const int threshold = drop_threshold(host.config.dropout);
  if (threshold != 0)
    tiny.factor = [&host, threshold](std::int64_t b, std::int64_t h, std::int64_t i,
                                     std::int64_t j) {
      const auto head = static_cast<std::uint32_t>(b * host.shape.heads_q + h);
      const std::uint32_t word =
          keep_word(dropout_key(host.arguments.seed, host.arguments.offset), head,
                    static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j / 32),
                    static_cast<std::uint32_t>(threshold));
      return (word >> (j % 32) & 1u) != 0 ? 256.0 / (256 - threshold) : 0.0;
    };
  const std::optional<double> cap = host.config.softcap;
  const bool alibi = host.config.alibi;
  tiny.change = [&host, cap, alibi, position](double score, std::int64_t b, std::int64_t h,
                                              std::int64_t i, std::int64_t j) {
    if (cap) score = *cap * (1 - 2 / (std::exp(2 * score / *cap) + 1));
    if (!alibi) return score;
    const bool of_each_batch = host.arguments.alibi_slopes->ndim == 2;
    const double slope = host.slopes.at(of_each_batch ? b : 0, h, 0, 0);
    return score + slope * static_cast<double>(j - (i + position));
  };
  return tiny;
}

bool close(double a, double b) { return a == b || std::fabs(a - b) <= 1e-9 * (1 + std::fabs(b)); }

// Four keys whose scores are 1, 3, 2 and 5, and one query.
struct WorkedExample {
  HostProblem host;
  WorkedExample() : host(config(), {1, 1, 1, 1, 4}, Layout::rows_of_heads, 1) {
    host.q.fill(0);
    host.k.fill(0);
    host.q.set(0, 0, 0, 0, 1);
    const double scores[] = {1, 3, 2, 5};
    for (int j = 0; j < 4; ++j) host.k.set(0, j, 0, 0, scores[j]);
  }
  static Config config() {
    Config c;
    c.dtype = DType::fp32;
    c.head_dim = 8;
    c.softmax_scale = 1;
    return c;
  }
};

}  // namespace

TEST_CASE("the reference is attention") {
  property("any problem", [] {
    Config config = *configs();
    config.dtype = DType::fp32;
    config.head_dim = *gen::element(8, 16, 24);
    config.head_dim_v = *gen::element(0, 8, 16);
    HostProblem host(config, *shapes(), static_cast<Layout>(*gen::inRange(0, kLayoutCount)),
                     *gen::inRange(1, 1000));
    if (config.mask.kind == Mask::Kind::blocks)
      host.use_random_blocks(*gen::element(1, 7, 16), *gen::element(3, 16, 40),
                             *gen::arbitrary<bool>(), 5);
    else if (*gen::arbitrary<bool>())
      host.arguments.q_position = *gen::inRange(-20, 40);
    host.arguments.seed = *gen::inRange(0, 100);
    host.arguments.offset = *gen::inRange(0, 100);
    const TinyAttention tiny = tiny_of(host);
    for (const RowIndex& row : sample_rows(host.arguments, 6)) {
      const ReferenceRow got = exact_row(host, row.b, row.h, row.q);
      const TinyRow expected = tiny_row(tiny, row.b, row.h, row.q);
      RC_ASSERT(close(got.lse, expected.lse));
      RC_ASSERT(got.o.size() == expected.o.size());
      for (std::size_t i = 0; i < got.o.size(); ++i) RC_ASSERT(close(got.o[i], expected.o[i]));
    }
  });
}

TEST_CASE("the worked example of the online softmax") {
  // Scores 1, 3 first: m = 3, l = 1 + e^-2. Then 2, 5: m = 5, l = (1 + e^-2) e^-2 + e^-3 + 1.
  OnlineSoftmax online(1);
  online.add({1, 3}, {{0}, {0}});
  CHECK(online.max() == 3);
  CHECK(online.sum() == doctest::Approx(1.13534).epsilon(1e-5));
  online.add({2, 5}, {{0}, {0}});
  CHECK(online.max() == 5);
  CHECK(online.sum() == doctest::Approx(1.20344).epsilon(1e-5));
  const WorkedExample example;
  CHECK(exact_row(example.host, 0, 0, 0).lse ==
        doctest::Approx(5 + std::log(1.20344)).epsilon(1e-6));
}

TEST_CASE("any split into tiles gives the softmax of the whole row") {
  property("online is unfused", [] {
    Config config;
    config.dtype = DType::fp32;
    config.head_dim = 8;
    config.mask = *gen::element(Mask::none(), Mask::causal(), Mask::window(3, 2));
    config.softmax_scale = *gen::element(0.35, 1.0, 30.0, -4.0, 0.0);
    const Shape shape{1, 1, 1, *gen::inRange(1, 20), *gen::inRange(0, 60)};
    const HostProblem host(config, shape, Layout::rows_of_heads, *gen::inRange(1, 1000), 2);
    const TinyAttention tiny = tiny_of(host);
    const std::int64_t q = *gen::inRange<std::int64_t>(0, shape.seq_q);
    OnlineSoftmax online(8);
    for (std::int64_t begin = 0; begin < shape.seq_kv;) {
      const std::int64_t end = std::min(shape.seq_kv, begin + *gen::inRange<std::int64_t>(1, 20));
      std::vector<double> scores;
      std::vector<std::vector<double>> values;
      for (; begin < end; ++begin) {
        double dot = 0;
        values.emplace_back();
        for (int d = 0; d < 8; ++d) {
          dot += host.q.at(0, q, 0, d) * host.k.at(0, begin, 0, d);
          values.back().push_back(host.v.at(0, begin, 0, d));
        }
        scores.push_back(tiny.sees(0, 0, q, begin) ? dot * tiny.scale : -kInfinity);
      }
      online.add(scores, values);
    }
    const TinyRow tiled = online.result();
    const ReferenceRow whole = exact_row(host, 0, 0, q);
    RC_ASSERT(close(whole.lse, tiled.lse));
    for (std::size_t d = 0; d < 8; ++d) RC_ASSERT(close(whole.o[d], tiled.o[d]));
  });
}

TEST_CASE("rows without a visible key are zero, and what is invisible cannot spoil a row") {
  Config config = WorkedExample::config();
  config.mask = Mask::causal();
  HostProblem host(config, {1, 1, 1, 3, 3}, Layout::rows_of_heads, 3);
  host.arguments.q_position = -1;
  host.k.set(0, 2, 0, 0, NAN);
  host.v.set(0, 2, 0, 0, INFINITY);
  host.v.set(0, 1, 0, 3, NAN);
  const ReferenceRow none = exact_row(host, 0, 0, 0);
  CHECK(none.lse == -kInfinity);
  CHECK(none.o == std::vector<double>(8, 0.0));
  const ReferenceRow one = exact_row(host, 0, 0, 1);
  CHECK(std::isfinite(one.lse));
  CHECK(one.o[3] == doctest::Approx(host.v.at(0, 0, 0, 3)));
}

TEST_CASE("inputs that are not finite are named, wherever the number stands") {
  HostProblem host(WorkedExample::config(), {2, 2, 1, 3, 4}, Layout::padded_rows, 3);
  CHECK(non_finite_inputs(host.arguments).empty());
  host.v.set(1, 3, 0, 7, INFINITY);
  CHECK(non_finite_inputs(host.arguments) == std::vector<std::string>{"v"});
  host.q.set(0, 0, 1, 0, NAN);
  host.k.set(1, 0, 0, 0, -INFINITY);
  CHECK(non_finite_inputs(host.arguments) == std::vector<std::string>{"q", "k", "v"});
}

TEST_CASE("a visible NaN or infinite score stays in its row") {
  for (const double poison : {static_cast<double>(NAN), kInfinity}) {
    WorkedExample example;
    example.host.k.set(0, 1, 0, 0, poison);
    const ReferenceRow row = exact_row(example.host, 0, 0, 0);
    CHECK(std::isnan(row.lse));
    CHECK(std::isnan(row.o[0]));
  }
  WorkedExample hidden;
  hidden.host.k.set(0, 1, 0, 0, -kInfinity);  // a score of -inf is a weight of zero
  CHECK(exact_row(hidden.host, 0, 0, 0).lse ==
        doctest::Approx(5 + std::log(1.20344 - std::exp(-2.0))).epsilon(1e-5));
}

TEST_CASE("the state in memory is used in place of seed and offset") {
  Config config = WorkedExample::config();
  config.dropout = 0.5;
  HostProblem host(config, {1, 1, 1, 1, 40}, Layout::rows_of_heads, 4);
  host.arguments.seed = 11;
  host.arguments.offset = 12;
  const ReferenceRow by_value = exact_row(host, 0, 0, 0);
  const std::uint64_t state[] = {11, 12};
  host.arguments.seed = 99;
  CHECK(exact_row(host, 0, 0, 0).o != by_value.o);
  host.arguments.rng_state = state;
  CHECK(exact_row(host, 0, 0, 0).o == by_value.o);
}

TEST_CASE("rounding every stored step gives the yardstick of the tolerance") {
  Config config;
  config.dtype = DType::bf16;
  config.head_dim = 64;
  const HostProblem host(config, {1, 1, 1, 1, 100}, Layout::rows_of_heads, 5);
  const Problem problem = normalise(config, kTarget);
  const ReferenceRow exact = exact_row(host, 0, 0, 0);
  const ReferenceRow rounded = reference_row(config, problem, host.arguments, 0, 0, 0, DType::bf16);
  double difference = 0;
  for (std::size_t i = 0; i < exact.o.size(); ++i) {
    CHECK(rounded.o[i] == round_to(DType::bf16, rounded.o[i]));
    difference = std::max(difference, std::fabs(rounded.o[i] - exact.o[i]));
  }
  CHECK(difference > 0);
  CHECK(difference < 0.05);
}

TEST_CASE("sampled rows are different, within bounds, and hold the last one") {
  property("sample", [] {
    const Shape shape = *shapes();
    Config config = WorkedExample::config();
    const HostProblem host(config, shape, Layout::rows_of_heads, 6);
    const std::int64_t all = shape.batch * shape.heads_q * shape.seq_q,
                       wanted = *gen::inRange(0, 60);
    const std::vector<RowIndex> rows = sample_rows(host.arguments, wanted);
    RC_ASSERT(static_cast<std::int64_t>(rows.size()) ==
              std::min(all, std::max<std::int64_t>(wanted, 1)));
    std::set<std::array<std::int64_t, 3>> distinct;
    for (const RowIndex& row : rows) {
      RC_ASSERT(row.b >= 0 && row.b < shape.batch && row.h >= 0 && row.h < shape.heads_q &&
                row.q >= 0 && row.q < shape.seq_q);
      distinct.insert({row.b, row.h, row.q});
    }
    RC_ASSERT(distinct.size() == rows.size());
    if (!rows.empty())
      RC_ASSERT(distinct.count({shape.batch - 1, shape.heads_q - 1, shape.seq_q - 1}) == 1);
  });
}
