// What the judge lets pass and what it does not.
#include <cmath>

#include "core/dtype.hpp"
#include "core/reference.hpp"
#include "tests/support/host_problem.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

const Target kTarget = {BackendKind::cpu, "avx2"};

// A problem whose outputs are the reference, rounded to the type.
struct Solved {
  HostProblem host;
  Problem problem;
  explicit Solved(DType dtype)
      : host(config(dtype), {1, 2, 1, 4, 9}, Layout::padded_rows, 8),
        problem(normalise(host.config, kTarget)) {
    for (const RowIndex& row : sample_rows(host.arguments, 100)) {
      const ReferenceRow exact =
          reference_row(host.config, problem, host.arguments, row.b, row.h, row.q);
      for (std::size_t d = 0; d < exact.o.size(); ++d)
        host.o.set(row.b, row.q, row.h, static_cast<std::int64_t>(d), exact.o[d]);
      host.lse.set(row.b, row.h, row.q, 0, exact.lse);
    }
  }
  static Config config(DType dtype) {
    Config c;
    c.dtype = dtype;
    c.head_dim = 16;
    c.mask = Mask::causal();
    return c;
  }
  Judge judged() const { return judge(host.config, problem, host.arguments, 100); }
};

}  // namespace

TEST_CASE("right outputs pass") {
  for (const DType dtype : {DType::fp16, DType::bf16, DType::fp32}) {
    const Judge verdict = Solved(dtype).judged();
    CHECK(verdict.passed());
    CHECK(verdict.rows() == 8);
    CHECK(verdict.finite());
    CHECK(verdict.lse_excess() < 1);
  }
}

TEST_CASE("an output beyond the tolerance fails, one within it passes") {
  for (const DType dtype : {DType::fp16, DType::bf16, DType::fp32}) {
    Solved solved(dtype);
    const double allowed = solved.judged().tolerance();
    const double before = solved.host.o.at(0, 2, 1, 7);
    solved.host.o.set(0, 2, 1, 7, before + 3 * allowed);
    CHECK(!solved.judged().passed());
    CHECK(solved.judged().error() > allowed);
    solved.host.o.set(0, 2, 1, 7, before + 0.2 * allowed);
    CHECK(solved.judged().passed());
  }
}

TEST_CASE("the tolerance is the one of the FlashAttention suites") {
  Judge fp32(DType::fp32), bf16(DType::bf16);
  const ReferenceRow exact{{2.0, -3.0}, 1.0}, unfused{{2.01, -3.0}, 1.0};
  fp32.add(exact, exact, {2.0, -3.0}, std::nullopt);
  CHECK(fp32.tolerance() == doctest::Approx(4e-5));
  bf16.add(exact, unfused, {2.0, -3.0}, std::nullopt);
  CHECK(bf16.tolerance() == doctest::Approx(2 * 0.01 + ulp(DType::bf16, 3.3)));
}

TEST_CASE("the LSE has a bound of its own") {
  for (const double off : {2e-5, -2e-5, 1.0}) {
    Solved solved(DType::bf16);
    solved.host.lse.set(0, 0, 1, 0, solved.host.lse.at(0, 0, 1, 0) + off);
    CHECK(!solved.judged().passed());
  }
}

TEST_CASE("not-a-number and infinity must stand where the reference has them") {
  Solved solved(DType::bf16);
  solved.host.o.set(0, 0, 0, 0, NAN);
  CHECK(!solved.judged().passed());
  CHECK(!solved.judged().finite());
  Judge judge(DType::bf16);
  const double infinity = 1.0 / 0.0;
  const ReferenceRow poisoned{{NAN}, NAN};
  judge.add(poisoned, poisoned, {NAN}, NAN);
  judge.add({{0.0}, -infinity}, {{0.0}, -infinity}, {0.0}, -infinity);
  CHECK(judge.passed());
  Judge finite(DType::bf16);
  finite.add(poisoned, poisoned, {0.0}, NAN);
  CHECK(!finite.passed());
  Judge lse(DType::bf16);
  lse.add({{0.0}, -infinity}, {{0.0}, -infinity}, {0.0}, -1e30);
  CHECK(!lse.passed());
}

TEST_CASE("an unfused computation that overflows is no yardstick") {
  Judge judge(DType::fp16);
  judge.add({{1.0}, 0.0}, {{INFINITY}, 0.0}, {1.0}, 0.0);
  CHECK(std::isfinite(judge.tolerance()));
  CHECK(judge.passed());
}
