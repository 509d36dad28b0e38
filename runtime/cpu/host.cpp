#include "runtime/cpu/host.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>
#include <vector>

#include "core/env.hpp"
#include "core/error.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace flashwright::cpu {
namespace {

constexpr std::int64_t kKiB = 1024;

// A positive whole number from a variable; 0 when it is not set.
std::int64_t number_from(env::Variable variable, std::int64_t most) {
  const std::string text = env::get(variable);
  if (text.empty()) return 0;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size() && value >= 1 && value <= most)
    return value;
  const char* name = "";
  for (const env::Info& row : env::variables())
    if (row.id == variable) name = row.name;
  throw Error(Status::bad_argument, std::string(name) + " is '" + text +
                                        "'; allowed: a whole number from 1 to " +
                                        std::to_string(most));
}

int cores_by_affinity() {
  // More processors than the fixed set holds need a larger one.
  for (int processors = 1024; processors <= (1 << 16); processors *= 4) {
    cpu_set_t* const set = CPU_ALLOC(processors);
    if (set == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(processors);
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    const int count = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Cores' worth of time that a control group allows, or a negative number for no limit.
double quota_of(const std::string& folder) {
  std::istringstream v2(first_line(folder + "/cpu.max"));
  double quota = 0, period = 0;
  if (v2 >> quota >> period && quota > 0 && period > 0) return quota / period;
  std::istringstream v1(first_line(folder + "/cpu.cfs_quota_us"));
  std::istringstream v1_period(first_line(folder + "/cpu.cfs_period_us"));
  if (v1 >> quota && v1_period >> period && quota > 0 && period > 0) return quota / period;
  return -1;
}

// The tightest quota on the way from this process's group up to the root.
double cgroup_quota() {
  double tightest = -1;
  const auto tighten = [&](const std::string& folder) {
    const double quota = quota_of(folder);
    if (quota > 0 && (tightest < 0 || quota < tightest)) tightest = quota;
  };
  // Lines read "0::/path" (version 2) or "4:cpu,cpuacct:/path" (version 1).
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t kinds_at = line.find(':') + 1;
    const std::size_t path_at = line.find(':', kinds_at);
    if (kinds_at == 0 || path_at == std::string::npos) continue;
    std::istringstream kinds(line.substr(kinds_at, path_at - kinds_at));
    const bool v2 = path_at == kinds_at;
    bool counts = v2;
    for (std::string kind; std::getline(kinds, kind, ',');) counts = counts || kind == "cpu";
    if (!counts) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    std::string path = line.substr(path_at + 1);
    if (path == "/") path.clear();
    tighten(root);
    while (path.size() > 1 && path[0] == '/') {
      tighten(root + path);
      path.erase(path.rfind('/'));
    }
  }
  return tightest;
}

#if defined(__x86_64__)
// Data or unified cache of a level, from the processor's own table.
std::int64_t cache_by_cpuid(unsigned wanted_level) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  for (const unsigned leaf : {4u, 0x8000001Du}) {
    for (unsigned index = 0; index < 16; ++index) {
      if (__get_cpuid_count(leaf, index, &a, &b, &c, &d) == 0) break;
      const unsigned type = a & 31u, level = a >> 5 & 7u;
      if (type == 0) break;
      if (level != wanted_level || type == 2) continue;
      const std::int64_t ways = (b >> 22) + 1, partitions = (b >> 12 & 1023u) + 1;
      const std::int64_t line = (b & 4095u) + 1, sets = std::int64_t{c} + 1;
      return ways * partitions * line * sets;
    }
  }
  return 0;
}
#else
std::int64_t cache_by_cpuid(unsigned) { return 0; }
#endif

std::int64_t cache_by_sysfs(int wanted_level) {
  for (int index = 0; index < 8; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index);
    if (first_line(folder + "/level") != std::to_string(wanted_level)) continue;
    if (first_line(folder + "/type") == "Instruction") continue;
    std::istringstream text(first_line(folder + "/size"));
    std::int64_t size = 0;
    char unit = ' ';
    if (text >> size >> unit) return unit == 'K' ? size * kKiB : size * kKiB * kKiB;
  }
  return 0;
}

std::int64_t cache_size(int level, int sysconf_name, std::int64_t least, std::int64_t most,
                        std::int64_t otherwise) {
  // Virtual machines hide or invent some of these: the first believable answer counts.
  const std::int64_t answers[] = {cache_by_cpuid(static_cast<unsigned>(level)),
                                  sysconf(sysconf_name), cache_by_sysfs(level)};
  for (const std::int64_t size : answers)
    if (size >= least && size <= most) return size;
  return otherwise;
}

}  // namespace

int usable_cores() {
  constexpr std::int64_t kMostThreads = 4096;
  const std::int64_t asked = number_from(env::Variable::jobs, kMostThreads);
  if (asked > 0) return static_cast<int>(asked);
  const int cores = cores_by_affinity();
  const double quota = cgroup_quota();
  return quota < 0 ? cores : std::max(1, std::min(cores, static_cast<int>(std::ceil(quota))));
}

Caches caches() {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  Caches out;
  out.l1_bytes = number_from(env::Variable::l1_bytes, kMost);
  out.l2_bytes = number_from(env::Variable::l2_bytes, kMost);
  if (out.l1_bytes == 0)
    out.l1_bytes = cache_size(1, _SC_LEVEL1_DCACHE_SIZE, 16 * kKiB, 192 * kKiB, 32 * kKiB);
  if (out.l2_bytes == 0)
    out.l2_bytes = cache_size(2, _SC_LEVEL2_CACHE_SIZE, 128 * kKiB, 4096 * kKiB, 512 * kKiB);
  return out;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, 10, "model name") != 0) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

double clock_ghz() {
  constexpr double kFallback = 2.0, kLeast = 0.5, kMost = 10;
  const auto believable = [](double ghz) { return ghz >= kLeast && ghz <= kMost; };
#if defined(__x86_64__)
  unsigned mhz = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0x16, &mhz, &b, &c, &d) != 0 && believable(mhz / 1000.0)) return mhz / 1000.0;
#endif
  const std::string name = processor_name();
  const std::size_t at = name.rfind("@ ");
  double ghz = 0;
  if (at != std::string::npos && std::istringstream(name.substr(at + 2)) >> ghz && believable(ghz))
    return ghz;
  std::ifstream file("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
  double khz = 0;
  return file >> khz && believable(khz / 1e6) ? khz / 1e6 : kFallback;
}

}  // namespace flashwright::cpu
