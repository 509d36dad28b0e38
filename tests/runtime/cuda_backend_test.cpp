// What the backend asks of the driver, with a driver that runs nothing.
#include "runtime/cuda/cuda_backend.hpp"

#include <cstring>
#include <thread>

#include "core/expr_parse.hpp"
#include "core/philox.hpp"
#include "runtime/loaded_kernel.hpp"
#include "tests/support/emitted.hpp"
#include "tests/support/fake_driver.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

LaunchPlan plan_with(int smem_bytes) {
  LaunchPlan plan;
  for (const Param param : {Param::q, Param::seq_q, Param::scale_log2}) plan.params.add(param);
  plan.steps = {
      {"fw_forward", 128, smem_bytes, parse_expr("ceil_div(seq_q, 64) * heads_q * batch")}};
  return plan;
}

Binary some_binary() {
  Binary binary;
  binary.bytes = "code";
  return binary;
}

// A driver with two devices, and the backend over it.
struct Rig {
  FakeDriver& driver = FakeDriver::fresh();
  std::unique_ptr<Backend> backend = make_cuda_backend(&fake_driver_table());
  std::unique_ptr<Module> load(int smem_bytes, int device) {
    return backend->load(some_binary(), plan_with(smem_bytes), device);
  }
  void launch(const Module& module, int device, std::int64_t grid = 7) {
    const std::array<StepLaunch, 1> steps = {{{0, grid}}};
    const std::uint64_t block[4] = {};
    backend->launch(module, steps, block, device, nullptr);
  }
  int count(const std::string& call) const {
    return static_cast<int>(std::count(driver.calls.begin(), driver.calls.end(), call));
  }
};

}  // namespace

TEST_CASE("devices are described by the driver's attributes") {
  Rig rig;
  rig.driver.devices = {{"Old", 7, 5, 72, 65536, 65536},
                        {"Fake A100", 8, 0, 108, 166912, 167936},
                        {"Future", 13, 0, 200, 300000, 301000}};
  const std::vector<DeviceInfo> devices = rig.backend->describe();
  REQUIRE(devices.size() >= 1);  // the first is older than every kernel family
  const DeviceInfo& d = devices.front();
  CHECK(d.name == "Fake A100");
  CHECK(d.index == 1);
  CHECK(d.present);
  CHECK(d.target == Target{BackendKind::cuda, "sm_80"});
  CHECK(d.sm_count == 108);
  CHECK(d.smem_per_block == 166912);
  CHECK(d.smem_per_sm == 167936);
  CHECK(d.l2_bytes == 40 << 20);
  CHECK(d.clock_ghz == doctest::Approx(1.41));
  CHECK(d.memory_gbps == doctest::Approx(1935.36));
  CHECK(d.peak_tflops.at("bf16") == doctest::Approx(2048 * 108 * 1.41e-3));
  for (const DeviceInfo& other : devices) CHECK(other.name != "Old");
  // PTX of the newest architecture that is known runs on what comes after it.
  REQUIRE(devices.size() == 2);
  CHECK(devices.back().target.arch.starts_with("compute_"));
}

TEST_CASE("a machine without a driver has no devices and says why") {
  const auto backend = make_cuda_backend(nullptr);
  CHECK(backend->describe().empty());
  CHECK(backend->device_missing() == "no driver");
  CHECK(error_of([&] { backend->synchronize(0, nullptr); }).status == Status::unavailable);
}

TEST_CASE("a launch carries the plan's sizes, the stream, and the parameters") {
  Rig rig;
  rig.driver.param_bytes = 24;
  const auto module = rig.load(100000, 0);
  const std::array<StepLaunch, 1> steps = {{{0, 70000}}};
  const std::uint64_t block[3] = {0x1122334455667788u, 42, 99};
  int stream = 0;
  rig.backend->launch(*module, steps, block, 0, &stream);
  REQUIRE(rig.driver.launches.size() == 1);
  const FakeLaunch& launch = rig.driver.launches.front();
  CHECK(launch.entry == "fw_forward");
  CHECK(launch.device == 0);
  CHECK(launch.config.grid[0] == 70000);
  CHECK(launch.config.block[0] == 128);
  CHECK(launch.config.block[1] == 1);
  CHECK(launch.config.smem_bytes == 100000);
  CHECK(static_cast<void*>(launch.config.stream) == &stream);
  CHECK(launch.config.attribute_count == 0);
  CHECK(std::memcmp(launch.params.data(), block, 24) == 0);
  CHECK(rig.driver.complaints.empty());
}

TEST_CASE("an emitted plan, filled for a call, is what the kernel reads") {
  Rig rig;
  const NamedKernel kernel = named_kernels().front();
  const LaunchPlan plan = sm80_family().emit(kernel.problem, kernel.schedule).plan;
  rig.driver.param_bytes = static_cast<std::size_t>(plan.params.size());
  Config config;
  config.head_dim = 128;
  config.mask = Mask::causal();
  Arguments args;
  const auto tensor = [&](std::uintptr_t address, std::int64_t seq, std::int64_t heads) {
    TensorView view =
        dense_view(reinterpret_cast<void*>(address), DType::bf16, {2, seq, heads, 128});
    view.device = BackendKind::cuda;
    return view;
  };
  args.q = tensor(0x1000, 1000, 8);
  args.k = tensor(0x2000, 3000, 2);
  args.v = tensor(0x3000, 3000, 2);
  args.o = tensor(0x4000, 1000, 8);
  const LoadedKernel loaded(*rig.backend, some_binary(), plan, 0);
  loaded.launch(resolve(config, kernel.problem, args), nullptr, nullptr);
  REQUIRE(rig.driver.launches.size() == 1);
  const FakeLaunch& launch = rig.driver.launches.front();
  CHECK(launch.config.grid[0] == 8 * 8 * 2);  // tiles of 128 queries, heads, batch
  for (const ParamLayout::Field& field : plan.params.fields()) {
    std::uint64_t value = 0;
    std::memcpy(&value, launch.params.data() + field.offset,
                static_cast<std::size_t>(size_of(field.type)));
    INFO(info(field.param).name);
    switch (field.param) {
      case Param::q:
        CHECK(value == 0x1000);
        break;
      case Param::v:
        CHECK(value == 0x3000);
        break;
      case Param::lse:
        CHECK(value == 0);
        break;
      case Param::k_row_stride:
        CHECK(value == 2 * 128);
        break;
      case Param::heads_q:
        CHECK(value == 8);
        break;
      case Param::group:
        CHECK(value == 4);
        break;
      case Param::seq_q:
        CHECK(value == 1000);
        break;
      case Param::seq_kv:
        CHECK(value == 3000);
        break;
      case Param::q_position:
        CHECK(value == 2000);
        break;
      case Param::aligned:
        CHECK(value == 1);
        break;
      default:
        break;
    }
  }
}

TEST_CASE("each device is asked for the shared memory, once") {
  Rig rig;
  const auto module = rig.load(100000, 0);
  for (int turn = 0; turn < 3; ++turn)
    for (const int device : {0, 1}) rig.launch(*module, device);
  CHECK(rig.driver.complaints.empty());
  CHECK(rig.driver.launches.size() == 6);
  CHECK(rig.driver.launches[1].device == 1);
  CHECK(rig.count("cuKernelSetAttribute") == 2);
}

TEST_CASE("a kernel that fits anyway asks for nothing") {
  Rig rig;
  const auto module = rig.load(48 * 1024, 0);
  rig.launch(*module, 1);
  CHECK(rig.count("cuKernelSetAttribute") == 0);
  CHECK(rig.driver.launches.size() == 1);
}

TEST_CASE("a grid beyond what the hardware counts is refused before anything is launched") {
  Rig rig;
  LaunchPlan plan = plan_with(0);
  plan.steps.push_back(plan.steps.front());
  const auto module = rig.backend->load(some_binary(), plan, 0);
  const std::array<StepLaunch, 2> steps = {{{0, 5}, {1, std::int64_t{1} << 31}}};
  const Error error =
      error_of([&] { rig.backend->launch(*module, steps, steps.data(), 0, nullptr); });
  CHECK(error.status == Status::bad_argument);
  for (const char* part : {"2147483648 blocks", "2147483647", "split the batch"})
    CHECK(contains(error.message, part));
  CHECK(rig.driver.launches.empty());
  rig.launch(*module, 0, (std::int64_t{1} << 31) - 1);
  CHECK(rig.driver.launches.size() == 1);
}

TEST_CASE("a step that waits for the kernel before it itself is launched early, others are not") {
  Rig rig;
  LaunchPlan plan = plan_with(0);
  for (const bool early : {false, true}) {
    plan.steps.front().early = early;
    const auto module = rig.backend->load(some_binary(), plan, 0);
    rig.launch(*module, 0);
    CHECK(rig.driver.launches.back().early == early);
  }
}

TEST_CASE("the context of the caller is used when it fits, and always restored") {
  Rig rig;
  const auto module = rig.load(0, 0);
  const std::vector<std::vector<int>> before = {{}, {0}, {1}, {1, 0}, {0, 1}};
  for (const std::vector<int>& stack : before) {
    rig.driver.current = stack;
    for (const int device : {0, 1}) {
      const int pushes = rig.count("cuCtxPushCurrent");
      rig.launch(*module, device);
      CHECK(rig.driver.launches.back().device == device);
      CHECK(rig.driver.current == stack);
      CHECK(rig.count("cuCtxPushCurrent") ==
            pushes + (stack.empty() || stack.back() != device ? 1 : 0));
    }
  }
  CHECK(rig.driver.retained == std::map<int, int>{{0, 1}, {1, 1}});
}

TEST_CASE("tensor maps are encoded whether or not the caller has a context") {
  Rig rig;
  TensorMapSpec spec;
  spec.base = reinterpret_cast<unsigned char*>(4096);
  spec.rank = 2;
  spec.shape = {64, 10};
  spec.stride_bytes = {128};
  spec.box = {64, 8};
  spec.swizzle = 128;
  struct alignas(64) {
    unsigned char bytes[128];
  } map{};
  for (const std::vector<int>& stack : {std::vector<int>{}, {0}, {1}}) {
    rig.driver.current = stack;
    rig.backend->encode_tensor_map(spec, &map, 0);
    CHECK(rig.driver.current == stack);
  }
  CHECK(rig.driver.maps.size() == 3);
}

TEST_CASE("loading is allowed while this thread captures a graph, and leaves its mode alone") {
  Rig rig;
  const auto module = rig.load(0, 0);
  CHECK(rig.driver.capture_mode == 0);
  CHECK(rig.count("cuThreadExchangeStreamCaptureMode") == 2);
  rig.launch(*module, 0);
  CHECK(rig.count("cuStreamSynchronize") == 0);  // a launch waits for nothing
}

TEST_CASE("time is the device's own") {
  Rig rig;
  const auto module = rig.load(0, 0);
  rig.driver.launch_ms = 0.25f;
  const double microseconds = rig.backend->time(0, nullptr, [&] {
    for (int i = 0; i < 4; ++i) rig.launch(*module, 0);
  });
  CHECK(microseconds == doctest::Approx(1000).epsilon(1e-3));
  CHECK(rig.driver.events.empty());
}

TEST_CASE("memory goes there and back, and modules are unloaded") {
  Rig rig;
  void* const memory = rig.backend->allocate(1, 100);
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
  const std::string text(100, 'x');
  std::string back(100, ' ');
  rig.backend->copy_in(1, memory, text.data(), text.size());
  rig.backend->copy_out(1, back.data(), memory, back.size());
  CHECK(back == text);
  rig.backend->copy_in(1, memory, nullptr, 0);
  rig.backend->deallocate(1, memory);
  rig.backend->deallocate(1, nullptr);
  void* const nothing = rig.backend->allocate(0, 0);  // still an address of its own
  CHECK(nothing != nullptr);
  rig.backend->deallocate(0, nothing);
  CHECK(rig.driver.memory.empty());
  {
    const auto module = rig.load(0, 0);
    CHECK(rig.driver.libraries.size() == 1);
  }
  CHECK(rig.driver.libraries.empty());
  CHECK(rig.driver.complaints.empty());
}

TEST_CASE("a binary without the entry that the plan names is refused and unloaded") {
  Rig rig;
  rig.driver.entries = {"other"};
  const Error error = error_of([&] { rig.load(0, 0); });
  CHECK(error.status == Status::device_error);
  CHECK(contains(error.message, "cuLibraryGetKernel"));
  CHECK(rig.driver.libraries.empty());
}

TEST_CASE("many threads launch one module on two devices") {
  Rig rig;
  rig.driver.current = {};
  const auto module = rig.load(100000, 0);
  {
    // The stand-in keeps one stack of contexts for all threads: calls of different devices must not interleave.
    std::mutex turn;
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i)
      threads.emplace_back([&, i] {
        for (int n = 0; n < 200; ++n) {
          const std::scoped_lock lock(turn);
          rig.launch(*module, i % 2);
        }
      });
  }
  CHECK(rig.driver.launches.size() == 1600);
  CHECK(rig.driver.complaints.empty());
  CHECK(rig.driver.current.empty());
}
