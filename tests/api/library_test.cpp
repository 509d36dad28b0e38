// libflashwright as others see it: what it exports, and how it behaves on a machine that has nothing.
#include <cstdlib>
#include <regex>
#include <set>

#include "flashwright/flashwright.hpp"
#include "tests/support/process.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright::testing;

namespace {

const flashwright::test::Variables kBareMachine = {
    {"FLASHWRIGHT_CUDA", "/nonexistent/libcuda.so"},
    {"FLASHWRIGHT_NVRTC", "/nonexistent/libnvrtc.so"},
    {"FLASHWRIGHT_CPU_PLUGIN", "/nonexistent/cpu.so"},
    {"FLASHWRIGHT_CACHE_DIR", ":memory:"},
    {"FLASHWRIGHT_DATA_DIR", ":memory:"}};

std::string message_of(const flashwright::Config& config, flashwright_status status) {
  try {
    flashwright::get_kernel(config);
    FAIL_CHECK("a kernel on a machine without devices");
  } catch (const flashwright::Failure& failure) {
    CHECK(failure.status == status);
    return failure.what();
  }
  return {};
}

}  // namespace

TEST_CASE("helper: a machine without anything" * doctest::skip()) {
  flashwright::Config config;
  config.head_dim = 64;
  // The best device: there is none, and the words say what is missing.
  CHECK(contains(message_of(config, FLASHWRIGHT_UNAVAILABLE), "/nonexistent/cpu.so"));
  config.target = "cuda";
  CHECK(contains(message_of(config, FLASHWRIGHT_UNAVAILABLE), "/nonexistent/libcuda.so"));
  CHECK(contains(flashwright::supports(config), "/nonexistent/libcuda.so"));
  // Emitting needs nothing.
  config.target = "sm_90a";
  CHECK(flashwright::supports(config) == "[]");
  char* text = nullptr;
  REQUIRE(flashwright_emit(nullptr, flashwright::to_json(config).c_str(), nullptr, &text) ==
          FLASHWRIGHT_OK);
  CHECK(contains(text, "fw_forward"));
  flashwright_free(text);
  CHECK(contains(message_of(config, FLASHWRIGHT_UNAVAILABLE), "no device for 'sm_90a'"));
  // Compiling says how to get a compiler.
  CHECK(flashwright_compile(nullptr, flashwright::to_json(config).c_str(), nullptr, &text, nullptr,
                            nullptr) == FLASHWRIGHT_UNAVAILABLE);
  CHECK(contains(flashwright_last_error(), "pip install nvidia-cuda-nvrtc"));
  REQUIRE(flashwright_doctor(nullptr, &text) == FLASHWRIGHT_OK);
  CHECK(contains(text, "\"devices\":[]"));
  flashwright_free(text);
}

TEST_CASE("on a machine without anything the library emits, and says what is missing") {
  CHECK(run_fresh({"helper: a machine without anything", kBareMachine, "", ""}) == 0);
}

TEST_CASE("every target that is known emits a kernel") {
  flashwright::Config config;
  config.head_dim = 128;
  config.mask = flashwright::Mask::causal();
  for (const char* target :
       {"sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_103",
        "sm_103a", "sm_110", "sm_110a", "sm_120", "sm_120a", "sm_121", "sm_121a"}) {
    config.target = target;
    char* text = nullptr;
    REQUIRE(flashwright_emit(nullptr, flashwright::to_json(config).c_str(), nullptr, &text) ==
            FLASHWRIGHT_OK);
    CHECK(contains(text, std::string("Attention forward for ") + target + ": bf16"));
    flashwright_free(text);
  }
}

TEST_CASE("the library exports the functions of its header and nothing else") {
  const Output nm = run_program({"nm", "-D", "--defined-only", FW_LIBRARY});
  if (nm.status == 127) return skip("exported symbols", "nm is not installed");
  REQUIRE(nm.status == 0);
  std::set<std::string> exported, declared;
  std::istringstream lines(nm.text);
  for (std::string address, kind, name; lines >> address >> kind >> name;)
    if (kind != "A") exported.insert(name.substr(0, name.find('@')));  // A: the version itself
  const std::string header = flashwright::test::read_file(std::string(FW_SOURCE_DIR) +
                                                          "/include/flashwright/flashwright.h");
  const std::regex declaration(R"(FLASHWRIGHT_API[^;(]*\b(flashwright_\w+)\()");
  for (std::sregex_iterator it(header.begin(), header.end(), declaration), end; it != end; ++it)
    declared.insert((*it)[1]);
  CHECK(exported == declared);
}
