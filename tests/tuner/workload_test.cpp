#include "tuner/workload.hpp"

#include <cmath>
#include <cstring>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "tests/support/fake_backend.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

Problem problem_of(const char* json) {
  return normalise(config_from_json(json), {BackendKind::cuda, "sm_80"});
}

// A device that has room for some allocations only, and whose memory cannot be given back at the end.
struct Cramped final : Backend {
  FakeBackend inner{BackendKind::cuda};
  int room = 1000;
  bool broken = false;

  BackendKind kind() const override { return BackendKind::cuda; }
  std::string compiler_missing() override { return {}; }
  std::string device_missing() override { return {}; }
  std::vector<DeviceInfo> describe() override { return {}; }
  std::string toolchain(const Target&) override { return {}; }
  Binary::Kind binary_kind(const Target&) const override { return Binary::Kind::cubin; }
  Binary compile(const Source& source) override { return inner.compile(source); }
  std::unique_ptr<Module> load(const Binary& b, const LaunchPlan& p, int d) override {
    return inner.load(b, p, d);
  }
  void launch(const Module&, std::span<const StepLaunch>, const void*, int, void*) override {}
  double time(int, void*, const std::function<void()>&) override { return 1; }
  void synchronize(int, void*) override {}
  void* allocate(int device, std::size_t bytes) override {
    if (room-- <= 0)
      throw Error(Status::device_error, "cuMemAlloc: no " + std::to_string(bytes) + " bytes");
    return inner.allocate(device, bytes);
  }
  void deallocate(int device, void* memory) override {
    inner.deallocate(device, memory);
    if (broken)
      throw Error(Status::device_error, "cuMemFree: an illegal memory access was encountered");
  }
  void copy_in(int d, void* to, const void* from, std::size_t bytes) override {
    inner.copy_in(d, to, from, bytes);
  }
  void copy_out(int d, void* to, const void* from, std::size_t bytes) override {
    inner.copy_out(d, to, from, bytes);
  }
};

}  // namespace

TEST_CASE("inputs are normal, the same for a seed, and reach the device") {
  FakeBackend backend(BackendKind::cuda);
  for (const char* json : {R"({"dtype":"bf16","head_dim":64})", R"({"dtype":"fp16","head_dim":64})",
                           R"({"dtype":"fp32","head_dim":64})"}) {
    const Problem problem = problem_of(json);
    const Workload a(problem, {2, 4, 2, 100, 120}, backend, 0, 7),
        b(problem, {2, 4, 2, 100, 120}, backend, 0, 7);
    const Workload c(problem, {2, 4, 2, 100, 120}, backend, 0, 8);
    const std::int64_t count = 2 * 120 * 2 * 64, bytes = count * info(problem.dtype).bytes;
    const auto same = [&](const void* x, const void* y) {
      return std::memcmp(x, y, static_cast<std::size_t>(bytes)) == 0;
    };
    CHECK(same(a.host().k.data, b.host().k.data));
    CHECK(same(a.host().k.data, a.device().k.data));
    CHECK(!same(a.host().k.data, c.host().k.data));
    CHECK(!same(a.host().k.data, a.host().v.data));
    double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const double x = to_float(
          problem.dtype, static_cast<const char*>(a.host().k.data) + i * info(problem.dtype).bytes);
      sum += x;
      squares += x * x;
    }
    CHECK(std::fabs(sum / static_cast<double>(count)) < 0.03);
    CHECK(squares / static_cast<double>(count) == doctest::Approx(1).epsilon(0.04));
    CHECK(a.device().q.device == BackendKind::cuda);
  }
  CHECK(backend.memory_blocks == 0);
}

TEST_CASE("numbers do not depend on how many are asked for") {
  float few[5], many[9];
  fill_normal(DType::fp32, few, 5, 3);
  fill_normal(DType::fp32, many, 9, 3);
  CHECK(std::memcmp(few, many, sizeof few) == 0);
}

TEST_CASE("poison reaches every output and can be told from any result") {
  FakeBackend backend(BackendKind::cuda);
  Workload workload(problem_of(R"({"dtype":"fp16","head_dim":8})"), {1, 1, 1, 3, 3}, backend, 0, 1);
  workload.poison_outputs();
  workload.fetch_outputs();
  for (int i = 0; i < 24; ++i)
    CHECK(std::isnan(to_float(DType::fp16, static_cast<char*>(workload.host().o.data) + 2 * i)));
  for (int i = 0; i < 3; ++i) CHECK(std::isnan(static_cast<float*>(workload.host().lse->data)[i]));
}

TEST_CASE("a backward workload reads what a forward pass gives, and poisons the gradients alone") {
  FakeBackend backend(BackendKind::cuda);
  Workload workload(problem_of(R"({"dtype":"fp32","head_dim":8,"direction":"backward"})"),
                    {1, 2, 1, 3, 50}, backend, 0, 1);
  workload.poison_outputs();
  workload.fetch_outputs();
  const Arguments& args = workload.host();
  for (int i = 0; i < 6; ++i)
    CHECK(static_cast<float*>(args.lse->data)[i] == doctest::Approx(std::log(50.0) + 0.5));
  CHECK(std::isfinite(static_cast<float*>(args.o.data)[47]));
  CHECK(std::isfinite(static_cast<float*>(args.d_o->data)[47]));
  CHECK(std::isnan(static_cast<float*>(args.dq->data)[47]));
  CHECK(std::isnan(static_cast<float*>(args.dk->data)[399]));
  CHECK(std::isnan(static_cast<float*>(args.dv->data)[399]));
  CHECK(workload.device().dv->device == BackendKind::cuda);
}

TEST_CASE("the block mask of a workload shows the diagonal and about a quarter of the rest") {
  FakeBackend backend(BackendKind::cuda);
  const Workload workload(problem_of(R"({"head_dim":8,"mask":"blocks"})"), {1, 1, 1, 2500, 2500},
                          backend, 0, 3);
  const BlockLists& lists = *workload.host().blocks;
  CHECK(lists.query_blocks() == 20);
  int shown = 0;
  for (std::int64_t row = 0; row < 20; ++row) {
    CHECK(visible(lists, 0, 0, row * 128, row * 128));
    for (std::int64_t column = 0; column < 20; ++column)
      shown += visible(lists, 0, 0, row * 128, column * 128);
  }
  CHECK(shown > 70);
  CHECK(shown < 170);
  CHECK(std::memcmp(workload.device().blocks->full_columns, lists.full_columns,
                    static_cast<std::size_t>(lists.full_offsets[20]) * 4) == 0);
}

TEST_CASE("a device without room is an error, and what was taken is given back") {
  const Problem problem = problem_of(R"({"head_dim":64,"mask":"blocks"})");
  int needed = 0;
  for (int room = 0; room < 40; ++room) {
    Cramped backend;
    backend.room = room;
    try {
      const Workload workload(problem, {1, 2, 2, 300, 300}, backend, 0, 1);
      needed = room;
    } catch (const Error& error) {
      CHECK(error.status == Status::device_error);
    }
    CHECK(backend.inner.memory_blocks == 0);
    if (needed > 0) break;
  }
  CHECK(needed == 10);  // five tensors and five lists
}

TEST_CASE("a device that has failed does not end the process") {
  int warnings = 0;
  set_log_sink([&](LogLevel, const std::string& line) {
    warnings += contains(line, "illegal memory access");
  });
  {
    Cramped backend;
    const Workload workload(problem_of(R"({"head_dim":64})"), {1, 2, 2, 30, 30}, backend, 0, 1);
    backend.broken = true;
  }
  set_log_sink({});
  CHECK(warnings == 5);
}

TEST_CASE("the workspace grows and is kept") {
  Cramped backend;
  {
    Workload workload(problem_of(R"({"head_dim":64})"), {1, 1, 1, 8, 8}, backend, 0, 1);
    CHECK(workload.workspace(0) == nullptr);
    void* const small = workload.workspace(100);
    CHECK(workload.workspace(50) == small);
    CHECK(workload.workspace(5000) != nullptr);
    backend.room = 0;
    CHECK(error_of([&] { workload.workspace(100000); }).status == Status::device_error);
    backend.room = 10;
    CHECK(workload.workspace(100) != nullptr);
  }
  CHECK(backend.inner.memory_blocks == 0);
}

TEST_CASE("a shape too large to measure loses batch entries and heads, never length or group") {
  const Problem problem = problem_of(R"({"head_dim":128})");
  property("bounded", [&] {
    const Shape shape{*rc::gen::inRange(1, 64), 0, *rc::gen::inRange(1, 9),
                      *rc::gen::inRange(1, 9000), *rc::gen::inRange(1, 9000)};
    Shape wanted = shape;
    const std::int64_t group = *rc::gen::inRange(1, 9), limit = *rc::gen::inRange(1, 1 << 25);
    wanted.heads_q = wanted.heads_kv * group;
    const Shape got = bounded_shape(problem, wanted, limit);
    RC_ASSERT(got.seq_q == wanted.seq_q && got.seq_kv == wanted.seq_kv);
    RC_ASSERT(got.heads_q == got.heads_kv * group);
    RC_ASSERT(got.batch >= 1 && got.batch <= wanted.batch && got.heads_kv >= 1 &&
              got.heads_kv <= wanted.heads_kv);
    const std::int64_t elements =
        std::max(got.batch * got.seq_q * got.heads_q, got.batch * got.seq_kv * got.heads_kv) * 128;
    RC_ASSERT(elements <= limit || (got.batch == 1 && got.heads_kv == 1));
    const std::int64_t asked = std::max(wanted.batch * wanted.seq_q * wanted.heads_q,
                                        wanted.batch * wanted.seq_kv * wanted.heads_kv) *
                               128;
    if (asked <= limit) RC_ASSERT(got == wanted);
  });
}
