// The gradients of a kernel family on a real GPU against those in double precision: sm80, or with FW_GPU_FAMILY=sm90
// that one for all that it can do. FW_GPU_SMALL=1 keeps the matrix small.
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>

#include "core/device_profiles.hpp"
#include "generator/sm80/family_sm80.hpp"
#include "runtime/cuda/cuda_backend.hpp"
#include "tests/gpu/device_problem.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/random.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

bool small() { return std::getenv("FW_GPU_SMALL") != nullptr; }

bool ready(const char* name) {
  if (gpu() != nullptr) return true;
  skip(name, "no GPU");
  return false;
}

template <typename T>
T pick(std::mt19937_64& random, std::initializer_list<T> values) {
  return *(values.begin() + static_cast<std::ptrdiff_t>(random() % values.size()));
}

Config backward(Config config) {
  config.direction = "backward";
  return config;
}

Config config_of(DType dtype, int dim, int dim_v, const Mask& mask) {
  Config config;
  config.direction = "backward";
  config.dtype = dtype;
  config.head_dim = dim;
  config.head_dim_v = dim_v;
  config.mask = mask;
  return config;
}

// One launch of a kernel on a random shape, layout, magnitude, mask and choice of gradients.
std::string run_random(const KernelSpec& spec, const Config& config, std::mt19937_64& random) {
  Shape shape;
  shape.batch = pick<std::int64_t>(random, {1, 2});
  shape.heads_kv = pick<std::int64_t>(random, {1, 2, 3});
  shape.heads_q = shape.heads_kv * pick<std::int64_t>(random, {1, 2, 3});
  shape.seq_q = pick<std::int64_t>(random, {1, 2, 15, 16, 17, 63, 64, 65, 128, 129, 250});
  shape.seq_kv = pick<std::int64_t>(random, {0, 1, 2, 31, 32, 33, 63, 64, 65, 129, 250});
  const auto layout = static_cast<Layout>(random() % kLayoutCount);
  HostProblem host(config, shape, layout, random() % 1000, pick(random, {0.2, 1.0, 2.0}));
  if (config.mask.kind == Mask::Kind::blocks) {
    host.use_random_blocks(pick<std::int64_t>(random, {1, 4, 16, 20, 64, 128}),
                           pick<std::int64_t>(random, {1, 5, 16, 32, 48, 128}), random() % 2 == 0,
                           random());
  } else if ((config.mask.kind != Mask::Kind::none || config.alibi) && random() % 2 == 0) {
    host.arguments.q_position = static_cast<std::int64_t>(random() % 270) - 70;
  }
  host.arguments.seed = random();
  host.arguments.offset = random() % 5;
  host.fill_forward();
  const std::uint64_t wanted = random() % 2 == 0 ? 7 : 1 + random() % 7;
  if ((wanted & 1) == 0) host.arguments.dq.reset();
  if ((wanted & 2) == 0) host.arguments.dk.reset();
  if ((wanted & 4) == 0) host.arguments.dv.reset();
  const std::string fault = run_and_judge(host, spec, 12);
  return fault.empty() ? fault : fault + " (" + to_string(layout) + ")";
}

// The gradients of one launch, bit by bit.
std::vector<unsigned char> bits_of(HostProblem& host, const KernelSpec& spec) {
  host.poison_outputs();
  DeviceCall call(host);
  launch(spec, host.config, call.arguments());
  call.fetch();
  std::vector<unsigned char> all;
  for (const HostTensor* tensor : {&host.dq, &host.dk, &host.dv}) {
    const std::vector<unsigned char> part = tensor->elements();
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace

TEST_CASE("gradients of random problems with random legal schedules") {
  if (!ready("gradients of random problems")) return;
  std::vector<std::pair<KernelSpec, Config>> kernels;
  std::vector<KernelSpec> specs;
  for (int i = 0; i < (small() ? 8 : 120); ++i) {
    const auto number = test_seed() * 1000 + static_cast<std::uint64_t>(i);
    const Config config = backward(draw(configs(), number));
    const Shape shape{1, 4, 4, 200, 200};
    kernels.emplace_back(
        i % 2 == 0 ? any_spec(config, shape, number * 7919) : default_spec(config, shape), config);
    specs.push_back(kernels.back().first);
  }
  compile_all(specs);
  std::mt19937_64 random(test_seed());
  int runs = 0, faults = 0;
  for (const auto& [spec, config] : kernels)
    for (int i = 0; i < (small() ? 2 : 8); ++i, ++runs) {
      const std::string fault = run_random(spec, config, random);
      if (fault.empty()) continue;
      if (++faults <= 40) FAIL_CHECK(fault);
    }
  CHECK(faults == 0);
  MESSAGE(kernels.size() << " kernels, " << runs << " launches judged");
}

TEST_CASE("gradients of wide heads in the 99 KiB that other cards have") {
  if (!ready("gradients of wide heads in 99 KiB")) return;
  if (const char* wanted = std::getenv("FW_GPU_FAMILY"); wanted != nullptr)
    if (std::string(wanted) != "sm80")
      return skip("gradients of wide heads in 99 KiB", "sm80 alone");
  const FamilySm80 family;
  std::vector<std::pair<KernelSpec, Config>> kernels;
  std::vector<KernelSpec> specs;
  std::mt19937_64 random(test_seed());
  for (const char* name : {"sm_86", "sm_89", "sm_120"})
    for (const auto& [dim, dim_v] : {std::pair{128, 128}, {160, 160}, {192, 128}, {256, 256}})
      for (const Mask& mask : {Mask::none(), Mask::causal(), Mask::blocks()}) {
        Config config =
            config_of(pick(random, {DType::bf16, DType::fp16, DType::fp32}), dim, dim_v, mask);
        config.dropout = pick(random, {0.0, 0.1});
        config.deterministic = random() % 2 == 0;
        const Target target = parse_target(name);
        const Schedule schedule = family.default_schedule(
            normalise(config, target), assumed_device(target), {1, 4, 4, 200, 200});
        kernels.push_back({{normalise(config, gpu()->target), schedule}, config});
        specs.push_back(kernels.back().first);
        for (const LaunchStep& step : family.emit(specs.back().problem, schedule).plan.steps)
          CHECK(step.smem_bytes <= 99 * 1024);
      }
  compile_all(specs);
  for (const auto& [spec, config] : kernels)
    for (int i = 0; i < (small() ? 1 : 4); ++i) CHECK(run_random(spec, config, random) == "");
  MESSAGE(kernels.size() << " kernels");
}

TEST_CASE("gradients of the golden cases") {
  if (!ready("gradients of the golden cases")) return;
  int ran = 0;
  for (const GoldenCase& golden : read_cases(FW_SOURCE_DIR "/tests/data/cases.json")) {
    if (!golden.skip.empty() || !golden.gradients || (small() && ran == 6)) continue;
    CAPTURE(golden.id);
    CaseRun run;
    make_run(golden, 4, 4, run);
    const auto run_calls = [&](const Config& config, const std::vector<Arguments>& calls) {
      for (const Arguments& arguments : calls) {
        DeviceCall call(arguments, {{run.q.data(), run.q.size()},
                                    {run.k.data(), run.k.size()},
                                    {run.v.data(), run.v.size()},
                                    {run.o.data(), run.o.size()},
                                    {run.lse.data(), run.lse.size() * sizeof(float)},
                                    {run.d_o.data(), run.d_o.size()},
                                    {run.d_lse.data(), run.d_lse.size() * sizeof(float)},
                                    {run.dq.data(), run.dq.size()},
                                    {run.dk.data(), run.dk.size()},
                                    {run.dv.data(), run.dv.size()}});
        launch(default_spec(config, {}), config, call.arguments());
        call.fetch();
      }
    };
    run_calls(run.config, run.calls);
    run_calls(backward(run.config), run.backward_calls);
    CHECK_MESSAGE(check_gradients(golden, run).empty(), check_gradients(golden, run));
    ++ran;
  }
  MESSAGE(ran << " goldens ran");
}

TEST_CASE("the same gradients give the same bits, whatever runs beside them") {
  if (!ready("the same gradients give the same bits")) return;
  for (const Mask& mask : {Mask::causal(), Mask::blocks()})
    for (const int dim : {64, 128, 256}) {
      Config config = config_of(DType::bf16, dim, dim, mask);
      config.dropout = 0.1;
      config.deterministic = true;
      HostProblem host(config, {1, 4, 2, 205, 261}, Layout::rows_of_heads, 3);
      if (mask.kind == Mask::Kind::blocks) host.use_random_blocks(64, 64, true, 5);
      host.fill_forward();
      const KernelSpec spec = default_spec(config, host.shape);
      const std::vector<unsigned char> first = bits_of(host, spec);
      CHECK(host.fault(spec.problem, 12) == "");
      for (int run = 0; run < (small() ? 2 : 30); ++run) CHECK(bits_of(host, spec) == first);
    }
}

TEST_CASE("any part of the gradients on the GPU: the same bits, and nothing else written") {
  if (!ready("any part of the gradients on the GPU")) return;
  for (const auto& [dim, deterministic] :
       {std::pair{40, true}, {64, false}, {64, true}, {128, false}, {256, true}}) {
    CAPTURE(dim);
    Config config = config_of(DType::bf16, dim, 24, Mask::causal());
    config.deterministic = deterministic;
    HostProblem host(config, {2, 4, 2, 270, 290}, Layout::padded_rows, 3);
    host.fill_forward();
    const KernelSpec spec = default_spec(config, host.shape);
    bits_of(host, spec);
    const auto dq = host.dq.elements(), dk = host.dk.elements(), dv = host.dv.elements();
    const Arguments all = host.arguments;
    for (int part = 1; part < 7; ++part) {
      CAPTURE(part);
      host.arguments = all;
      if ((part & 1) == 0) host.arguments.dq.reset();
      if ((part & 2) == 0) host.arguments.dk.reset();
      if ((part & 4) == 0) host.arguments.dv.reset();
      bits_of(host, spec);
      if (deterministic) CHECK((host.dq.elements() == dq) == ((part & 1) != 0));
      CHECK((host.dk.elements() == dk) == ((part & 2) != 0));
      CHECK((host.dv.elements() == dv) == ((part & 4) != 0));
      if ((part & 1) == 0) CHECK(std::isnan(host.dq.at(1, 269, 3, dim - 1)));
      if ((part & 2) == 0) CHECK(std::isnan(host.dk.at(1, 289, 1, dim - 1)));
      if ((part & 4) == 0) CHECK(std::isnan(host.dv.at(1, 289, 1, 23)));
    }
  }
}

TEST_CASE("gradients where nothing is seen, and of lengths of zero") {
  if (!ready("gradients where nothing is seen")) return;
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    const Config config = config_of(dtype, 32, 32, Mask::causal());
    HostProblem host(config, {1, 2, 1, 90, 20}, Layout::rows_of_heads, 3);
    for (int d = 0; d < 32; ++d) host.d_o.set(0, 5, 0, d, 1000);
    host.fill_forward();
    CHECK(run_and_judge(host, default_spec(config, host.shape), 90) == "");
    for (int d = 0; d < 32; ++d) CHECK(host.dq.at(0, 69, 1, d) == 0);
    HostProblem no_keys(config, {2, 2, 1, 5, 0}, Layout::rows_of_heads, 3);
    no_keys.fill_forward();
    CHECK(run_and_judge(no_keys, default_spec(config, no_keys.shape), 20) == "");
    HostProblem no_queries(config, {2, 2, 1, 0, 37}, Layout::rows_of_heads, 3);
    CHECK(run_and_judge(no_queries, default_spec(config, no_queries.shape), 20) == "");
    CHECK(no_queries.dk.at(1, 36, 0, 31) == 0);
    HostProblem low(config, {1, 1, 1, 65, 65}, Layout::rows_of_heads, 4);
    low.q.fill(5.5);
    low.k.fill(-5.5);
    low.fill_forward();
    CHECK(run_and_judge(low, default_spec(config, low.shape), 65) == "");
  }
}

TEST_CASE("long sums of gradients do not drift") {
  if (!ready("long sums of gradients do not drift")) return;
  const Config config = config_of(DType::fp32, 64, 64, Mask::none());
  HostProblem host(config, {1, 1, 1, small() ? 1024 : 8192, 64}, Layout::rows_of_heads, 4, 0.5);
  for (int s = 0; s < host.shape.seq_q; ++s)  // all of one sign: what is cut off adds up
    for (int d = 0; d < 64; ++d) host.d_o.set(0, s, 0, d, 1 + std::fabs(host.d_o.at(0, s, 0, d)));
  host.fill_forward();
  CHECK(run_and_judge(host, default_spec(config, host.shape), 8) == "");
}
