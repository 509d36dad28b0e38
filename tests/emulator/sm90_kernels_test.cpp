// Kernels written by hand for sm_90a: NVRTC takes them without a word, and in the emulator they are
// silent and right.
#include <algorithm>

#include "core/device.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "tests/emulator/emulated.hpp"
#include "tests/emulator/sm90_kernels.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

// "" or what NVRTC has to say about a kernel.
std::string compile_fault(const Sm90Kernel& kernel) {
  Source source;
  source.target = parse_target("sm_90a");
  source.name = std::string(kernel.name) + ".cu";
  source.text = text_of(kernel, body_of(kernel));
  source.lines.resize(
      static_cast<std::size_t>(std::count(source.text.begin(), source.text.end(), '\n')));
  try {
    const Binary binary = nvrtc::compile(source);
    const Resources& r = binary.resources;
    if (r.spill_bytes != 0 || r.stack_bytes != 0) return "spills:\n" + binary.log;
    if (!nvrtc::parse_warnings(binary.log).empty()) return "warns:\n" + binary.log;
  } catch (const Error& error) {
    return error.message + '\n' + error.detail;
  }
  return {};
}

// Sizes around tiles of 128 rows and columns and 64 of depth, and rings that go round.
std::vector<Sm90Size> sizes_of(const std::string& kernel) {
  if (kernel == "gemm_128") return {{128, 128, 64, 1}, {150, 200, 490, 1}, {129, 8, 72, 2}};
  if (kernel.starts_with("gemm")) return {{70, 136, 100, 1}, {200, 152, 330, 3}};
  if (kernel == "cluster") return {{128, 128, 64, 0}, {200, 130, 490, 0}, {3, 20, 17, 0}};
  if (kernel.starts_with("pipeline"))
    return {{128, 1, 128, 1}, {100, 2, 300, 2}, {1, 1, 1, 1}, {130, 1, 65, 3}};
  return {{32, 32, 1, 0}, {70, 100, 3, 0}, {2, 200, 4, 0}, {100, 4, 2, 0}};
}

}  // namespace

TEST_CASE("NVRTC compiles the kernels written for sm_90a without spills or warnings") {
  if (const std::string missing = nvrtc::missing(); !missing.empty()) {
    skip("kernels written for sm_90a, with NVRTC", missing);
    return;
  }
  const std::vector<int>& known = nvrtc::identity().architectures;
  if (std::find(known.begin(), known.end(), 90) == known.end()) {
    skip("kernels written for sm_90a, with NVRTC", "this NVRTC does not know sm_90");
    return;
  }
  for (const Sm90Kernel& kernel : sm90_kernels()) {
    CAPTURE(std::string(kernel.name));
    CHECK(compile_fault(kernel) == "");
  }
}

TEST_CASE("kernels written for sm_90a are silent and right in every mode") {
  if (!compiler_here("kernels for sm_90a in the emulator")) return;
  double compile_ms = 0, run_ms = 0;
  for (const Sm90Kernel& kernel : sm90_kernels()) {
    CAPTURE(std::string(kernel.name));
    const emulator::HostUnit unit(
        emulator::translate_entry(text_of(kernel, body_of(kernel)), "kernel.cu", entry_of(kernel)));
    compile_ms += unit.compile_ms();
    for (const Sm90Size& size : sizes_of(kernel.name)) {
      CAPTURE(to_string(size));
      const Sm90Problem problem = make_problem(kernel, size, test_seed());
      for (const emulator::Mode mode : kModes) {
        CAPTURE(std::string(emulator::to_string(mode)));
        const emulator::RunReport report =
            run(unit, problem, {mode, true, test_seed(), 1'000'000, 1});
        run_ms += report.run_ms;
        CHECK(text_of(report) == "");
        if (kernel.dtype != DType::fp32) CHECK(report.bank_conflicts == 0);
        CHECK(problem.fault() == "");
      }
    }
  }
  MESSAGE("compiled in " << compile_ms / 1e3 << " s, run in " << run_ms / 1e3 << " s");
}
