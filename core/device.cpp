#include "core/device.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/dtype.hpp"
#include "core/env.hpp"
#include "core/error.hpp"

namespace flashwright {
namespace {

using nlohmann::json;

ArchInfo cuda_arch(const char* name, int major, int minor, int smem_per_block, int smem_per_sm,
                   int threads_per_sm) {
  ArchInfo arch;
  arch.target = {BackendKind::cuda, name};
  arch.major = major;
  arch.minor = minor;
  arch.smem_per_block = smem_per_block;
  arch.smem_per_sm = smem_per_sm;
  arch.threads_per_sm = threads_per_sm;
  return arch;
}

ArchInfo cpu_rung(const char* name, int vector_bytes, int vector_registers) {
  ArchInfo arch;
  arch.target = {BackendKind::cpu, name};
  arch.vector_bytes = vector_bytes;
  arch.vector_registers = vector_registers;
  return arch;
}

constexpr int kKiB = 1024;

}  // namespace

const char* to_string(BackendKind backend) { return backend == BackendKind::cuda ? "cuda" : "cpu"; }

std::string to_string(const Target& target) {
  return target.backend == BackendKind::cuda ? target.arch : "cpu:" + target.arch;
}

const std::vector<ArchInfo>& known_architectures() {
  static const std::vector<ArchInfo> table = {
      cuda_arch("sm_80", 8, 0, 163 * kKiB, 164 * kKiB, 2048),
      cuda_arch("sm_86", 8, 6, 99 * kKiB, 100 * kKiB, 1536),
      cuda_arch("sm_87", 8, 7, 163 * kKiB, 164 * kKiB, 1536),
      cuda_arch("sm_89", 8, 9, 99 * kKiB, 100 * kKiB, 1536),
      cuda_arch("sm_90", 9, 0, 227 * kKiB, 228 * kKiB, 2048),
      cuda_arch("sm_90a", 9, 0, 227 * kKiB, 228 * kKiB, 2048),
      cuda_arch("sm_100", 10, 0, 227 * kKiB, 228 * kKiB, 2048),
      cuda_arch("sm_100a", 10, 0, 227 * kKiB, 228 * kKiB, 2048),
      cuda_arch("sm_103", 10, 3, 227 * kKiB, 228 * kKiB, 2048),
      cuda_arch("sm_103a", 10, 3, 227 * kKiB, 228 * kKiB, 2048),
      cuda_arch("sm_110", 11, 0, 227 * kKiB, 228 * kKiB, 1536),
      cuda_arch("sm_110a", 11, 0, 227 * kKiB, 228 * kKiB, 1536),
      cuda_arch("sm_120", 12, 0, 99 * kKiB, 100 * kKiB, 1536),
      cuda_arch("sm_120a", 12, 0, 99 * kKiB, 100 * kKiB, 1536),
      cuda_arch("sm_121", 12, 1, 99 * kKiB, 100 * kKiB, 1536),
      cuda_arch("sm_121a", 12, 1, 99 * kKiB, 100 * kKiB, 1536),
      // From the widest to the narrowest; a processor gets the first one it can run.
      cpu_rung("avx512", 64, 32),
      cpu_rung("avx2", 32, 16),
      cpu_rung("neon", 16, 32),
  };
  return table;
}

const ArchInfo& arch_info(const Target& target) {
  // PTX ("compute_90") has the limits of the architecture it is written for.
  const bool ptx = target.arch.starts_with("compute_");
  const Target plain = {target.backend, ptx ? "sm_" + target.arch.substr(8) : target.arch};
  for (const ArchInfo& arch : known_architectures())
    if (arch.target == plain) return arch;
  throw Error(Status::internal, "unknown architecture " + to_string(target));
}

Target parse_target(std::string_view text) {
  if (text == "cpu") return {BackendKind::cpu, host_cpu_rung()};
  std::string known = "cpu";
  for (const ArchInfo& arch : known_architectures()) {
    if (text == to_string(arch.target)) return arch.target;
    known += ", " + to_string(arch.target);
  }
  throw Error(Status::bad_argument, fmt::format("target: '{}' is unknown; known: {}", text, known));
}

std::string host_cpu_rung() {
  std::string best;
#if defined(__x86_64__)
  __builtin_cpu_init();
  // These also ask the operating system (XGETBV) whether it saves the wide registers.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) best = "avx2";
  if (best == "avx2" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
    best = "avx512";
#elif defined(__aarch64__)
  best = "neon";
#endif
  const std::string cap = env::get(env::Variable::cpu);
  if (cap.empty()) return best;
  bool reached = false;  // the table runs from wide to narrow: a cap allows itself and what follows
  for (const ArchInfo& arch : known_architectures()) {
    if (arch.target.backend != BackendKind::cpu) continue;
    if (arch.target.arch == best) reached = true;
    if (arch.target.arch == cap) return reached ? cap : best;
  }
  throw Error(Status::bad_argument,
              fmt::format("FLASHWRIGHT_CPU is '{}'; allowed: avx512, avx2, neon", cap));
}

std::string device_class(const DeviceInfo& device) {
  if (device.target.backend == BackendKind::cpu)
    return fmt::format("{} cores{} l1:{} l2:{}", to_string(device.target), device.sm_count,
                       device.l1_bytes, device.l2_bytes);
  // Bandwidth in steps of about 10 %: the same part sold with faster memory is another class.
  int step = 0;
  for (double gbps = device.memory_gbps; gbps > 1; gbps /= 1.1) ++step;
  return fmt::format("{} sms{} smem{} l2:{} bw{}", to_string(device.target), device.sm_count,
                     device.smem_per_block, device.l2_bytes, step);
}

bool runs(const DeviceInfo& device, const Target& target) {
  if (device.target.backend != target.backend) return false;
  if (device.target == target) return true;
  const ArchInfo& have = arch_info(device.target);
  const ArchInfo& want = arch_info(target);
  if (target.backend == BackendKind::cpu)
    return want.vector_bytes <= have.vector_bytes &&
           (want.target.arch == "neon") == (have.target.arch == "neon");
  return !target.arch.ends_with('a') && want.major == have.major && want.minor <= have.minor;
}

std::string to_json(const DeviceInfo& device) {
  json out;
  out["name"] = device.name;
  out["target"] = to_string(device.target);
  out["sm_count"] = device.sm_count;
  if (device.target.backend == BackendKind::cuda) {
    out["smem_per_block_bytes"] = device.smem_per_block;
    out["smem_per_sm_bytes"] = device.smem_per_sm;
  } else {
    out["l1_bytes"] = device.l1_bytes;
  }
  out["l2_bytes"] = device.l2_bytes;
  out["clock_ghz"] = device.clock_ghz;
  out["memory_gbps"] = device.memory_gbps;
  out["peak_tflops"] = device.peak_tflops;
  if (!device.measured.empty()) out["measured"] = device.measured;
  return out.dump(2);
}

DeviceInfo device_from_json(std::string_view text) {
  DeviceInfo device;
  try {
    const json object = json::parse(text);
    device.target = parse_target(object.at("target").get<std::string>());
    const ArchInfo& arch = arch_info(device.target);
    device.smem_per_block = arch.smem_per_block;
    device.smem_per_sm = arch.smem_per_sm;
    for (const auto& [name, value] : object.items()) {
      const auto positive = [&name = name, &value = value] {
        const double number = value.get<double>();
        if (!(number > 0) || number > 1e15)
          throw Error(
              Status::bad_argument,
              fmt::format("device profile: {} is {}; allowed: above 0", name, value.dump()));
        return number;
      };
      const auto whole = [&name = name, &value = value] {
        const double number = value.get<double>();
        if (!(number >= 1) || number > std::numeric_limits<int>::max() ||
            number != std::floor(number))
          throw Error(Status::bad_argument,
                      fmt::format("device profile: {} is {}; allowed: a whole number from 1 to {}",
                                  name, value.dump(), std::numeric_limits<int>::max()));
        return static_cast<int>(number);
      };
      if (name == "name")
        device.name = value.get<std::string>();
      else if (name == "target")
        continue;
      else if (name == "sm_count")
        device.sm_count = whole();
      else if (name == "smem_per_block_bytes")
        device.smem_per_block = whole();
      else if (name == "smem_per_sm_bytes")
        device.smem_per_sm = whole();
      else if (name == "l1_bytes")
        device.l1_bytes = static_cast<std::int64_t>(positive());
      else if (name == "l2_bytes")
        device.l2_bytes = static_cast<std::int64_t>(positive());
      else if (name == "clock_ghz")
        device.clock_ghz = positive();
      else if (name == "memory_gbps")
        device.memory_gbps = positive();
      else if (name == "peak_tflops")
        device.peak_tflops = value.get<std::map<std::string, double>>();
      else if (name == "measured")
        device.measured = value.get<std::map<std::string, double>>();
      else if (name != "source")  // where the figures come from, for people
        throw Error(Status::bad_argument, fmt::format("device profile: unknown field '{}'", name));
    }
  } catch (const json::exception& error) {
    throw Error(Status::bad_argument, fmt::format("device profile: {}", error.what()));
  }
  if (device.sm_count == 0 || device.clock_ghz == 0 || device.l2_bytes == 0)
    throw Error(Status::bad_argument,
                "device profile: sm_count, clock_ghz and l2_bytes are required");
  return device;
}

}  // namespace flashwright
