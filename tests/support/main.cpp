#define DOCTEST_CONFIG_IMPLEMENT
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "tests/support/testing.hpp"

namespace flashwright::testing {
namespace {

std::vector<std::string>& arguments() {
  static std::vector<std::string> instance;
  return instance;
}

unsigned skipped = 0, selected = 0;

// Learns how many test cases the filters let through.
struct Counter : doctest::IReporter {
  explicit Counter(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override {
    selected = stats.numTestCasesPassingFilters;
  }
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("counter", 1, Counter);

}  // namespace

void skip(const std::string& name, const std::string& why) {
  std::cout << "skipped: " << name << ": " << why << std::endl;
  ++skipped;
}

std::uint64_t test_seed() {
  static const std::uint64_t seed = [] {
    const char* const asked = std::getenv("FW_TEST_SEED");
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const auto days = std::chrono::duration_cast<std::chrono::hours>(now).count() / 24;
    const auto value =
        asked != nullptr ? std::strtoull(asked, nullptr, 10) : static_cast<std::uint64_t>(days);
    std::cout << "seed: " << value << " (FW_TEST_SEED repeats it)" << std::endl;
    return value;
  }();
  return seed;
}

bool has_argument(const std::string& argument) {
  return std::find(arguments().begin(), arguments().end(), argument) != arguments().end();
}

}  // namespace flashwright::testing

int main(int argc, char** argv) {
  using namespace flashwright::testing;
  arguments().assign(argv, argv + argc);
  // Properties draw from the same seed, unless the caller asks rapidcheck for another.
  setenv("RC_PARAMS", ("seed=" + std::to_string(test_seed())).c_str(), 0);
  doctest::Context context(argc, argv);
  const int status = context.run();
  constexpr int kSkipped = 77;  // as CTest is told
  return status == 0 && skipped > 0 && skipped >= selected ? kSkipped : status;
}
