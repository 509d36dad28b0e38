// From a Config to a kernel: efforts, single flight, restarts, failures.
#include <set>
#include <thread>

#include "api/engine.hpp"
#include "core/log.hpp"
#include "tests/api/fake_devices.hpp"
#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"
#include "tuner/space.hpp"

using namespace flashwright;
using namespace flashwright::testing;

TEST_CASE("many threads that want one kernel compile it once and get the same") {
  Machine& m = fresh_machine();
  m.cuda.compile_seconds = 0.2;
  {
    Engine engine(in_memory());
    std::vector<const Kernel*> kernels(32);
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < kernels.size(); ++i)
        threads.emplace_back(
            [&, i] { kernels[i] = engine.get_kernel(kConfig, nullptr, Effort::compile); });
    }
    CHECK(m.cuda.compilations == 1);
    CHECK(m.cuda.loads == 1);
    for (const Kernel* kernel : kernels) CHECK(kernel->code == kernels.front()->code);
    for (const Kernel* kernel : kernels) release(kernel);
  }
  CHECK(m.cuda.alive == 0);
}

TEST_CASE("Configs that differ in run-time values share the code and keep their values") {
  Machine& m = fresh_machine();
  Engine engine(in_memory());
  const Held a(engine.get_kernel(kConfig, nullptr, Effort::compile));
  const Held b(engine.get_kernel(R"({"dtype":"fp32","head_dim":16,"softmax_scale":3})", nullptr,
                                 Effort::compile));
  const Held c(engine.get_kernel(R"({"head_dim":16,"dtype":"fp32"})", nullptr, Effort::compile));
  CHECK(m.cuda.compilations == 1);
  CHECK(a->code == b->code);
  CHECK(a->code == c->code);
  CHECK(b->config.softmax_scale == 3.0);
  CHECK(!a->config.softmax_scale);
}

TEST_CASE("each effort goes as far as it says") {
  Machine& m = fresh_machine();
  const test::Folder folder;
  {
    Engine engine(in_folder(folder.path()));
    const Error loaded = error_of([&] { engine.get_kernel(kConfig, nullptr, Effort::loaded); });
    CHECK(loaded.status == Status::not_cached);
    for (const char* part : {"forward fp32 d16", kSchedules[0].c_str(), "not loaded", "'loaded'"})
      CHECK(contains(loaded.message, part));
    const Error cached = error_of([&] { engine.get_kernel(kConfig, nullptr, Effort::cached); });
    CHECK(cached.status == Status::not_cached);
    for (const std::string& part : {std::string("forward fp32 d16"), folder.path(),
                                    std::string("'cached'"), std::string("prepare()")})
      CHECK(contains(cached.message, part));
    CHECK(m.cuda.compilations == 0);
    const Held compiled(engine.get_kernel(kConfig, nullptr, Effort::compile));
    CHECK(m.cuda.compilations == 1);
    CHECK(compiled->selection.choice == Choice::by_default);
    const Held again(engine.get_kernel(kConfig, nullptr, Effort::loaded));
    CHECK(again->code == compiled->code);
    const Shape shape{1, 1, 1, 20, 20};
    const Held tuned(engine.get_kernel(kConfig, &shape, Effort::tune));
    CHECK(tuned->selection.choice == Choice::measured);
  }
  m.cuda.compilations = 0;
  EngineOptions capped = in_folder(folder.path());
  capped.effort = Effort::cached;
  Engine engine(capped);
  const Held stored(engine.get_kernel(kConfig, nullptr, Effort::tune));
  CHECK(stored->code->built.from_store);
  CHECK(error_of([&] { engine.get_kernel(R"({"head_dim":32})", nullptr, Effort::tune); }).status ==
        Status::not_cached);
  CHECK(m.cuda.compilations == 0);
}

TEST_CASE("a store without a file is named, too") {
  fresh_machine();
  Engine engine(in_memory());
  const Error error = error_of([&] { engine.get_kernel(kConfig, nullptr, Effort::cached); });
  CHECK(contains(error.message, "is not in the store :memory:, and the effort allowed"));
}

TEST_CASE("every way to a compilation leaves its files where developers want them") {
  fresh_machine();
  const test::Folder folder;
  const test::Environment set(test::Variables{{"FLASHWRIGHT_DUMP_DIR", folder.path()}});
  const auto has = [&](const std::string& schedule) {
    int files = 0;
    for (const std::string& name : test::files_in(folder))
      files += contains(name, "-" + schedule + "-") ? 1 : 0;
    return files == 2;  // source and binary
  };
  release(Engine(in_memory()).get_kernel(kConfig, nullptr, Effort::compile));
  CHECK(has(kSchedules[0]));
  Engine engine(in_memory());
  engine.compile(engine.prepare_request(kConfig), parse_schedule(kSchedules[1]));
  CHECK(has(kSchedules[1]));
  CHECK(!has(kSchedules[2]));
  engine.tune(kConfig, {1, 1, 1, 20, 20}, nullptr, {});
  CHECK(has(kSchedules[2]));
}

TEST_CASE("kernels live as long as somebody holds them") {
  Machine& m = fresh_machine();
  const Kernel* kernel = nullptr;
  {
    Engine engine(in_memory());
    kernel = engine.get_kernel(kConfig, nullptr, Effort::compile);
    const Held other(engine.get_kernel(kConfig, nullptr, Effort::compile));
    CHECK(other.get() == kernel);
  }
  CHECK(m.cuda.alive == 1);
  CHECK(kernel->code->built.schedule == parse_schedule(kSchedules[0]));
  release(kernel);
  CHECK(m.cuda.alive == 0);
}

TEST_CASE("a failed compilation fails every waiter, and the next caller tries again") {
  Landscape landscape;
  landscape[kSchedules[0]].compiles = false;
  Machine& m = fresh_machine(landscape);
  m.cuda.compile_seconds = 0.1;
  Engine engine(in_memory());
  std::atomic<int> failures{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i)
      threads.emplace_back([&] {
        try {
          engine.get_kernel(kConfig, nullptr, Effort::compile);
        } catch (const Error& error) {
          failures +=
              error.status == Status::compile_failed && contains(error.message, "is not wanted");
        }
      });
  }
  CHECK(failures == 8);
  const int before = m.cuda.compilations;
  CHECK(before < 8);
  error_of([&] { engine.get_kernel(kConfig, nullptr, Effort::compile); });
  CHECK(m.cuda.compilations == before + 1);
}

TEST_CASE("without a compiler the store still serves, and what it lacks is named") {
  Machine& m = fresh_machine();
  const test::Folder folder;
  { release(Engine(in_folder(folder.path())).get_kernel(kConfig, nullptr, Effort::compile)); }
  m.cuda.compiler_lacks = "NVRTC was not found";
  Engine engine(in_folder(folder.path()));
  const Held stored(engine.get_kernel(kConfig, nullptr, Effort::compile));
  CHECK(stored->code->built.from_store);
  const Error error =
      error_of([&] { engine.get_kernel(R"({"head_dim":32})", nullptr, Effort::compile); });
  CHECK(error.status == Status::unavailable);
  CHECK(contains(error.message, "forward bf16 d32"));
  CHECK(contains(error.message, "NVRTC was not found"));
}

TEST_CASE("a target that is not there emits, compiles and tunes, and launches nothing") {
  Machine& m = fresh_machine();
  Engine engine(in_memory());
  const std::string config = R"({"head_dim":16,"target":"sm_90a"})";
  const Error error = error_of([&] { engine.get_kernel(config, nullptr, Effort::compile); });
  CHECK(error.status == Status::unavailable);
  CHECK(contains(error.message, "sm_90a"));
  const Request request = engine.prepare_request(config);
  CHECK(!request.device.present);
  CHECK(engine.compile(request, engine.select(request, typical_shape()).schedule)
            .binary.target.arch == "sm_90a");
  CHECK(engine.tune(config, typical_shape(), nullptr, {}).decision->grade == Grade::predicted);
  CHECK(error_of([&] { engine.bench(config, typical_shape(), false, 0); }).status ==
        Status::unavailable);
  CHECK(m.cuda.launches == 0);
}

TEST_CASE("a Config that is wrong, or cannot be done, is refused with every reason") {
  fresh_machine();
  Engine engine(in_memory());
  CHECK(error_of([&] {
          engine.get_kernel(R"({"head_dim":7,"dropout":2})", nullptr, Effort::compile);
        }).status == Status::bad_argument);
  const Error error = error_of([&] {
    engine.get_kernel(R"({"head_dim":16,"mask":"causal","dropout":0.1})", nullptr, Effort::compile);
  });
  CHECK(error.status == Status::unsupported);
  CHECK(contains(error.message, "fake: mask is causal"));
  CHECK(contains(error.message, "fake: dropout is on"));
  CHECK(reasons_against_config(R"({"head_dim":7,"dropout":2})").size() == 2);
  CHECK(reasons_against_config(R"({"head_dim":16,"mask":"causal","dropout":0.1})").size() == 2);
  CHECK(reasons_against_config(kConfig).empty());
  CHECK(contains(reasons_against_config(R"({"head_dim":16,"schedule":"q1"})").front(),
                 "no such schedule"));
  CHECK(contains(reasons_against_config(R"({"head_dim":16,"target":"cpu"})").front(),
                 "plugin was not built"));
  CHECK(contains(reasons_against_config(R"({"head_dim":16,"target":"sm_12"})").front(), "sm_12"));
}

TEST_CASE("tuning makes the next call choose anew") {
  Landscape landscape;
  landscape[kSchedules[1]].time_us = 40;
  fresh_machine(landscape);
  Engine engine(in_memory());
  const Shape shape{1, 1, 1, 20, 20};
  const Held before(engine.get_kernel(kConfig, &shape, Effort::compile));
  CHECK(before.schedule() == kSchedules[0]);
  CHECK(engine.tune(kConfig, shape, nullptr, {}).decision->schedule == kSchedules[1]);
  const Held after(engine.get_kernel(kConfig, &shape, Effort::compile));
  CHECK(after.schedule() == kSchedules[1]);
  CHECK(before.schedule() == kSchedules[0]);  // in the hands of its holder nothing changes
}

TEST_CASE("many Configs are prepared at once; one that fails does not stop the rest") {
  fresh_machine();
  Engine engine(in_memory());
  int told = 0;
  const std::string report =
      engine.prepare(R"([{"head_dim":8},{"head_dim":9},{"head_dim":16},"x"])", Effort::compile,
                     [&](std::int64_t done, std::int64_t total, const std::string&) {
                       CHECK(done == ++told);
                       CHECK(total == 4);
                       return true;
                     });
  CHECK(told == 4);
  for (const char* part : {"\"ready\"", "\"failed\"", "head_dim is 9", kSchedules[0].c_str()})
    CHECK(contains(report, part));
  const Error stopped = error_of([&] {
    engine.prepare(R"([{"head_dim":8},{"head_dim":16},{"head_dim":24}])", Effort::compile,
                   [](std::int64_t, std::int64_t, const std::string&) { return false; });
  });
  CHECK(stopped.status == Status::interrupted);
  CHECK(contains(stopped.message, "of 3"));
  CHECK(error_of([&] { engine.prepare("{}", Effort::compile, {}); }).status ==
        Status::bad_argument);
  CHECK(error_of([&] { engine.prepare("[", Effort::compile, {}); }).status == Status::bad_argument);
}

TEST_CASE("engine options that are wrong are refused by name") {
  const test::Environment clean(test::Variables{{"FLASHWRIGHT_EFFORT", std::nullopt}});
  CHECK(engine_options_from_json("").effort == Effort::tune);
  CHECK(engine_options_from_json(R"({"effort":"cached","jobs":3,"max_bytes":5})").effort ==
        Effort::cached);
  const std::vector<std::pair<std::string, std::vector<std::string>>> table = {
      {R"({"cachedir":"x"})", {"unknown field 'cachedir'", "cache_dir"}},
      {R"({"effort":"hard"})", {"effort", "'hard'", "loaded, cached"}},
      {R"({"jobs":"many"})", {"engine options"}},
      {"{", {"engine options"}}};
  for (const auto& [json, named] : table) {
    const Error error = error_of([&json = json] { engine_options_from_json(json); });
    CHECK(error.status == Status::bad_argument);
    for (const std::string& part : named) CHECK(contains(error.message, part));
  }
  const test::Environment low(test::Variables{{"FLASHWRIGHT_EFFORT", "compile"}});
  CHECK(engine_options_from_json("").effort == Effort::compile);
  CHECK(engine_options_from_json(R"({"effort":"tune"})").effort == Effort::tune);
  const test::Environment bad(test::Variables{{"FLASHWRIGHT_EFFORT", "much"}});
  CHECK(contains(error_of([] { engine_options_from_json(""); }).message,
                 "FLASHWRIGHT_EFFORT is 'much'"));
}

TEST_CASE("a variable that nobody reads is told once per engine") {
  fresh_machine();
  const test::Environment typo(test::Variables{{"FLASHWRIGHT_CACHEDIR", "/tmp"}});
  test::Log log;
  const Engine engine(in_memory());
  REQUIRE(log.warnings().size() == 1);
  CHECK(contains(log.warnings().front(), "FLASHWRIGHT_CACHEDIR"));
}
