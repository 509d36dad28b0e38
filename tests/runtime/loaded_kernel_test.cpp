// A launch plan and the arguments of a call become steps with numbers.
#include "runtime/loaded_kernel.hpp"

#include <cstring>

#include "core/expr_parse.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

struct NoModule final : Module {};

// Remembers the last launch.
struct Recorder final : Backend {
  std::vector<StepLaunch> steps;
  std::vector<unsigned char> block;
  std::size_t bytes = 0;
  int launches = 0, device = -1;
  void* stream = nullptr;

  BackendKind kind() const override { return BackendKind::cpu; }
  std::string compiler_missing() override { return {}; }
  std::string device_missing() override { return {}; }
  std::vector<DeviceInfo> describe() override { return {}; }
  std::string toolchain(const Target&) override { return {}; }
  Binary::Kind binary_kind(const Target&) const override { return Binary::Kind::object; }
  Binary compile(const Source&) override { return {}; }
  std::unique_ptr<Module> load(const Binary&, const LaunchPlan&, int) override {
    return std::make_unique<NoModule>();
  }
  void launch(const Module&, std::span<const StepLaunch> what, const void* params, int on,
              void* where) override {
    ++launches;
    steps.assign(what.begin(), what.end());
    const auto* const at = static_cast<const unsigned char*>(params);
    CHECK(reinterpret_cast<std::uintptr_t>(params) % 8 == 0);
    block.assign(at, at + bytes);
    device = on;
    stream = where;
  }
  double time(int, void*, const std::function<void()>&) override { return 0; }
  void synchronize(int, void*) override {}
  void* allocate(int, std::size_t) override { return nullptr; }
  void deallocate(int, void*) override {}
  void copy_in(int, void*, const void*, std::size_t) override {}
  void copy_out(int, void*, const void*, std::size_t) override {}
};

ResolvedArguments arguments_for(double batch, double heads, double seq_q, double seq_kv) {
  ResolvedArguments out;
  out.rule_values = {batch, heads, heads, seq_q, seq_kv, 0, 0};
  out.values.set_int(Param::seq_q, static_cast<std::int64_t>(seq_q));
  out.values.set_int(Param::lse_head_stride, 77);
  out.device_index = 3;
  return out;
}

LaunchPlan two_steps(const char* workspace) {
  LaunchPlan plan;
  for (const Param param : {Param::seq_q, Param::workspace, Param::lse_head_stride})
    plan.params.add(param);
  plan.steps = {{"fw_scores", 128, 0,
                 parse_expr("ceil_div(seq_q, 64) * ceil_div(seq_kv, 64) * heads_q * batch")},
                {"fw_output", 128, 0, parse_expr("ceil_div(seq_q, 64) * heads_q * batch")}};
  if (workspace != nullptr) plan.workspace = parse_expr(workspace);
  return plan;
}

}  // namespace

TEST_CASE("rules become grids, values become the parameter block") {
  Recorder backend;
  const LaunchPlan plan = two_steps(nullptr);
  backend.bytes = static_cast<std::size_t>(plan.params.size());
  const LoadedKernel kernel(backend, {}, plan, 0);
  int stream = 0;
  kernel.launch(arguments_for(2, 3, 130, 65), nullptr, &stream);
  REQUIRE(backend.steps.size() == 2);
  CHECK(backend.steps[0].entry == 0);
  CHECK(backend.steps[0].grid == 3 * 2 * 3 * 2);
  CHECK(backend.steps[1].entry == 1);
  CHECK(backend.steps[1].grid == 3 * 3 * 2);
  CHECK(backend.device == 3);
  CHECK(backend.stream == &stream);
  std::int32_t seq_q = 0;
  std::int64_t stride = 0;
  std::memcpy(&seq_q, backend.block.data(), 4);
  std::memcpy(&stride, backend.block.data() + 16, 8);
  CHECK(seq_q == 130);
  CHECK(stride == 77);
  CHECK(kernel.workspace_bytes(arguments_for(2, 3, 130, 65)) == 0);
}

TEST_CASE("more blocks than a batch of 65535 are counted right") {
  Recorder backend;
  const LoadedKernel kernel(backend, {}, two_steps(nullptr), 0);
  kernel.launch(arguments_for(70000, 64, 4096, 64), nullptr, nullptr);
  CHECK(backend.steps[1].grid == std::int64_t{64} * 64 * 70000);
}

TEST_CASE("a step without blocks is left out") {
  Recorder backend;
  const LoadedKernel kernel(backend, {}, two_steps(nullptr), 0);
  kernel.launch(arguments_for(1, 1, 64, 0), nullptr, nullptr);
  REQUIRE(backend.steps.size() == 1);
  CHECK(backend.steps[0].entry == 1);
}

TEST_CASE("a call with nothing to write launches nothing and needs no workspace") {
  Recorder backend;
  const LoadedKernel kernel(backend, {}, two_steps("batch * 1024"), 0);
  ResolvedArguments empty = arguments_for(1, 1, 0, 64);
  empty.empty = true;
  CHECK(kernel.workspace_bytes(empty) == 0);
  kernel.launch(empty, nullptr, nullptr);
  CHECK(backend.launches == 0);
}

TEST_CASE("a workspace is asked for, checked, and handed to the kernel") {
  Recorder backend;
  const LaunchPlan plan = two_steps("batch * heads_q * seq_q * seq_kv * 4");
  backend.bytes = static_cast<std::size_t>(plan.params.size());
  const LoadedKernel kernel(backend, {}, plan, 0);
  const ResolvedArguments args = arguments_for(2, 4, 4096, 65536);
  CHECK(kernel.workspace_bytes(args) == std::size_t{2} * 4 * 4096 * 65536 * 4);
  const Error none = error_of([&] { kernel.launch(args, nullptr, nullptr); });
  CHECK(none.status == Status::bad_argument);
  for (const char* part : {"workspace", "none", "8589934592 bytes", "256"})
    CHECK(contains(none.message, part));
  const Error odd =
      error_of([&] { kernel.launch(args, reinterpret_cast<void*>(0x1080), nullptr); });
  CHECK(contains(odd.message, "misaligned"));
  CHECK(backend.launches == 0);
  kernel.launch(args, reinterpret_cast<void*>(0x1100), nullptr);
  std::uint64_t address = 0;
  std::memcpy(&address, backend.block.data() + 8, 8);
  CHECK(address == 0x1100);
}

TEST_CASE("a plan with more steps than there is room for is a mistake of the library") {
  Recorder backend;
  LaunchPlan plan = two_steps(nullptr);
  while (plan.steps.size() <= 8) plan.steps.push_back(plan.steps.front());
  CHECK(error_of([&] { LoadedKernel(backend, {}, plan, 0); }).status == Status::internal);
}
