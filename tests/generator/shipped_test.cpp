// Every schedule of share/tuned/ has to be legal on the device that its file is for, and to compile for it.
#include <algorithm>
#include <array>
#include <iostream>
#include <sstream>

#include "cache/decision_file.hpp"
#include "core/device_profiles.hpp"
#include "core/dtype.hpp"
#include "tests/generator/nvrtc_runs.hpp"
#include "tests/support/testing.hpp"
#include "tuner/space.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

// As for the defaults of sm90: what a loop over query tiles keeps aside and reads once in each turn.
constexpr int kSomeRegisters = 64;

struct ShippedKernel {
  NamedKernel kernel;
  DeviceInfo device;
  Shape shape;  // of its bucket
};

// The inverse of to_string(Problem), for what GPU families compile without further options.
Problem problem_of(const std::string& text) {
  std::istringstream words(text);
  std::string word;
  Problem problem;
  words >> word >> word;
  problem.dtype = parse_dtype(word).value();
  words >> word;
  const std::size_t slash = word.find('/');
  problem.head_dim = std::stoi(word.substr(1, slash - 1));
  problem.head_dim_v =
      slash == std::string::npos ? problem.head_dim : std::stoi(word.substr(slash + 1));
  words >> word;
  for (const auto kind : {Mask::Kind::causal, Mask::Kind::window, Mask::Kind::blocks})
    if (word == to_string(kind)) problem.mask = kind;
  while (words >> word) {
    problem.dropout = problem.dropout || word == "dropout";
    problem.softcap = problem.softcap || word == "softcap";
    problem.alibi = problem.alibi || word == "alibi";
  }
  problem.target = parse_target(word);
  INFO(text);
  REQUIRE(to_string(problem) == text);
  return problem;
}

// A shape of the bucket.
Shape shape_of(const std::string& text, const DeviceInfo& device) {
  constexpr std::array<std::int64_t, 6> kLengths = {16, 192, 768, 3072, 12288, 16384};
  for (const std::int64_t q : kLengths)
    for (const std::int64_t kv : kLengths)
      for (const std::int64_t batch : {1, 512})
        if (const Shape shape{batch, 1, 1, q, kv}; bucket(shape, device) == text) return shape;
  FAIL("no bucket: " << text);
  return {};
}

DeviceInfo device_of(const DecisionFile& file) {
  for (const std::string& name : profile_names())
    if (device_class(device_profile(name)) == file.device_class) return device_profile(name);
  FAIL("share/devices/ has no device of the class " << file.device_class);
  return {};
}

std::vector<ShippedKernel> shipped_kernels() {
  std::vector<ShippedKernel> out;
  for (const DecisionFile& file : shipped_decisions())
    for (const auto& [slot, decision] : file.decisions) {
      ShippedKernel one{
          {to_string(slot), problem_of(slot.problem), parse_schedule(decision.schedule)},
          device_of(file),
          {}};
      one.shape = shape_of(slot.bucket, one.device);
      if (sm90_family().reasons_against(one.kernel.problem).empty())
        one.kernel.family = &sm90_family();
      out.push_back(one);
    }
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("files of share/tuned are read whole and are what an export would write") {
  CHECK(!shipped_texts().empty());
  for (const auto& [name, text] : shipped_texts()) {
    INFO(name);
    std::istringstream in(text);
    DecisionFile file;
    const ImportReport report = read_decisions(in, file);
    CHECK(report.problems == std::vector<std::string>{});
    CHECK(report.refused == 0);
    CHECK(to_text(file) == text);
    CHECK(!file.decisions.empty());
    CHECK(name.ends_with(".jsonl"));
  }
}

TEST_CASE("shipped schedules are legal") {
  for (const ShippedKernel& one : shipped_kernels()) {
    INFO(one.kernel.name << " " << to_string(one.kernel.schedule));
    CHECK(
        one.kernel.family->consider(one.kernel.problem, one.device, one.shape, one.kernel.schedule)
            .rejected == "");
  }
}

TEST_SUITE_END();
TEST_SUITE_BEGIN("compile");

TEST_CASE("shipped schedules compile, and spill no more than a default may") {
  if (lacks_nvrtc("compile what is shipped")) return;
  std::vector<NamedKernel> kernels;
  for (const ShippedKernel& one : shipped_kernels()) {
    const auto same = [&](const NamedKernel& other) {
      return other.problem == one.kernel.problem && other.schedule == one.kernel.schedule;
    };
    if (nvrtc_knows(one.kernel.problem.target) &&
        std::none_of(kernels.begin(), kernels.end(), same))
      kernels.push_back(one.kernel);
  }
  const CompileSummary summary = compile_all(kernels, {24, 128, kSomeRegisters});
  std::cout << "shipped: " << summary.text() << std::endl;
  INFO(faults_of(summary));
  CHECK(summary.faults.empty());
  CHECK(summary.compiled == static_cast<int>(kernels.size()));
}

TEST_SUITE_END();
