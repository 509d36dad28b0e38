// The emitted files of tests/golden, compared as text. After a wanted change: fw_golden_tests --update-golden,
// then read the difference as one reads code. So is the example for readers, in examples/emitted.
#include <filesystem>
#include <set>

#include "core/device_profiles.hpp"
#include "tests/cache/support.hpp"
#include "tests/support/emitted.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace fs = std::filesystem;

namespace {

const std::string kFolder = std::string(FW_SOURCE_DIR) + "/tests/golden/";

std::string file_of(const NamedKernel& kernel) { return kFolder + kernel.name + ".cu"; }

// The first line in which two texts differ.
std::string difference(const std::string& expected, const std::string& got) {
  std::istringstream a(expected), b(got);
  std::string left, right;
  for (int line = 1;; ++line) {
    const bool more_left = static_cast<bool>(std::getline(a, left)),
               more_right = static_cast<bool>(std::getline(b, right));
    if (!more_left && !more_right) return "no line differs";
    if (more_left && more_right && left == right) continue;
    return "line " + std::to_string(line) + "\n  golden:  " + (more_left ? left : "(end)") +
           "\n  emitted: " + (more_right ? right : "(end)");
  }
}

}  // namespace

TEST_CASE("emitted files are the golden ones") {
  for (const NamedKernel& kernel : named_kernels()) {
    const std::string text = kernel.emit().text;
    if (has_argument("--update-golden")) test::write_file(file_of(kernel), text);
    const std::string golden = test::read_file(file_of(kernel));
    INFO(kernel.name << ": " << difference(golden, text));
    CHECK(golden == text);
  }
}

TEST_CASE("the example for readers is what is emitted by default") {
  const std::string file =
      std::string(FW_SOURCE_DIR) + "/examples/emitted/sm90_bf16_d128_causal.cu";
  const Problem problem =
      normalise(config_from_json(R"({"head_dim":128,"mask":"causal"})"), parse_target("sm_90a"));
  const Schedule schedule = sm90_family().default_schedule(problem, assumed_device(problem.target),
                                                           {4, 16, 16, 4096, 4096});
  const std::string text = sm90_family().emit(problem, schedule).text;
  if (has_argument("--update-golden")) test::write_file(file, text);
  const std::string example = test::read_file(file);
  INFO(difference(example, text));
  CHECK(example == text);
}

TEST_CASE("there is no golden file that nobody emits") {
  std::set<std::string> expected, found;
  for (const NamedKernel& kernel : named_kernels()) expected.insert(kernel.name + ".cu");
  for (const auto& entry : fs::directory_iterator(kFolder))
    if (entry.path().extension() == ".cu") found.insert(entry.path().filename());
  CHECK(found == expected);
}

TEST_CASE("every golden kernel can run on the device that it is for") {
  for (const NamedKernel& kernel : named_kernels()) {
    const Candidate candidate =
        kernel.family->consider(kernel.problem, assumed_device(kernel.problem.target),
                                {4, 16, 16, 4096, 4096}, kernel.schedule);
    INFO(kernel.name);
    CHECK(candidate.rejected == "");
    CHECK(kernel.family->reasons_against(kernel.problem).empty());
  }
}
