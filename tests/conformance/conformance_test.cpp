// The emulator against what the PTX manual says, and against what a device wrote.
#include <algorithm>
#include <filesystem>
#include <map>

#include "tests/conformance/golden.hpp"
#include "tests/conformance/run_device.hpp"
#include "tests/conformance/run_emulator.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::conformance;

namespace {

constexpr const char* kGolden = FW_SOURCE_DIR "/tests/conformance/golden";
constexpr const char* kGroups[] = {"math", "memory", "matrix",  "threads",
                                   "tma",  "wgmma",  "barriers"};

std::vector<const Case*> group_cases(const std::string& group) {
  std::vector<const Case*> cases;
  for (const Case& c : all_cases())
    if (c.group == group) cases.push_back(&c);
  return cases;
}

// Units of all cases of a group; kept, since two tests run them.
const std::vector<CompiledCase>& compiled(const std::string& group) {
  static std::map<std::string, std::vector<CompiledCase>> kept;
  if (kept.count(group) == 0) kept[group] = compile_for_host(group_cases(group));
  return kept[group];
}

bool compiler_here(const std::string& group) {
  if (!emulator::host_compiler().empty()) return true;
  testing::skip("conformance of " + group, "no host compiler");
  return false;
}

// The emulator against the manual, in every mode and without a finding.
void check_manual(const std::string& group) {
  if (!compiler_here(group)) return;
  const std::vector<const Case*> cases = group_cases(group);
  CHECK(!cases.empty());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const CompiledCase& unit = compiled(group)[i];
    CAPTURE(cases[i]->name);
    CHECK(unit.fault == "");
    if (unit.unit == nullptr) continue;
    for (const emulator::Mode mode : {emulator::Mode::early, emulator::Mode::late,
                                      emulator::Mode::random, emulator::Mode::skew}) {
      CAPTURE(std::string(emulator::to_string(mode)));
      const Emulated result = emulate(*cases[i], *unit.unit, mode);
      CHECK(result.findings == "");
      CHECK(difference_from_manual(*cases[i], result.output) == "");
    }
  }
}

// The emulator against a device, and the device against the manual.
void check_device(const std::string& group) {
  const std::string path = std::string(kGolden) + "/" + group + ".json";
  if (!std::filesystem::exists(path))
    return testing::skip("conformance of " + group + " with a device",
                         "no golden data; bench/gpu/conformance.sh makes it");
  if (!compiler_here(group)) return;
  const GoldenFile file = read_golden(path).front();
  const std::vector<const Case*> cases = group_cases(group);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (!fits(*cases[i], file.target)) continue;
    CAPTURE(cases[i]->name);
    CHECK(difference_from_manual(*cases[i], file) == "");
    const CompiledCase& unit = compiled(group)[i];
    CHECK(unit.fault == "");
    if (unit.unit == nullptr) continue;
    const Emulated result = emulate(*cases[i], *unit.unit, emulator::Mode::early);
    CHECK(difference(*cases[i], file, result.output) == "");
  }
}

}  // namespace

TEST_SUITE_BEGIN("emulator");

TEST_CASE("all groups are tested") {
  for (const Case& c : all_cases()) {
    CAPTURE(c.name);
    CHECK(std::find(std::begin(kGroups), std::end(kGroups), c.group) != std::end(kGroups));
  }
}

TEST_CASE("math as in the manual") { check_manual("math"); }
TEST_CASE("memory as in the manual") { check_manual("memory"); }
TEST_CASE("matrices as in the manual") { check_manual("matrix"); }
TEST_CASE("threads as in the manual") { check_manual("threads"); }
TEST_CASE("TMA as in the manual") { check_manual("tma"); }
TEST_CASE("wgmma as in the manual") { check_manual("wgmma"); }
TEST_CASE("barriers as in the manual") { check_manual("barriers"); }

TEST_CASE("math as on a device") { check_device("math"); }
TEST_CASE("memory as on a device") { check_device("memory"); }
TEST_CASE("matrices as on a device") { check_device("matrix"); }
TEST_CASE("threads as on a device") { check_device("threads"); }
TEST_CASE("TMA as on a device") { check_device("tma"); }
TEST_CASE("wgmma as on a device") { check_device("wgmma"); }
TEST_CASE("barriers as on a device") { check_device("barriers"); }
