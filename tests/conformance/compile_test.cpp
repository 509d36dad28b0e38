// Every case through NVRTC: no warning, no spill, no local memory.
#include <atomic>
#include <mutex>
#include <thread>

#include "runtime/cuda/nvrtc.hpp"
#include "tests/conformance/run_device.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::conformance;

namespace {

// "" or what is wrong with one case.
std::string compile_fault(const Case& c, const std::string& arch) {
  try {
    const Binary binary = nvrtc::compile(source_of(c, arch));
    const Resources& r = binary.resources;
    if (r.spill_bytes != 0 || r.stack_bytes != 0)
      return "spills " + std::to_string(r.spill_bytes) + " bytes, stack " +
             std::to_string(r.stack_bytes);
    const std::vector<std::string> warnings = nvrtc::parse_warnings(binary.log);
    return warnings.empty() ? std::string() : warnings.front();
  } catch (const Error& error) {
    return error.message + "\n" + error.detail;
  }
}

std::string compile_faults(const std::string& arch) {
  std::mutex mutex;
  std::string faults;
  std::atomic<std::size_t> next{0};
  const std::vector<Case>& cases = all_cases();
  const auto work = [&] {
    for (std::size_t i = next++; i < cases.size(); i = next++) {
      if (!fits(cases[i], arch)) continue;
      const std::string fault = compile_fault(cases[i], arch);
      const std::scoped_lock lock(mutex);
      if (!fault.empty()) faults += cases[i].group + "/" + cases[i].name + ": " + fault + "\n";
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back(work);
  threads.clear();
  return faults;
}

}  // namespace

TEST_SUITE_BEGIN("compile");

TEST_CASE("every case compiles without a warning and without local memory") {
  if (!nvrtc::missing().empty()) return testing::skip("conformance cases", nvrtc::missing());
  CHECK(compile_faults("sm_90a") == "");
  CHECK(compile_faults("sm_80") == "");
}
