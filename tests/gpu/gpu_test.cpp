// A kernel family on a real GPU against the double-precision reference: sm80, or with FW_GPU_FAMILY=sm90
// that one. Without a GPU every test case is skipped by name. FW_GPU_SMALL=1 keeps the matrix small enough
// for compute-sanitizer. FW_GPU_PROGRESS=1 names each random problem before its launch.
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <random>
#include <thread>

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

Shape random_shape(std::mt19937_64& random) {
  Shape shape;
  shape.batch = pick<std::int64_t>(random, {1, 2, 3});
  shape.heads_kv = pick<std::int64_t>(random, {1, 2, 3});
  shape.heads_q = shape.heads_kv * pick<std::int64_t>(random, {1, 2, 3, 4, 8, 5});
  shape.seq_q = pick<std::int64_t>(random, {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 257});
  shape.seq_kv =
      pick<std::int64_t>(random, {0, 1, 2, 31, 32, 33, 63, 64, 65, 100, 128, 129, 191, 257, 400});
  return shape;
}

// One launch of a kernel on a random shape, layout, magnitude and mask.
std::string run_random(const KernelSpec& spec, const Config& config, std::mt19937_64& random) {
  const Shape shape = random_shape(random);
  const auto layout = static_cast<Layout>(random() % kLayoutCount);
  // With larger numbers a plain fp32 computation misses the bound of O, too.
  const double largest = config.dtype == DType::fp32 ? 2.0 : 4.0;
  HostProblem host(config, shape, layout, random() % 1000, pick(random, {0.2, 1.0, largest}));
  if (config.mask.kind == Mask::Kind::blocks) {
    host.use_random_blocks(pick<std::int64_t>(random, {1, 4, 16, 20, 64, 128}),
                           pick<std::int64_t>(random, {1, 5, 16, 32, 48, 128}), random() % 2 == 0,
                           random());
  } else if ((config.mask.kind != Mask::Kind::none || config.alibi) && random() % 2 == 0) {
    host.arguments.q_position = static_cast<std::int64_t>(random() % 270) - 70;
  }
  host.arguments.seed = random();
  host.arguments.offset = random() % 5;
  return run_and_judge(host, spec, 20) + (layout == Layout::shifted ? " (shifted)" : "");
}

void run_matrix(const std::vector<std::pair<KernelSpec, Config>>& kernels, int runs_each) {
  std::vector<KernelSpec> specs;
  for (const auto& [spec, config] : kernels) specs.push_back(spec);
  compile_all(specs);
  std::mt19937_64 random(test_seed());
  int runs = 0, faults = 0;
  std::map<std::string, int> by_dtype;
  for (const auto& [spec, config] : kernels) {
    for (int i = 0; i < runs_each; ++i, ++runs) {
      const std::string fault = run_random(spec, config, random);
      if (fault.empty() || fault == " (shifted)") continue;
      ++faults;
      ++by_dtype[to_string(config.dtype)];
      if (faults <= 40) FAIL_CHECK(fault);
    }
  }
  for (const auto& [dtype, count] : by_dtype) MESSAGE(count << " faults with " << dtype);
  CHECK(faults == 0);
  MESSAGE(kernels.size() << " kernels, " << runs << " launches judged");
}

}  // namespace

TEST_CASE("random problems with random legal schedules") {
  if (!ready("random problems with random legal schedules")) return;
  std::vector<std::pair<KernelSpec, Config>> kernels;
  const int count = small() ? 10 : 160;
  for (int i = 0; i < count; ++i) {
    const Config config = draw(configs(), test_seed() * 1000 + static_cast<std::uint64_t>(i));
    const auto number = test_seed() + static_cast<std::uint64_t>(i) * 7919;
    kernels.emplace_back(i % 2 == 0 ? any_spec(config, {1, 4, 2, 200, 200}, number)
                                    : default_spec(config, {1, 4, 2, 200, 200}),
                         config);
  }
  run_matrix(kernels, small() ? 2 : 12);
}

TEST_CASE("random problems with softcap, ALiBi and both") {
  if (!ready("random problems with softcap, ALiBi and both")) return;
  std::vector<std::pair<KernelSpec, Config>> kernels;
  const int count = small() ? 6 : 90;
  for (int i = 0; i < count; ++i) {
    const auto number = test_seed() * 31 + static_cast<std::uint64_t>(i);
    Config config = draw(configs(), number);
    const double caps[] = {0.5, 5, 30, 50};
    config.softcap.reset();
    if (i % 3 != 0) config.softcap = caps[number % 4];
    config.alibi = i % 3 != 1;
    kernels.emplace_back(i % 2 == 0 ? any_spec(config, {1, 4, 2, 200, 200}, number * 7919)
                                    : default_spec(config, {1, 4, 2, 200, 200}),
                         config);
  }
  run_matrix(kernels, small() ? 2 : 12);
}

TEST_CASE("random problems in three passes") {
  if (!ready("random problems in three passes")) return;
  std::vector<std::pair<KernelSpec, Config>> kernels;
  for (int i = 0; i < (small() ? 3 : 24); ++i) {
    Config config = draw(configs(), test_seed() * 77 + static_cast<std::uint64_t>(i));
    if (config.mask.kind == Mask::Kind::blocks) config.mask = Mask::window(9, 40);
    config.softcap.reset();
    config.alibi = false;
    kernels.emplace_back(default_spec(config, {1, 4, 2, 200, 200}, Algorithm::unfused), config);
  }
  run_matrix(kernels, small() ? 2 : 8);
}

// Threads copy what TMA cannot address, each some rows: here not each of a warp as many.
TEST_CASE("rows that start anywhere, in tiles of any height") {
  if (!ready("rows that start anywhere, in tiles of any height")) return;
  Config config;
  config.head_dim = 24;
  config.alibi = true;
  config.softmax_scale = -0.7;
  std::map<std::pair<int, int>, KernelSpec> by_height;  // and by the number of warps
  for (const KernelSpec& spec : all_specs(config, {3, 2, 2, 300, 300}))
    by_height.insert_or_assign({spec.schedule.tile_kv, spec.schedule.warps}, spec);
  std::vector<KernelSpec> specs;
  for (const auto& [height, spec] : by_height) specs.push_back(spec);
  compile_all(specs);
  for (const KernelSpec& spec : specs)
    for (const std::int64_t seq : {16, 300}) {
      HostProblem host(config, {3, 2, 2, seq, 63}, Layout::shifted, 3);
      CHECK(run_and_judge(host, spec, 20) == "");
    }
  MESSAGE(specs.size() << " heights");
}

TEST_CASE("goldens") {
  if (!ready("goldens")) return;
  std::map<std::string, int> skipped;
  int ran = 0;
  std::vector<GoldenCase> goldens;
  std::vector<KernelSpec> specs;
  for (const GoldenCase& golden : read_cases(FW_SOURCE_DIR "/tests/data/cases.json")) {
    if (!golden.skip.empty()) {
      ++skipped[golden.skip];
      continue;
    }
    CaseRun run;
    make_run(golden, 4, 4, run);
    goldens.push_back(golden);
    specs.push_back(default_spec(run.config, {}));
  }
  if (small()) goldens.resize(12);
  compile_all({specs.begin(), specs.begin() + static_cast<std::ptrdiff_t>(goldens.size())});
  for (std::size_t i = 0; i < goldens.size(); ++i) {
    CAPTURE(goldens[i].id);
    CaseRun run;
    make_run(goldens[i], 4, 4, run);
    for (const Arguments& arguments : run.calls) {
      DeviceCall call(arguments, {{run.q.data(), run.q.size()},
                                  {run.k.data(), run.k.size()},
                                  {run.v.data(), run.v.size()},
                                  {run.o.data(), run.o.size()},
                                  {run.lse.data(), run.lse.size() * sizeof(float)}});
      launch(specs[i], run.config, call.arguments());
      call.fetch();
    }
    CHECK_MESSAGE(check_run(goldens[i], run).empty(), check_run(goldens[i], run));
    ++ran;
  }
  for (const auto& [reason, count] : skipped) MESSAGE(count << " goldens skipped: " << reason);
  MESSAGE(ran << " goldens ran");
}

TEST_CASE("NaN and infinity, huge logits, any scale") {
  if (!ready("NaN and infinity, huge logits, any scale")) return;
  Config config;
  config.head_dim = 64;
  for (const DType dtype : {DType::bf16, DType::fp32, DType::fp16}) {
    config.dtype = dtype;
    HostProblem host(config, {1, 1, 1, 2, 4}, Layout::rows_of_heads, 13);
    for (int d = 0; d < 64; ++d) host.q.set(0, 0, 0, d, std::nan(""));
    CHECK(run_and_judge(host, default_spec(config, host.shape), 8) == "");
    CHECK(std::isnan(host.o.at(0, 0, 0, 0)));
    CHECK(std::isnan(host.lse.at(0, 0, 0, 0)));
    if (dtype == DType::fp16) continue;
    HostProblem huge(config, {1, 1, 1, 1, 1}, Layout::rows_of_heads, 5);
    for (HostTensor* tensor : {&huge.q, &huge.k, &huge.v}) tensor->fill(133120);
    run_and_judge(huge, default_spec(config, huge.shape), 1);
    CHECK(huge.o.at(0, 0, 0, 0) == 133120);
    CHECK(huge.lse.at(0, 0, 0, 0) == doctest::Approx(133120.0 * 133120.0 * 8));
  }
  config.dtype = DType::bf16;
  config.mask = Mask::causal();
  for (const double scale : {-0.7, 0.0, 3.0, 1e-20}) {
    config.softmax_scale = scale;
    HostProblem host(config, {1, 2, 2, 33, 77}, Layout::rows_of_heads, 9);
    CHECK(run_and_judge(host, default_spec(config, host.shape), 66) == "");
  }
}

TEST_CASE("large logits that grow from tile to tile") {
  if (!ready("large logits that grow from tile to tile")) return;
  Config config;
  config.dtype = DType::fp32;
  config.head_dim = 32;
  for (const double step : {0.5, 30.0, 900.0}) {
    HostProblem host(config, {1, 1, 1, 40, 300}, Layout::rows_of_heads, 21);
    // Multiples of 1/16: every product and sum fits a float, so that only the softmax rounds.
    for (HostTensor* tensor : {&host.q, &host.k})
      for (int s = 0; s < (tensor == &host.q ? 40 : 300); ++s)
        for (int d = 0; d < 32; ++d)
          tensor->set(0, s, 0, d, std::round(tensor->at(0, s, 0, d) * 16) / 16);
    for (int s = 0; s < 300; ++s) host.k.set(0, s, 0, 0, step * (s / 16));
    for (int s = 0; s < 40; ++s) host.q.set(0, s, 0, 0, s % 2 == 0 ? 4.0 : -4.0);
    CHECK(run_and_judge(host, default_spec(config, host.shape), 40) == "");
  }
}

TEST_CASE("long sums do not drift") {
  if (!ready("long sums do not drift")) return;
  Config config;
  config.dtype = DType::fp32;
  config.head_dim = 64;
  for (const Algorithm algorithm : {Algorithm::tiled, Algorithm::unfused}) {
    HostProblem host(config, {1, 1, 1, 64, 16384}, Layout::rows_of_heads, 8, 0.5);
    for (int s = 0; s < 16384; ++s)  // all of one sign: what is cut off adds up
      for (int d = 0; d < 64; ++d) host.v.set(0, s, 0, d, 1 + std::fabs(host.v.at(0, s, 0, d)));
    CHECK(run_and_judge(host, default_spec(config, host.shape, algorithm), 16) == "");
  }
}

TEST_CASE("the same launch gives the same bits") {
  if (!ready("the same launch gives the same bits")) return;
  Config config;
  config.head_dim = 128;
  config.mask = Mask::causal();
  config.dropout = 0.1;
  HostProblem host(config, {2, 6, 2, 333, 517}, Layout::rows_of_heads, 1);
  const KernelSpec spec = default_spec(config, host.shape);
  DeviceCall call(host);
  std::vector<unsigned char> first;
  for (int run = 0; run < (small() ? 2 : 100); ++run) {
    launch(spec, config, call.arguments());
    call.fetch();
    if (run == 0) first = host.o.elements();
    CHECK(host.o.elements() == first);
  }
}

TEST_CASE("launches of one kernel in several streams at once") {
  if (!ready("launches of one kernel in several streams at once")) return;
  constexpr std::size_t kStreams = 4;
  // Every host thread has a stream of its own behind this handle (CU_STREAM_PER_THREAD).
  void* const own_stream = reinterpret_cast<void*>(std::uintptr_t{2});
  Config config;
  config.head_dim = 64;
  config.mask = Mask::causal();
  std::deque<HostProblem> hosts;
  for (std::size_t i = 0; i < kStreams; ++i)  // some with fewer query tiles than blocks
    hosts.emplace_back(config, Shape{1, i % 2 == 0 ? 3 : 43, 1, 700, 700}, Layout::rows_of_heads,
                       i);
  const KernelSpec spec = default_spec(config, {1, 43, 1, 700, 700});
  std::deque<DeviceCall> calls;
  for (HostProblem& host : hosts) calls.emplace_back(host);
  std::vector<std::vector<unsigned char>> expected;
  for (std::size_t i = 0; i < kStreams; ++i) {
    launch(spec, config, calls[i].arguments());
    calls[i].fetch();
    expected.push_back(hosts[i].o.elements());
    CHECK(hosts[i].fault(spec.problem, 20) == "");
    hosts[i].poison_outputs();
    calls[i].upload();
  }
  const auto kernel = kernel_for(spec);
  const auto run = [&](std::size_t i) {
    const ResolvedArguments resolved = resolve(config, spec.problem, calls[i].arguments());
    for (int n = 0; n < (small() ? 5 : 200); ++n) kernel->launch(resolved, nullptr, own_stream);
    cuda_backend().synchronize(gpu()->index, own_stream);
  };
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < kStreams; ++i) threads.emplace_back(run, i);
  threads.clear();
  for (std::size_t i = 0; i < kStreams; ++i) {
    calls[i].fetch();
    CHECK(hosts[i].o.elements() == expected[i]);
  }
}

TEST_CASE("the random state is read when the kernel runs") {
  if (!ready("the random state is read when the kernel runs")) return;
  Config config;
  config.head_dim = 32;
  config.dropout = 0.5;
  HostProblem host(config, {1, 2, 2, 128, 128}, Layout::rows_of_heads, 1);
  const KernelSpec spec = default_spec(config, host.shape);
  const DeviceMemory state(16);
  DeviceCall call(host);
  call.arguments().rng_state = static_cast<const std::uint64_t*>(state.get());
  for (const std::uint64_t offset : {0, 1, 7}) {
    const std::uint64_t values[2] = {42, offset};
    cuda_backend().copy_in(gpu()->index, state.get(), values, sizeof values);
    launch(spec, config, call.arguments());
    call.fetch();
    host.arguments.seed = 42;  // for the reference
    host.arguments.offset = offset;
    CHECK(host.fault(spec.problem, 32) == "");
  }
}

TEST_CASE("offsets beyond 2^31 elements") {
  if (!ready("offsets beyond 2^31 elements")) return;
  if (small()) return skip("offsets beyond 2^31 elements", "too large for the small matrix");
  // One head whose keys lie 90112 elements apart in one buffer: key 23833 is the first one behind 2^31.
  constexpr std::int64_t kStride = 90112, kKeys = 23900;
  Config config;
  config.head_dim = 128;
  HostProblem host(config, {1, 1, 1, 4, kKeys}, Layout::rows_of_heads, 3);
  const KernelSpec spec = default_spec(config, host.shape);
  DeviceCall dense(host);
  launch(spec, config, dense.arguments());
  dense.fetch();
  const std::vector<unsigned char> expected = host.o.elements();
  Arguments wide = dense.arguments();
  std::vector<DeviceMemory> memory;
  for (TensorView* view : {&wide.k, &wide.v}) {
    memory.emplace_back(static_cast<std::size_t>(kStride) * kKeys * 2);
    const HostTensor& from = view == &wide.k ? host.k : host.v;
    for (std::int64_t s = 0; s < kKeys; ++s)
      cuda_backend().copy_in(gpu()->index,
                             static_cast<char*>(memory.back().get()) + s * kStride * 2,
                             static_cast<const char*>(from.view().data) + s * 256, 256);
    view->data = memory.back().get();
    view->stride = {kStride * kKeys, kStride, 128, 1};
  }
  host.poison_outputs();
  dense.upload();
  launch(spec, config, wide);
  dense.fetch();
  CHECK(host.o.elements() == expected);
}

TEST_CASE("more than 65535 heads, batches and query tiles") {
  if (!ready("more than 65535 heads, batches and query tiles")) return;
  if (small()) return skip("more than 65535 heads, batches and query tiles", "too large");
  Config config;
  config.dtype = DType::fp16;
  config.head_dim = 16;
  for (const Shape& shape : {Shape{1, 65536, 65536, 10, 10}, Shape{70000, 1, 1, 3, 5},
                             Shape{1, 1, 1, 64 * 65535 + 1, 16}}) {
    HostProblem host(config, shape, Layout::rows_of_heads, 3);
    CHECK(run_and_judge(host, default_spec(config, shape), 200) == "");
  }
}
