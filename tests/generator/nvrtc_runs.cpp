#include "tests/generator/nvrtc_runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <mutex>
#include <thread>

#include "core/device_profiles.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "tests/generator/sass.hpp"
#include "tests/support/testing.hpp"

namespace flashwright::testing {
namespace {

constexpr double kSlowest = 20000;  // ms that one kernel may take: case C95

// Of a processor that this thread has used, whatever runs beside it.
double thread_ms() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) * 1e3 + static_cast<double>(used.tv_nsec) * 1e-6;
}

// "" or what is wrong with one kernel; `beyond` becomes the compiler's registers less the estimate.
std::string compile_one(const NamedKernel& kernel, const Margins& margins, int& beyond, double& ms,
                        bool& spills) {
  const DeviceInfo device = assumed_device(kernel.problem.target);
  const Estimate estimate =
      kernel.family->consider(kernel.problem, device, {4, 16, 16, 4096, 4096}, kernel.schedule)
          .estimate;
  try {
    const double start = thread_ms();
    const Binary binary = nvrtc::compile(kernel.emit());
    const Resources& r = binary.resources;
    beyond = r.registers - estimate.registers;
    ms = thread_ms() - start;
    const int threads = estimate.threads * kernel.schedule.blocks_per_sm;
    spills = r.spill_bytes != 0 || r.stack_bytes != 0;
    if (r.spill_bytes > margins.spill_bytes)
      return fmt::format("spills {} bytes, stack {}, at {} registers (estimate {})", r.spill_bytes,
                         r.stack_bytes, r.registers, estimate.registers);
    if (r.static_smem_bytes != 0 || r.dynamic_smem_bytes != estimate.smem_bytes)
      return fmt::format("shared memory {} + {}, estimate {}", r.static_smem_bytes,
                         r.dynamic_smem_bytes, estimate.smem_bytes);
    if (r.registers * threads > arch_info(device.target).registers_per_sm)
      return fmt::format("{} registers do not let {} blocks be resident", r.registers,
                         kernel.schedule.blocks_per_sm);
    // What the compiler reports of an sm90 kernel is what every thread begins with.
    const bool shared_out = kernel.family->name() == "sm90";
    if (!shared_out && (beyond < -margins.below || beyond > margins.above))
      return fmt::format("{} registers, estimate {}", r.registers, estimate.registers);
    if (shared_out && has_disassembler())
      if (const std::string write = early_write(disassembled(binary.bytes)); !write.empty())
        return "writes a register that a product under way uses: " + write;
    if (const auto warnings = nvrtc::parse_warnings(binary.log); !warnings.empty() && !spills)
      return "warns: " + warnings.front();
    if (ms > kSlowest) return fmt::format("took {:.0f} ms", ms);
  } catch (const Error& error) {
    return error.message;
  }
  return {};
}

}  // namespace

bool lacks_nvrtc(const std::string& name) {
  const std::string missing = nvrtc::missing();
  if (!missing.empty()) skip(name, missing);
  return !missing.empty();
}

bool nvrtc_knows(const Target& target) {
  const ArchInfo& arch = arch_info(target);
  const std::vector<int>& known = nvrtc::identity().architectures;
  return std::find(known.begin(), known.end(), arch.major * 10 + arch.minor) != known.end();
}

void on_all_cores(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back([&] {
      for (std::size_t at = next++; at < count; at = next++) body(at);
    });
}

std::string CompileSummary::text() const {
  return fmt::format(
      "{} kernels compiled, {} faults, {} spill; registers beyond the estimate: {} ({}) to {} "
      "({}); slowest "
      "{:.0f} ms",
      compiled, faults.size(), spilled, least, least_of, most, most_of, slowest_ms);
}

CompileSummary compile_all(const std::vector<NamedKernel>& kernels, const Margins& margins) {
  CompileSummary summary;
  std::mutex mutex;
  on_all_cores(kernels.size(), [&](std::size_t i) {
    const NamedKernel& kernel = kernels[i];
    const std::string name = to_string(kernel.problem) + " " + to_string(kernel.schedule);
    int beyond = 0;
    double ms = 0;
    bool spills = false;
    const std::string fault = compile_one(kernel, margins, beyond, ms, spills);
    const std::scoped_lock lock(mutex);
    ++summary.compiled;
    if (spills) ++summary.spilled;
    summary.slowest_ms = std::max(summary.slowest_ms, ms);
    if (!fault.empty()) summary.faults.push_back(name + ": " + fault);
    if (beyond < summary.least || summary.least_of.empty())
      summary.least = beyond, summary.least_of = name;
    if (beyond > summary.most || summary.most_of.empty())
      summary.most = beyond, summary.most_of = name;
  });
  std::sort(summary.faults.begin(), summary.faults.end());
  return summary;
}

std::string faults_of(const CompileSummary& summary) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(summary.faults.size(), 40); ++i)
    text += "\n" + summary.faults[i];
  return text;
}

}  // namespace flashwright::testing
