// Random problems over the whole scope against the double-precision reference.
#include "generator/cpu/family_cpu.hpp"
#include "tests/cpu/runner.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

rc::Gen<int> head_dims() {
  return rc::gen::map(rc::gen::inRange(1, 33), [](int eighths) { return 8 * eighths; });
}

Mask any_mask() {
  switch (*rc::gen::inRange(0, 4)) {
    case 0:
      return Mask::none();
    case 1:
      return Mask::causal();
    case 2:
      return Mask::window(*rc::gen::inRange(-1, 90), *rc::gen::inRange(-1, 90));
    default:
      return Mask::blocks();
  }
}

Config any_config() {
  Config config;
  config.dtype = *rc::gen::element(DType::fp16, DType::bf16, DType::fp32);
  config.head_dim = *head_dims();
  config.head_dim_v = *rc::gen::oneOf(rc::gen::just(0), head_dims());
  config.mask = any_mask();
  config.dropout = *rc::gen::element(0.0, 0.0, 0.0, 0.1, 0.5, 0.9);
  config.softcap = *rc::gen::element<std::optional<double>>(std::nullopt, std::nullopt, 0.7, 30.0);
  config.alibi = *rc::gen::inRange(0, 3) == 0;
  config.softmax_scale = *rc::gen::element<std::optional<double>>(std::nullopt, std::nullopt, -0.2);
  return config;
}

Shape any_shape() {
  Shape shape;
  shape.batch = *rc::gen::inRange(1, 3);
  shape.heads_kv = *rc::gen::inRange(1, 4);
  shape.heads_q = shape.heads_kv * *rc::gen::inRange(1, 4);
  shape.seq_q = *rc::gen::element(1, 2, 15, 16, 17, 63, 64, 65, 100, 130);
  shape.seq_kv = *rc::gen::element(0, 1, 2, 31, 32, 33, 64, 100, 127, 129, 257);
  return shape;
}

// The reference of gradients takes three passes over all pairs.
Shape small_shape() {
  Shape shape = any_shape();
  shape.heads_kv = *rc::gen::inRange(1, 3);
  shape.heads_q = shape.heads_kv * *rc::gen::inRange(1, 3);
  shape.seq_kv = std::min<std::int64_t>(shape.seq_kv, 129);
  return shape;
}

Config backward(Config config) {
  config.direction = "backward";
  return config;
}

// Some gradients are not wanted.
void drop_some(Arguments& arguments) {
  const int kept = *rc::gen::inRange(1, 8);
  if ((kept & 1) == 0) arguments.dq.reset();
  if ((kept & 2) == 0) arguments.dk.reset();
  if ((kept & 4) == 0) arguments.dv.reset();
}

Layout any_layout() { return static_cast<Layout>(*rc::gen::inRange(0, kLayoutCount)); }

void check(const Config& config, const Shape& shape, const How& how) {
  HostProblem host(config, shape, any_layout(), *rc::gen::inRange<std::uint64_t>(0, 1000),
                   *rc::gen::element(0.2, 1.0, 4.0));
  if (config.mask.kind == Mask::Kind::blocks) {
    const int block_q = *rc::gen::element(1, 4, 16, 20, 64, 128);
    const int block_kv = *rc::gen::element(1, 5, 16, 32, 48, 128);
    host.use_random_blocks(block_q, block_kv, *rc::gen::arbitrary<bool>(), 7);
  } else if ((config.mask.kind != Mask::Kind::none || config.alibi) &&
             *rc::gen::arbitrary<bool>()) {
    host.arguments.q_position = *rc::gen::inRange(-70, 200);
  }
  if (config.direction == "backward") {
    run_forward(host);
    if (*rc::gen::inRange(0, 3) == 0) drop_some(host.arguments);
  }
  const std::string fault = run_and_judge(host, how, 24);
  if (!fault.empty()) RC_FAIL(fault);
}

// A property with fewer examples than usual, since each one compiles a kernel.
void check_some(const std::function<void()>& body) {
  constexpr int kExamples = 50;
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  params.maxSuccess = std::min(params.maxSuccess, kExamples);
  const rc::detail::TestResult result =
      rc::detail::checkTestable(body, rc::detail::TestMetadata(), params);
  std::ostringstream words;
  rc::detail::printResultMessage(result, words);
  INFO(words.str());
  CHECK(result.is<rc::detail::SuccessResult>());
}

}  // namespace

TEST_CASE("random problems with the default schedule") {
  check_some([] { check(any_config(), any_shape(), {}); });
}

TEST_CASE("random problems with any legal schedule") {
  check_some([] {
    const Config config = any_config();
    const Shape shape = any_shape();
    How how;
    how.schedule =
        any_schedule(problem_for(config), shape, *rc::gen::inRange<std::uint64_t>(0, 100000));
    check(config, shape, how);
  });
}

TEST_CASE("random problems on a narrower instruction set") {
  if (!can_run("avx2")) return skip("cpu avx2", "the processor has no AVX2");
  check_some([] {
    const Config config = any_config();
    const Shape shape = any_shape();
    How how;
    how.rung = "avx2";
    how.schedule =
        any_schedule(problem_for(config, how), shape, *rc::gen::inRange<std::uint64_t>(0, 100000));
    check(config, shape, how);
  });
}

TEST_CASE("random gradients with the default schedule") {
  check_some([] { check(backward(any_config()), small_shape(), {}); });
}

TEST_CASE("random gradients with any legal schedule") {
  check_some([] {
    const Config config = backward(any_config());
    const Shape shape = small_shape();
    How how;
    how.schedule =
        any_schedule(problem_for(config), shape, *rc::gen::inRange<std::uint64_t>(0, 100000));
    check(config, shape, how);
  });
}

TEST_CASE("random gradients on a narrower instruction set") {
  if (!can_run("avx2")) return skip("cpu avx2", "the processor has no AVX2");
  check_some([] {
    const Config config = backward(any_config());
    const Shape shape = small_shape();
    How how;
    how.rung = "avx2";
    how.schedule =
        any_schedule(problem_for(config, how), shape, *rc::gen::inRange<std::uint64_t>(0, 100000));
    check(config, shape, how);
  });
}

TEST_CASE("random problems in three passes") {
  check_some([] {
    Config config = any_config();
    config.dropout = 0;
    config.softcap.reset();
    config.alibi = false;
    if (config.mask.kind == Mask::Kind::blocks) config.mask = Mask::window(5, 40);
    How how;
    how.algorithm = Algorithm::unfused;
    check(config, any_shape(), how);
  });
}
