// The cases that break attention libraries, as far as the forward pass meets them.
#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "core/dtype.hpp"
#include "tests/cpu/runner.hpp"
#include "tests/support/cases.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

constexpr const char* kCases = FW_SOURCE_DIR "/tests/data/cases.json";

void run_case(const GoldenCase& golden, int block_q, int block_kv, const How& how) {
  CaseRun ready;
  make_run(golden, block_q, block_kv, ready);
  for (const Arguments& call : ready.calls) run(ready.config, call, how);
  CHECK_MESSAGE(check_run(golden, ready).empty(), check_run(golden, ready));
}

}  // namespace

TEST_CASE("goldens") {
  std::map<std::string, int> skipped;
  int ran = 0;
  for (const GoldenCase& golden : read_cases(kCases)) {
    CAPTURE(golden.id);
    if (!golden.skip.empty()) {
      ++skipped[golden.skip];
      continue;
    }
    run_case(golden, 4, 4, {});
    ++ran;
  }
  for (const auto& [reason, count] : skipped) MESSAGE(count << " goldens skipped: " << reason);
  MESSAGE(ran << " goldens ran");
  CHECK(ran >= 90);
}

TEST_CASE("goldens of gradients") {
  int ran = 0;
  for (const GoldenCase& golden : read_cases(kCases)) {
    if (!golden.skip.empty() || !golden.gradients) continue;
    CAPTURE(golden.id);
    for (const int block : {4, 40}) {
      CaseRun ready;
      make_run(golden, block, block, ready);
      for (const Arguments& call : ready.calls) run(ready.config, call);
      ready.config.direction = "backward";
      for (const Arguments& call : ready.backward_calls) run(ready.config, call);
      CHECK_MESSAGE(check_gradients(golden, ready).empty(), check_gradients(golden, ready));
    }
    ++ran;
  }
  MESSAGE(ran << " goldens ran");
  CHECK(ran >= 40);
}

TEST_CASE("goldens with mask blocks of other sizes") {
  for (const GoldenCase& golden : read_cases(kCases)) {
    if (!golden.skip.empty() || golden.spec.find("\"mask\"") == std::string::npos) continue;
    CAPTURE(golden.id);
    run_case(golden, 3, 40, {});
    run_case(golden, 128, 5, {});
  }
}

TEST_CASE("goldens in three passes") {
  How unfused;
  unfused.algorithm = Algorithm::unfused;
  for (const GoldenCase& golden : read_cases(kCases)) {
    if (!golden.skip.empty() || golden.dtype == DType::fp16) continue;
    CaseRun ready;
    make_run(golden, 4, 4, ready);
    if (ready.config.mask.kind == Mask::Kind::blocks || ready.config.softcap) continue;
    CAPTURE(golden.id);
    run_case(golden, 4, 4, unfused);
  }
}

TEST_CASE("NaN in a query stays in its row") {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    Config config;
    config.dtype = dtype;
    config.head_dim = 8;
    HostProblem host(config, {1, 1, 1, 2, 4}, Layout::rows_of_heads, 13);
    for (int d = 0; d < 8; ++d) host.q.set(0, 0, 0, d, std::nan(""));
    CHECK(run_and_judge(host) == "");
    CHECK(std::isnan(host.o.at(0, 0, 0, 0)));
    CHECK(std::isnan(host.lse.at(0, 0, 0, 0)));
    CHECK(std::isfinite(host.o.at(0, 1, 0, 0)));
  }
}

TEST_CASE("NaN and infinity in visible keys and values") {
  Config config;
  config.dtype = DType::fp32;
  config.head_dim = 16;
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {std::nan(""), infinity, -infinity}) {
    HostProblem host(config, {1, 1, 1, 20, 90}, Layout::rows_of_heads, 5);
    host.q.fill(1);
    host.k.set(0, 70, 0, 3, bad);
    CHECK(run_and_judge(host) == "");
    HostProblem other(config, {1, 1, 1, 20, 90}, Layout::rows_of_heads, 6);
    other.v.set(0, 70, 0, 3, bad);
    run(config, other.arguments);
    CHECK(!std::isfinite(other.o.at(0, 7, 0, 3)));
    CHECK(std::isfinite(other.o.at(0, 7, 0, 4)));
  }
}

TEST_CASE("NaN in invisible keys does not spread") {
  Config config;
  config.dtype = DType::fp32;
  config.head_dim = 16;
  config.mask = Mask::causal();
  HostProblem host(config, {1, 1, 1, 40, 40}, Layout::rows_of_heads, 5);
  for (int d = 0; d < 16; ++d) host.k.set(0, 39, 0, d, std::nan(""));
  CHECK(run_and_judge(host) == "");
  CHECK(std::isfinite(host.o.at(0, 38, 0, 0)));
  CHECK(std::isnan(host.o.at(0, 39, 0, 0)));
}

TEST_CASE("large magnitudes are exact for one key") {
  for (const DType dtype : {DType::bf16, DType::fp32}) {
    Config config;
    config.dtype = dtype;
    config.head_dim = 64;
    HostProblem host(config, {1, 1, 1, 1, 1}, Layout::rows_of_heads, 5);
    for (HostTensor* tensor : {&host.q, &host.k, &host.v}) tensor->fill(133120);
    run(config, host.arguments);
    CHECK(host.o.at(0, 0, 0, 0) == 133120);
    CHECK(host.o.at(0, 0, 0, 63) == 133120);
    CHECK(host.lse.at(0, 0, 0, 0) == doctest::Approx(133120.0 * 133120.0 * 8));
  }
}

TEST_CASE("any finite scale") {
  for (const double scale : {-0.7, 0.0, 3.0, 1e-20}) {
    Config config;
    config.dtype = DType::fp32;
    config.head_dim = 24;
    config.mask = Mask::causal();
    config.softmax_scale = scale;
    HostProblem host(config, {1, 2, 2, 33, 77}, Layout::rows_of_heads, 9);
    CHECK(run_and_judge(host) == "");
  }
}

TEST_CASE("lengths zero and one") {
  for (const Mask& mask : {Mask::none(), Mask::causal(), Mask::window(3, 0)}) {
    for (const std::int64_t seq_kv : {0, 1, 2}) {
      for (const std::int64_t seq_q : {0, 1, 3}) {
        Config config;
        config.dtype = DType::bf16;
        config.head_dim = 40;
        config.mask = mask;
        HostProblem host(config, {2, 2, 1, seq_q, seq_kv}, Layout::rows_of_heads, 3);
        CHECK(run_and_judge(host) == "");
        if (seq_kv == 0 && seq_q > 0) {
          CHECK(host.o.at(1, seq_q - 1, 1, 39) == 0);
          CHECK(host.lse.at(1, 1, seq_q - 1, 0) == -std::numeric_limits<double>::infinity());
        }
      }
    }
  }
}
