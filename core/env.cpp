#include "core/env.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

extern char** environ;

namespace flashwright::env {

const std::vector<Info>& variables() {
  static const std::vector<Info> table = {
      {Variable::cache_dir, "FLASHWRIGHT_CACHE_DIR", "$XDG_CACHE_HOME/flashwright",
       "folder of the compiled kernels, disposable; ':memory:' keeps them in the process"},
      {Variable::data_dir, "FLASHWRIGHT_DATA_DIR", "$XDG_DATA_HOME/flashwright",
       "folder of the tuning results, worth keeping; ':memory:' keeps them in the process"},
      {Variable::max_bytes, "FLASHWRIGHT_MAX_BYTES", "5 % of the file system, 16 MiB to 4 GiB",
       "size limit of the kernel store in bytes"},
      {Variable::effort, "FLASHWRIGHT_EFFORT", "tune",
       "how far any call may go: loaded, cached, compile, tune"},
      {Variable::jobs, "FLASHWRIGHT_JOBS", "the cores this process may use",
       "threads that compile while tuning, and of the CPU backend"},
      {Variable::log, "FLASHWRIGHT_LOG", "warn", "level of the log: error, warn, info, debug"},
      {Variable::cpu, "FLASHWRIGHT_CPU", "what the processor offers",
       "highest instruction set the CPU backend uses: avx512, avx2, neon"},
      {Variable::l1_bytes, "FLASHWRIGHT_L1_BYTES", "asked of the processor",
       "L1 data cache of a core"},
      {Variable::l2_bytes, "FLASHWRIGHT_L2_BYTES", "asked of the processor", "L2 cache of a core"},
      {Variable::cpu_plugin, "FLASHWRIGHT_CPU_PLUGIN", "beside the library",
       "path of libflashwright-cpu.so"},
      {Variable::nvrtc, "FLASHWRIGHT_NVRTC", "searched", "path of the NVRTC library"},
      {Variable::cuda, "FLASHWRIGHT_CUDA", "libcuda.so.1", "path of the CUDA driver library"},
      {Variable::family, "FLASHWRIGHT_FAMILY", "the first that can, of those run on devices",
       "the only kernel family to use: sm80, sm90, cpu"},
      {Variable::template_dir, "FLASHWRIGHT_TEMPLATE_DIR", "the built-in templates",
       "folder of templates to use instead"},
      {Variable::dump_dir, "FLASHWRIGHT_DUMP_DIR", "no dump",
       "folder that receives source, binary and log of every kernel that is compiled"},
  };
  return table;
}

std::string get_foreign(const char* name) {
  const char* const value = secure_getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string get(Variable variable) {
  for (const Info& row : variables())
    if (row.id == variable) return get_foreign(row.name);
  return {};
}

std::vector<std::string> unknown() {
  constexpr std::string_view kPrefix = "FLASHWRIGHT_";
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (name.substr(0, kPrefix.size()) != kPrefix) continue;
    const auto& table = variables();
    if (std::none_of(table.begin(), table.end(), [&](const Info& row) { return name == row.name; }))
      names.emplace_back(name);
  }
  return names;
}

}  // namespace flashwright::env
