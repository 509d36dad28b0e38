// The one entry of libflashwright-cpu.so: joins the CPU family with the CPU backend.
#include "api/cpu_plugin.hpp"
#include "core/build_id.hpp"
#include "generator/cpu/family_cpu.hpp"
#include "runtime/cpu/cpu_backend.hpp"

namespace flashwright {
namespace {

// This object has a copy of the log of its own, which only passes lines on.
void forward_log(const CpuPluginHost& host) {
  set_log_level(LogLevel::debug);
  set_log_sink([&host](LogLevel level, const std::string& line) {
    if (host.log_enabled(level)) host.log(level, line.c_str());
  });
}

}  // namespace
}  // namespace flashwright

extern "C" __attribute__((visibility("default"))) const flashwright::CpuPlugin*
flashwright_cpu_plugin(const flashwright::CpuPluginHost* host) {
  using namespace flashwright;
  if (host != nullptr) forward_log(*host);
  static const CpuPlugin plugin = {kBuildId, &cpu_family(), &cpu::cpu_backend(),
                                   &cpu::measure_fma_peak};
  return &plugin;
}
