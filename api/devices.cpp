#include "api/devices.hpp"

#include <mutex>

#include "api/cpu_plugin.hpp"
#include "core/device_profiles.hpp"
#include "core/error.hpp"
#include "generator/emit.hpp"
#include "generator/sm80/family_sm80.hpp"
#include "generator/sm90/family_sm90.hpp"
#include "runtime/cuda/cuda_backend.hpp"

namespace flashwright {

void ensure_families(BackendKind kind) {
  static std::once_flag cuda, cpu;
  if (kind == BackendKind::cuda) {
    static const FamilySm80 sm80;
    static const FamilySm90 sm90;
    // The first that can is taken: sm90 on sm_90a, sm80 for what it lacks and everywhere else.
    std::call_once(cuda, [] {
      register_family(BackendKind::cuda, &sm90);
      register_family(BackendKind::cuda, &sm80);
    });
    return;
  }
  std::string reason;
  const CpuPlugin* const plugin = load_cpu_plugin(reason);
  if (plugin == nullptr) throw Error(Status::unavailable, "CPU backend: " + reason);
  std::call_once(cpu, [plugin] { register_family(BackendKind::cpu, plugin->family); });
}

Backend& backend_for(BackendKind kind) {
  if (kind == BackendKind::cuda) return cuda_backend();
  std::string reason;
  const CpuPlugin* const plugin = load_cpu_plugin(reason);
  if (plugin == nullptr) throw Error(Status::unavailable, "CPU backend: " + reason);
  return *plugin->backend;
}

const std::vector<DeviceInfo>& present_devices(BackendKind kind) {
  const auto describe = [](BackendKind which) {
    try {
      return backend_for(which).describe();
    } catch (const Error&) {
      return std::vector<DeviceInfo>{};
    }
  };
  static const std::vector<DeviceInfo> cuda_devices = describe(BackendKind::cuda);
  if (kind == BackendKind::cuda) return cuda_devices;
  static const std::vector<DeviceInfo> cpu_devices = describe(BackendKind::cpu);
  return cpu_devices;
}

DeviceInfo device_for(const std::string& target) {
  const auto first = [](BackendKind kind) {
    const std::vector<DeviceInfo>& devices = present_devices(kind);
    if (!devices.empty()) return devices.front();
    // Says what is missing, in the backend's own words.
    const std::string missing = backend_for(kind).device_missing();
    throw Error(Status::unavailable,
                std::string("target: no device of '") + to_string(kind) +
                    "': " + (missing.empty() ? "none that any kernel family knows" : missing));
  };
  if (target.empty() && !present_devices(BackendKind::cuda).empty())
    return first(BackendKind::cuda);
  if (target.empty() || target == "cpu") return first(BackendKind::cpu);
  if (target == "cuda") return first(BackendKind::cuda);
  const Target wanted = parse_target(target);
  for (DeviceInfo device : present_devices(wanted.backend)) {
    if (!runs(device, wanted)) continue;
    device.target = wanted;
    return device;
  }
  return assumed_device(wanted);
}

}  // namespace flashwright
