// The option `device`: what an engine answers for, whatever is present.
#include "api/named_device.hpp"

#include <nlohmann/json.hpp>

#include "api/reports.hpp"
#include "core/device_profiles.hpp"
#include "flashwright/flashwright.h"
#include "tests/api/fake_devices.hpp"
#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"
#include "tuner/space.hpp"

using namespace flashwright;
using namespace flashwright::testing;
using nlohmann::json;

namespace {

constexpr Shape kShape{4, 16, 16, 4096, 4096};

EngineOptions for_device(const std::string& name) {
  EngineOptions options = in_memory();
  options.device = device_profile(name);
  return options;
}

std::string with_target(const std::string& target) {
  return R"({"dtype":"fp32","head_dim":16,"target":")" + target + "\"}";
}

}  // namespace

TEST_CASE("without a named device the target decides") {
  fresh_machine();
  CHECK(device_for("", nullptr).present);
  CHECK(device_for("sm_90a", nullptr).name == "NVIDIA H100 SXM");
}

TEST_CASE("a named device is what every target that it runs means") {
  Machine& m = fresh_machine();
  const DeviceInfo h200 = device_profile("h200");
  for (const char* target : {"", "cuda", "sm_90a", "sm_90"}) {
    const DeviceInfo device = device_for(target, &h200);
    INFO(target);
    CHECK(device.name == "NVIDIA H200 SXM");
    CHECK(!device.present);
    CHECK(device.target.arch == (std::string(target) == "sm_90" ? "sm_90" : "sm_90a"));
  }
  for (const char* target : {"cpu", "sm_80", "sm_100", "cpu:avx2"}) {
    const Error error = error_of([&] { device_for(target, &h200); });
    CHECK(error.status == Status::bad_argument);
    CHECK(error.message ==
          std::string("target: given '") + target +
              "'; expected sm_90a, which the device NVIDIA H200 SXM is, or nothing");
  }
  CHECK(contains(error_of([&] { device_for("sm_12", &h200); }).message, "sm_12"));
  DeviceInfo processor = assumed_device({BackendKind::cpu, "avx2"});
  CHECK(contains(error_of([&] { device_for("cuda", &processor); }).message, "expected cpu:avx2"));

  // One of the same class that is here is as good, and runs kernels as well.
  m.devices.push_back(h200);
  m.devices.back().name = "the one in the machine";
  m.devices.back().index = 1;
  m.devices.back().present = true;
  const DeviceInfo device = device_for("sm_90", &h200);
  CHECK(device.name == "the one in the machine");
  CHECK(device.index == 1);
  CHECK(device.target.arch == "sm_90");
  m.devices.back().l2_bytes /= 2;  // another class
  CHECK(!device_for("sm_90", &h200).present);
}

TEST_CASE("what was tuned for a device is what is emitted, compiled and explained for it") {
  fresh_machine();
  const test::Folder folder;
  EngineOptions options = for_device("h200");
  options.artifacts.directory = options.tuning.directory = folder.path();
  std::string winner;
  {
    Engine plain(in_folder(folder.path()));
    const DeviceInfo h200 = device_profile("h200");
    Decision decision;
    decision.schedule = winner = kSchedules[2];
    decision.baseline = kSchedules[0];
    const Request request = plain.prepare_request(with_target("sm_90a"), &h200);
    plain.tuning().put_decision(make_slot(request.problem, h200, kShape), decision);
    // The device that is assumed for the target is another one.
    CHECK(json::parse(explain(plain, with_target("sm_90a"), &kShape))["chosen_by"] == "default");
  }
  Engine engine(options);
  for (const char* target : {"sm_90a", ""}) {
    const json told = json::parse(explain(engine, with_target(target), &kShape));
    CHECK(told["schedule"] == winner);
    CHECK(told["chosen_by"] == "predicted");
    CHECK(told["device"]["name"] == "NVIDIA H200 SXM");
    const Request request = engine.prepare_request(with_target(target));
    CHECK(contains(engine.compile(request, engine.select(request, kShape).schedule).source.text,
                   winner));
    CHECK(json::parse(normalised(engine, with_target(target)))["target"] == "sm_90a");
  }
  CHECK(engine.tune(kConfig, kShape, nullptr, {}).slot.device == device_class(*engine.device()));
  const DeviceInfo h100 = device_profile("h100");
  CHECK(engine.tune(kConfig, kShape, &h100, {}).slot.device == device_class(h100));
}

TEST_CASE("what has to run says that the named device is not here") {
  Machine& m = fresh_machine();
  Engine engine(for_device("h200"));
  for (const Error& error :
       {error_of([&] { engine.get_kernel(kConfig, nullptr, Effort::compile); }),
        error_of([&] { engine.bench(kConfig, kShape, false, 0); })}) {
    CHECK(error.status == Status::unavailable);
    CHECK(contains(error.message,
                   "no device for 'sm_90a' is present of the class of NVIDIA H200 SXM"));
  }
  CHECK(m.cuda.compilations == 0);
}

TEST_CASE("the option takes a name or a profile, in the C interface too") {
  CHECK(engine_options_from_json(R"({"device":"l40s"})").device->name == "NVIDIA L40S");
  const std::vector<std::pair<std::string, std::string>> table = {
      {R"({"device":"h300"})", "device: 'h300' is unknown; known: a100"},
      {R"({"device":7})", "device: given 7; expected the name of a known device (a100"},
      {R"({"device":{"target":"sm_80"}})", "sm_count, clock_ghz and l2_bytes are required"},
      {R"({"device":{"target":"sm_80","speed":1}})", "unknown field 'speed'"}};
  for (const auto& [options, part] : table) {
    flashwright_engine* engine = nullptr;
    CHECK(flashwright_engine_create(options.c_str(), &engine) == FLASHWRIGHT_BAD_ARGUMENT);
    INFO(flashwright_last_error());
    CHECK(contains(flashwright_last_error(), part));
    CHECK(engine == nullptr);
  }
  fresh_machine();
  flashwright_engine* engine = nullptr;
  REQUIRE(flashwright_engine_create(
              R"({"cache_dir":":memory:","data_dir":":memory:","device":
                  {"target":"sm_86","sm_count":20,"clock_ghz":1.5,"l2_bytes":2097152}})",
              &engine) == FLASHWRIGHT_OK);
  char* text = nullptr;
  CHECK(flashwright_normalise(engine, kConfig, &text) == FLASHWRIGHT_OK);
  CHECK(json::parse(text)["target"] == "sm_86");
  flashwright_free(text);
  CHECK(flashwright_supports(engine, with_target("sm_80").c_str(), &text) == FLASHWRIGHT_OK);
  CHECK(std::string(text) == "[]");  // the older minor runs on it
  flashwright_free(text);
  CHECK(flashwright_supports(engine, with_target("sm_90").c_str(), &text) == FLASHWRIGHT_OK);
  CHECK(contains(text, "expected sm_86"));
  flashwright_free(text);
  flashwright_engine_release(engine);
}
