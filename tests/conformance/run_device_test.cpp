// What is left of a run in which the device cannot run a case.
#include "tests/conformance/run_device.hpp"

#include <algorithm>
#include <filesystem>

#include "runtime/cuda/cuda_backend.hpp"
#include "tests/support/fake_driver.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::conformance;
using flashwright::testing::FakeDriver;

namespace {

// Two cases of each of two groups, for a driver that takes every binary.
std::vector<DeviceCase> four_cases() {
  std::vector<DeviceCase> cases;
  for (const char* group : {"math", "memory"}) {
    std::size_t left = 2;
    for (const Case& c : all_cases()) {
      if (c.group != group || !fits(c, "sm_80") || left == 0) continue;
      --left;
      Binary binary;
      binary.target = {BackendKind::cuda, "sm_80"};
      binary.bytes = "binary";
      cases.push_back({&c, source_of(c, "sm_80"), binary, ""});
    }
  }
  return cases;
}

FakeDriver& ready_driver() {
  FakeDriver& driver = FakeDriver::fresh();
  driver.entries = {kEntry};
  driver.param_bytes = sizeof(Params);
  return driver;
}

std::string folder() {
  return (std::filesystem::temp_directory_path() / "fw_conformance_run_device").string();
}

DeviceRun run(const std::vector<DeviceCase>& cases) {
  std::filesystem::remove_all(folder());
  GoldenWriter writer(folder(), {"", "fake", "sm_80", "", "", {}});
  const auto backend = make_cuda_backend(&testing::fake_driver_table());
  return run_on_device(*backend, cases, 0, writer);
}

// The number of the n-th call of a name, from 1 on.
int number_of(const std::vector<std::string>& calls, const std::string& name, int n) {
  for (std::size_t i = 0; i < calls.size(); ++i)
    if (calls[i] == name && --n == 0) return static_cast<int>(i) + 1;
  return 0;
}

bool written(const std::string& group) {
  return std::filesystem::exists(folder() + "/" + group + ".json");
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("a case that kills the context is named, with those that were not run") {
  const std::vector<DeviceCase> cases = four_cases();
  REQUIRE(cases.size() == 4);
  const FakeDriver& healthy = ready_driver();
  CHECK(run(cases).ran == 4);
  CHECK(written("math"));
  CHECK(written("memory"));
  const std::vector<std::string> calls = healthy.calls;

  FakeDriver& driver = ready_driver();
  driver.fail_at = number_of(calls, "cuStreamSynchronize", 3);
  REQUIRE(driver.fail_at > 0);
  driver.failure = 715;
  driver.dies = true;
  const DeviceRun result = run(cases);
  CHECK(result.ran == 2);
  REQUIRE(!result.faults.empty());
  const std::string& fault = result.faults.back();
  CHECK(testing::contains(fault, full_name(*cases[2].of) + ": failed on the device: "));
  CHECK(testing::contains(fault, "cuStreamSynchronize"));
  CHECK(testing::contains(fault, "not run behind it:\n  " + full_name(*cases[3].of)));
  CHECK(written("math"));
  CHECK(!written("memory"));
}

TEST_CASE("a case that does not compile is named, and the others run") {
  std::vector<DeviceCase> cases = four_cases();
  cases[1].fault = "a log";
  ready_driver();
  const DeviceRun result = run(cases);
  CHECK(result.ran == 3);
  const std::string fault = full_name(*cases[1].of) + ": not compiled: a log";
  CHECK(std::count(result.faults.begin(), result.faults.end(), fault) == 1);
  CHECK(written("memory"));
}
