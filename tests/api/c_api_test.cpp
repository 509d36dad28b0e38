// The C interface over a made-up device: errors, options, texts, memory.
#include <nlohmann/json.hpp>
#include <thread>

#include "flashwright/flashwright.h"
#include "tests/api/fake_devices.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

// An engine in memory, released at the end.
struct CEngine {
  flashwright_engine* engine = nullptr;
  CEngine() {
    fresh_machine();
    REQUIRE(flashwright_engine_create(R"({"cache_dir":":memory:","data_dir":":memory:","jobs":1})",
                                      &engine) == FLASHWRIGHT_OK);
  }
  ~CEngine() { flashwright_engine_release(engine); }
};

// What a function that hands out a text gives.
template <typename Call>
std::string text_of(Call&& call) {
  char* text = nullptr;
  const flashwright_status status = call(&text);
  INFO(flashwright_last_error());
  CHECK(status == FLASHWRIGHT_OK);
  const std::string out = text == nullptr ? "" : text;
  flashwright_free(text);
  return out;
}

}  // namespace

TEST_CASE("errors are those of the calling thread, and stay until its next failure") {
  const CEngine c;
  char* text = nullptr;
  CHECK(flashwright_normalise(c.engine, R"({"head_dim":3})", &text) == FLASHWRIGHT_BAD_ARGUMENT);
  CHECK(contains(flashwright_last_error(), "head_dim is 3"));
  std::jthread([&] {
    CHECK(std::string(flashwright_last_error()) == "");
    char* other = nullptr;
    CHECK(flashwright_normalise(c.engine, "{", &other) == FLASHWRIGHT_BAD_ARGUMENT);
    CHECK(contains(flashwright_last_error(), "not JSON"));
  }).join();
  CHECK(text_of([&](char** out) { return flashwright_normalise(c.engine, kConfig, out); }) != "");
  CHECK(contains(flashwright_last_error(), "head_dim is 3"));
  CHECK(text == nullptr);
}

TEST_CASE("a compiler's log is the detail of the error") {
  const CEngine c;
  Landscape landscape;
  landscape[kSchedules[0]].compiles = false;
  fresh_machine(landscape);
  flashwright_kernel* kernel = nullptr;
  CHECK(flashwright_get_kernel(c.engine, kConfig, nullptr, FLASHWRIGHT_COMPILE, &kernel) ==
        FLASHWRIGHT_COMPILE_FAILED);
  CHECK(kernel == nullptr);
  CHECK(contains(flashwright_last_error(), "is not wanted"));
  CHECK(std::string(flashwright_last_error_detail()) == "log");
}

TEST_CASE("questions are answered in JSON") {
  const CEngine c;
  CHECK(text_of([&](char** out) { return flashwright_supports(c.engine, kConfig, out); }) == "[]");
  CHECK(contains(text_of([&](char** out) {
                   return flashwright_supports(c.engine, R"({"head_dim":16,"mask":"causal"})", out);
                 }),
                 "mask is causal"));
  const flashwright_shape shape = {1, 2, 2, 30, 30};
  CHECK(contains(
      text_of([&](char** out) { return flashwright_explain(c.engine, kConfig, &shape, out); }),
      "\"why\""));
  CHECK(contains(text_of([&](char** out) { return flashwright_doctor(c.engine, out); }),
                 "\"devices\""));
  CHECK(contains(
      text_of([&](char** out) { return flashwright_cache(c.engine, "path", nullptr, out); }),
      ":memory:"));
  CHECK(text_of([&](char** out) { return flashwright_emit(c.engine, kConfig, nullptr, out); }) ==
        kSchedules[0] + "\n16\nfp32\n");
}

TEST_CASE("a compilation hands out its report and the machine code") {
  const CEngine c;
  char* binary = nullptr;
  size_t bytes = 0;
  const std::string report = text_of([&](char** out) {
    return flashwright_compile(c.engine, kConfig, nullptr, out, &binary, &bytes);
  });
  CHECK(contains(report, "\"registers\":128"));
  CHECK(std::string(binary, bytes) == kSchedules[0] + "\n16\nfp32\n");
  flashwright_free(binary);
}

TEST_CASE("sizes, efforts and options that make no sense are refused") {
  const CEngine c;
  flashwright_kernel* kernel = nullptr;
  char* text = nullptr;
  const std::int64_t big = std::int64_t{1} << 31;
  for (const flashwright_shape& shape : {flashwright_shape{0, 1, 1, 1, 1},
                                         {1, 3, 2, 1, 1},
                                         {1, 1, 0, 1, 1},
                                         {1, 1, 1, -1, 1},
                                         {1, 1, 1, 1, std::int64_t{1} << 30},
                                         {big, 2, 1, 1, 1},
                                         {big * 2, 1, 1, 1, 1}}) {
    CHECK(flashwright_get_kernel(c.engine, kConfig, &shape, FLASHWRIGHT_COMPILE, &kernel) ==
          FLASHWRIGHT_BAD_ARGUMENT);
    CHECK(contains(flashwright_last_error(), "shape: given b" + std::to_string(shape.batch)));
    CHECK(contains(flashwright_last_error(), "expected"));
  }
  for (const int effort : {-1, 4}) {
    CHECK(flashwright_get_kernel(c.engine, kConfig, nullptr, effort, &kernel) ==
          FLASHWRIGHT_BAD_ARGUMENT);
    CHECK(contains(flashwright_last_error(), "effort: given " + std::to_string(effort)));
  }
  const std::vector<std::pair<std::string, std::string>> options = {
      {"[]", "expected a JSON object"},
      {"5", "expected a JSON object"},
      {"{", "not JSON"},
      {R"({"budget":1})", "unknown field 'budget'"},
      {R"({"budget_s":-1})", "budget_s is -1"},
      {R"({"budget_s":"long"})", "budget_s is \"long\""},
      {R"({"device":"h300"})", "'h300'"},
      {R"({"device":{"target":"sm_80"}})", "sm_count"}};
  for (const auto& [json, part] : options) {
    INFO(json);
    CHECK(flashwright_tune(c.engine, kConfig, nullptr, json.c_str(), nullptr, nullptr, &text) ==
          FLASHWRIGHT_BAD_ARGUMENT);
    CHECK(contains(flashwright_last_error(), part));
  }
  for (const char* json : {R"({"against":"torch"})", R"({"against":5})"}) {
    CHECK(flashwright_bench(c.engine, kConfig, nullptr, json, &text) == FLASHWRIGHT_BAD_ARGUMENT);
    CHECK(contains(flashwright_last_error(), "against"));
  }
  CHECK(machine().cuda.compilations == 0);
}

TEST_CASE("tuning reports progress, stops when asked, and shows its result") {
  const CEngine c;
  const flashwright_shape shape = {1, 2, 2, 30, 30};
  int events = 0;
  const flashwright_progress count = [](void* user, std::int64_t, std::int64_t,
                                        const char* event) -> std::int32_t {
    ++*static_cast<int*>(user);
    return nlohmann::json::parse(event).contains("stage") ? 0 : 1;
  };
  const std::string report = text_of([&](char** out) {
    return flashwright_tune(c.engine, kConfig, &shape, R"({"budget_s":10})", count, &events, out);
  });
  CHECK(events > 5);
  CHECK(contains(report, "\"decision\""));
  const flashwright_progress stop = [](void*, std::int64_t, std::int64_t,
                                       const char*) -> std::int32_t { return 1; };
  CHECK(contains(text_of([&](char** out) {
                   return flashwright_tune(c.engine, kConfig, &shape, nullptr, stop, nullptr, out);
                 }),
                 "\"interrupted\":true"));
  char* text = nullptr;
  CHECK(flashwright_prepare(c.engine, R"([{"head_dim":8},{"head_dim":16}])", FLASHWRIGHT_COMPILE,
                            stop, nullptr, &text) == FLASHWRIGHT_INTERRUPTED);
  // For a device that is absent: by name, or as a profile.
  for (const char* options :
       {R"({"device":"h100"})",
        R"({"device":{"target":"sm_86","sm_count":84,"clock_ghz":1.7,"l2_bytes":6291456}})"})
    CHECK(contains(text_of([&](char** out) {
                     return flashwright_tune(c.engine, kConfig, &shape, options, nullptr, nullptr,
                                             out);
                   }),
                   "\"grade\":\"predicted\""));
}

TEST_CASE("log lines go to the callback") {
  std::vector<std::string> lines;
  flashwright_set_log(
      [](void* user, std::int32_t level, const char* line) {
        static_cast<std::vector<std::string>*>(user)->push_back(std::to_string(level) + line);
      },
      &lines, 2);
  {
    const CEngine c;
    flashwright_kernel* kernel = nullptr;
    CHECK(flashwright_get_kernel(c.engine, kConfig, nullptr, FLASHWRIGHT_COMPILE, &kernel) ==
          FLASHWRIGHT_OK);
    flashwright_kernel_release(kernel);
  }
  flashwright_set_log(nullptr, nullptr, 1);
  REQUIRE(lines.size() >= 1);
  CHECK(contains(lines.back(), "2compiled forward fp32 d16"));
}

TEST_CASE("memory of a target can be had, filled and read") {
  const CEngine c;
  void* memory = nullptr;
  CHECK(flashwright_allocate(c.engine, "cuda", 100, &memory) == FLASHWRIGHT_OK);
  const std::string text(100, 'x');
  std::string back(100, ' ');
  CHECK(flashwright_copy_to_device(c.engine, nullptr, memory, text.data(), text.size()) ==
        FLASHWRIGHT_OK);
  CHECK(flashwright_copy_to_host(c.engine, "", back.data(), memory, back.size()) == FLASHWRIGHT_OK);
  CHECK(back == text);
  CHECK(flashwright_synchronize(c.engine, "cuda", nullptr) == FLASHWRIGHT_OK);
  CHECK(flashwright_deallocate(c.engine, "cuda", memory) == FLASHWRIGHT_OK);
  CHECK(machine().cuda.memory_blocks == 0);
  CHECK(flashwright_allocate(c.engine, "cpu", 100, &memory) == FLASHWRIGHT_UNAVAILABLE);
  CHECK(contains(flashwright_last_error(), "plugin was not built"));
  const flashwright_executor executor = {0, nullptr, nullptr};
  CHECK(flashwright_set_executor(c.engine, &executor) == FLASHWRIGHT_BAD_ARGUMENT);
}
