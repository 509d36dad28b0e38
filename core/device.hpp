// Two kinds of facts about hardware. A Target is what changes the text of a kernel; a DeviceInfo is
// what changes the choice among kernels, read from a device that is present or from a JSON profile.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "flashwright/config.hpp"

namespace flashwright {

enum class BackendKind : std::uint8_t { cuda, cpu };
const char* to_string(BackendKind backend);

struct Target {
  BackendKind backend = BackendKind::cuda;
  std::string
      arch;  // "sm_90a"; "compute_90" for PTX; or the rung of the CPU's instruction set: "avx512"
  std::strong_ordering operator<=>(const Target&) const = default;
  bool operator==(const Target&) const = default;
};

// "sm_90a", "cpu:avx512".
std::string to_string(const Target& target);

// What is known of an architecture without having one. CUDA limits are those of the CUDA
// programming guide's table of compute capabilities.
struct ArchInfo {
  Target target;
  int major = 0, minor = 0;  // CUDA compute capability
  int smem_per_block = 0;    // bytes a block may ask for (opt-in limit)
  int smem_per_sm = 0;       // bytes; each resident block also takes 1 KiB
  int registers_per_sm = 65536;
  int threads_per_sm = 0;
  int vector_bytes = 0;      // CPU: bytes of a vector register
  int vector_registers = 0;  // CPU
};

// Every architecture that kernels can be emitted for.
const std::vector<ArchInfo>& known_architectures();
const ArchInfo& arch_info(const Target& target);  // throws for one that is not known

// Reads "sm_80", "sm_90a", "cpu:avx512"; "cpu" alone is the rung of this machine's processor.
// Throws Error(bad_argument) that lists what is known.
Target parse_target(std::string_view text);

// The best rung this processor and operating system offer, lowered by FLASHWRIGHT_CPU.
std::string host_cpu_rung();

struct DeviceInfo {
  std::string name;           // for people; never part of a key
  Target target;              // what to compile for
  int index = 0;              // device ordinal
  int sm_count = 0;           // multiprocessors; CPU: cores this process may use
  int smem_per_block = 0;     // bytes; CPU: 0
  int smem_per_sm = 0;        // bytes; CPU: 0
  std::int64_t l1_bytes = 0;  // CPU: data cache of one core
  std::int64_t l2_bytes = 0;  // GPU: of the device; CPU: of one core
  double clock_ghz = 0;
  double memory_gbps = 0;  // 10^9 bytes per second
  std::map<std::string, double>
      peak_tflops;                         // dense matrix rate of the whole device, by dtype name
  std::map<std::string, double> measured;  // rates of a profile; no model uses them yet

  bool present = false;  // false: from a profile, so nothing can be measured
};

// Identity for stored tuning: what changes which kernel is fastest. Never the marketing name.
std::string device_class(const DeviceInfo& device);

// Whether code for `target` runs on the device: exactly its own architecture, or an older minor of
// the same major without suffix; on a CPU any rung up to its own.
bool runs(const DeviceInfo& device, const Target& target);

std::string to_json(const DeviceInfo& device);
// Throws Error(bad_argument) naming the field that is missing, unknown or out of range.
DeviceInfo device_from_json(std::string_view json);

}  // namespace flashwright
