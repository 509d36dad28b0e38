// The backward kernels of the sm80 family in the emulator: what random problems do not show.
#include <cmath>

#include "core/device_profiles.hpp"
#include "tests/emulator/emulated.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

Config config_of(DType dtype, int dim, int dim_v, const Mask& mask) {
  Config config;
  config.direction = "backward";
  config.dtype = dtype;
  config.head_dim = dim;
  config.head_dim_v = dim_v;
  config.mask = mask;
  return config;
}

// A kernel that was compiled for the host.
struct Emulated {
  Problem problem;
  std::unique_ptr<emulator::HostUnit> unit;

  Emulated(const Config& config, const Shape& shape, const std::string& schedule = {},
           const char* target = "sm_80")
      : problem(normalise(config, parse_target(target))) {
    const Schedule chosen = schedule.empty() ? sm80_family().default_schedule(
                                                   problem, assumed_device(problem.target), shape)
                                             : parse_schedule(schedule);
    unit = compile_text(sm80_family().emit(problem, chosen).text);
  }

  // What was found.
  std::string run(HostProblem& host, emulator::Mode mode = emulator::Mode::random) const {
    Config config = host.config;
    config.direction = to_string(problem.direction);
    Arguments arguments = host.arguments;
    if (problem.direction == Direction::forward)
      for (auto* tensor :
           {&arguments.d_o, &arguments.d_lse, &arguments.dq, &arguments.dk, &arguments.dv})
        tensor->reset();
    return text_of(
        emulator::run(*unit, config, problem, arguments, {mode, true, test_seed(), 20'000'000, 1}));
  }
};

// Runs a problem whose o and lse come from the float64 reference: "" when all is well.
std::string check(HostProblem& host, const Emulated& kernel, std::int64_t rows = 24) {
  host.fill_forward();
  host.poison_outputs();
  const std::string found = kernel.run(host);
  return found.empty() ? host.fault(kernel.problem, rows) : found;
}

bool all_zero(const HostTensor& tensor) {
  const auto& shape = tensor.view().shape;
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t s = 0; s < shape[1]; ++s)
      for (std::int64_t h = 0; h < shape[2]; ++h)
        for (std::int64_t d = 0; d < shape[3]; ++d)
          if (tensor.at(b, s, h, d) != 0) return false;
  return true;
}

}  // namespace

TEST_CASE("gradients of lengths around the tiles, with every mask") {
  if (!compiler_here("gradients in the emulator")) return;
  for (const DType dtype : {DType::fp32, DType::bf16})
    for (const Mask& mask : {Mask::none(), Mask::causal(), Mask::window(9, 3), Mask::blocks()}) {
      const Config config = config_of(dtype, 32, 32, mask);
      const Emulated kernel(config, {1, 2, 1, 250, 250});
      for (const std::int64_t seq : {1, 63, 65, 250}) {
        HostProblem host(config, {1, 2, 1, seq, seq}, Layout::rows_of_heads, 3);
        if (mask.kind == Mask::Kind::blocks) host.use_random_blocks(32, 48, true, 5);
        CAPTURE(seq);
        CHECK(check(host, kernel) == "");
      }
    }
}

TEST_CASE("lengths of zero give gradients of zero") {
  if (!compiler_here("gradients of nothing in the emulator")) return;
  const Config config = config_of(DType::bf16, 16, 24, Mask::causal());
  const Emulated kernel(config, {2, 2, 1, 40, 40});
  HostProblem no_keys(config, {2, 2, 1, 5, 0}, Layout::rows_of_heads, 3);
  CHECK(check(no_keys, kernel) == "");
  CHECK(all_zero(no_keys.dq));
  HostProblem no_queries(config, {2, 2, 1, 0, 37}, Layout::rows_of_heads, 3);
  CHECK(kernel.run(no_queries) == "");
  CHECK(all_zero(no_queries.dk));
  CHECK(all_zero(no_queries.dv));
}

TEST_CASE("queries that see nothing get 0 and give nothing, in the emulator") {
  if (!compiler_here("hidden queries in the emulator")) return;
  for (const DType dtype : {DType::fp32, DType::fp16}) {
    const Config config = config_of(dtype, 32, 32, Mask::causal());
    HostProblem host(config, {1, 2, 1, 90, 20}, Layout::rows_of_heads, 3);
    for (int d = 0; d < 32; ++d) host.d_o.set(0, 5, 0, d, 1000);
    CHECK(check(host, Emulated(config, host.shape), 90) == "");
    for (int d = 0; d < 32; ++d) CHECK(host.dq.at(0, 69, 1, d) == 0);
  }
}

TEST_CASE("strongly negative scores with a padded tail, in the emulator") {
  if (!compiler_here("negative scores in the emulator")) return;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const Config config = config_of(dtype, 32, 32, Mask::causal());
    HostProblem host(config, {1, 1, 1, 65, 65}, Layout::rows_of_heads, 4);
    host.q.fill(5.5);
    host.k.fill(-5.5);
    CHECK(check(host, Emulated(config, host.shape), 65) == "");
  }
}

TEST_CASE("NaN stays with the query that has it, in the emulator") {
  if (!compiler_here("NaN in the emulator")) return;
  const Config config = config_of(DType::bf16, 16, 16, Mask::none());
  HostProblem host(config, {1, 1, 1, 6, 6}, Layout::rows_of_heads, 4);
  host.fill_forward();
  host.d_o.set(0, 3, 0, 2, std::nan(""));
  CHECK(Emulated(config, host.shape).run(host) == "");
  CHECK(std::isnan(host.dq.at(0, 3, 0, 0)));
  CHECK(std::isfinite(host.dq.at(0, 2, 0, 0)));
  CHECK(std::isnan(host.dv.at(0, 1, 0, 2)));
  CHECK(std::isfinite(host.dv.at(0, 1, 0, 3)));
}

TEST_CASE("any part of the gradients: the same bits, and nothing else written") {
  if (!compiler_here("parts of the gradients in the emulator")) return;
  for (const char* schedule :
       {"q64.kv32.w4.st2.b1.kb64.qs32", "q32.kv16.w2.st1.b1.kb64.qs16.sk1"}) {
    Config config = config_of(DType::bf16, 40, 24, Mask::blocks());
    config.dropout = 0.3;
    HostProblem host(config, {2, 4, 2, 70, 90}, Layout::rows_of_heads, 3);
    host.use_random_blocks(20, 30, true, 5);
    const Emulated kernel(config, host.shape, schedule);
    CHECK(check(host, kernel) == "");
    const auto dq = host.dq.elements(), dk = host.dk.elements(), dv = host.dv.elements();
    const Arguments all = host.arguments;
    for (int part = 1; part < 7; ++part) {
      host.arguments = all;
      if ((part & 1) == 0) host.arguments.dq.reset();
      if ((part & 2) == 0) host.arguments.dk.reset();
      if ((part & 4) == 0) host.arguments.dv.reset();
      host.poison_outputs();
      CHECK(kernel.run(host) == "");
      CHECK((host.dq.elements() == dq) == ((part & 1) != 0));
      CHECK((host.dk.elements() == dk) == ((part & 2) != 0));
      CHECK((host.dv.elements() == dv) == ((part & 4) != 0));
      if ((part & 1) == 0) CHECK(std::isnan(host.dq.at(1, 69, 3, 39)));
      if ((part & 2) == 0) CHECK(std::isnan(host.dk.at(1, 89, 1, 39)));
      if ((part & 4) == 0) CHECK(std::isnan(host.dv.at(1, 89, 1, 23)));
    }
  }
}

TEST_CASE("the dropout bits are those of the forward kernel, whatever the schedules") {
  if (!compiler_here("dropout bits in the emulator")) return;
  constexpr int kKeys = 100, kQueries = 72;
  for (const Mask& mask : {Mask::none(), Mask::blocks()}) {
    Config config = config_of(DType::bf16, 16, 104, mask);
    config.dropout = 0.5;
    HostProblem host(config, {2, 4, 2, kQueries, kKeys}, Layout::rows_of_heads, 4);
    host.q.fill(0);
    // With values and output gradients that pick one key and one query each, O and dV show the same weights.
    for (HostTensor* tensor : {&host.v, &host.d_o}) {
      tensor->fill(0);
      for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t h = 0; h < tensor->view().shape[2]; ++h)
          for (std::int64_t j = 0; j < tensor->view().shape[1]; ++j) tensor->set(b, j, h, j, 1);
    }
    // Mask blocks that do not begin where keep words do.
    if (mask.kind == Mask::Kind::blocks) host.use_random_blocks(20, 28, true, 5);
    host.arguments.seed = 77;
    host.arguments.offset = 5;
    Config forward = config;
    forward.direction = "forward";
    host.o.fill(std::nan(""));
    host.lse.fill(std::nan(""));
    REQUIRE(Emulated(forward, host.shape).run(host) == "");
    for (const char* schedule :
         {"q64.kv32.w4.st1.b1.kb64.qs64", "q32.kv64.w2.st2.b1.kb64.qs16",
          "q16.kv16.w1.st1.b1.kb16.qs48", "q64.kv32.w2.st1.b1.kb32.qs32.sk1"}) {
      CAPTURE(std::string(schedule));
      host.poison_outputs();
      REQUIRE(Emulated(config, host.shape, schedule).run(host) == "");
      int wrong = 0, kept = 0;
      for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t h = 0; h < 2; ++h)  // of the keys: each sums over two query heads
          for (std::int64_t i = 0; i < kQueries; ++i)
            for (std::int64_t j = 0; j < kKeys; ++j) {
              const int heads =
                  (host.o.at(b, i, 2 * h, j) != 0) + (host.o.at(b, i, 2 * h + 1, j) != 0);
              wrong += (heads != 0) != (host.dv.at(b, j, h, i) != 0);
              kept += heads;
            }
      CHECK(wrong == 0);
      CHECK(kept > 4000);
      // dQ and dK use the bits too.
      CHECK(host.fault(normalise(config, parse_target("sm_80")), 12) == "");
    }
  }
}
