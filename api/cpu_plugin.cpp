#include "api/cpu_plugin.hpp"

#include <fmt/format.h>

#include <mutex>

#include "core/build_id.hpp"
#include "core/env.hpp"
#include "runtime/library_search.hpp"

namespace flashwright {
namespace {

constexpr const char* kFileName = "libflashwright-cpu.so";

void plugin_log(LogLevel level, const char* line) { log(level, line); }

const CpuPlugin* open(std::string& reason) {
  const std::string chosen = env::get(env::Variable::cpu_plugin);
  std::vector<std::string> candidates = {chosen};
  if (chosen.empty()) {
    const std::string folder = own_folder();
    candidates = {folder + "/" + kFileName, folder + "/../lib/" + kFileName, kFileName};
  }
  auto* const library =
      new SharedLibrary(candidates);  // stays open: its kernels may run until the end
  if (!*library) {
    reason = fmt::format(
        "{} was not found beside the library, or could not be loaded ({}); it is built when LLVM "
        "16 or newer is installed, and FLASHWRIGHT_CPU_PLUGIN can name it",
        kFileName, library->failure());
    return nullptr;
  }
  const auto entry = reinterpret_cast<CpuPluginEntry>(library->symbol(kCpuPluginEntry));
  static const CpuPluginHost host = {&plugin_log, &log_enabled};
  const CpuPlugin* const plugin = entry == nullptr ? nullptr : entry(&host);
  if (plugin == nullptr || std::string_view(plugin->build_id) != kBuildId) {
    reason =
        fmt::format("{} comes from another build ({}; the library is {}): reinstall both together",
                    library->path(), plugin == nullptr ? "unknown" : plugin->build_id, kBuildId);
    return nullptr;
  }
  return plugin;
}

}  // namespace

const CpuPlugin* load_cpu_plugin(std::string& reason) {
  static std::once_flag once;
  static const CpuPlugin* plugin = nullptr;
  static std::string failure;
  std::call_once(once, [] { plugin = open(failure); });
  reason = failure;
  return plugin;
}

}  // namespace flashwright
