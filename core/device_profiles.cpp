#include "core/device_profiles.hpp"

#include <fmt/format.h>

#include "core/error.hpp"

namespace flashwright {

// Defined in a file that cmake/embed.cmake writes from the folder share/devices/.
struct EmbeddedProfile {
  const char* path;
  const char* text;
};
extern const EmbeddedProfile kProfiles[];
extern const std::size_t kProfileCount;

namespace {

std::string name_of(const EmbeddedProfile& profile) {
  const std::string path = profile.path;
  return path.substr(0, path.find(".json"));
}

}  // namespace

std::vector<std::string> profile_names() {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kProfileCount; ++i) names.push_back(name_of(kProfiles[i]));
  return names;
}

DeviceInfo device_profile(std::string_view name) {
  for (std::size_t i = 0; i < kProfileCount; ++i)
    if (name == name_of(kProfiles[i])) return device_from_json(kProfiles[i].text);
  throw Error(Status::bad_argument, fmt::format("device: '{}' is unknown; known: {}", name,
                                                fmt::join(profile_names(), ", ")));
}

DeviceInfo assumed_device(const Target& target) {
  DeviceInfo found;
  for (const std::string& name : profile_names()) {
    DeviceInfo profile = device_profile(name);
    if (arch_info(profile.target).major != arch_info(target).major ||
        target.backend != BackendKind::cuda)
      continue;
    const bool exact = profile.target == target;
    profile.target = target;
    if (exact) return profile;
    if (found.sm_count == 0) found = profile;
  }
  const ArchInfo& arch = arch_info(target);
  if (found.sm_count ==
      0) {  // a generation without any profile, or a CPU: a plain middle of the road
    found.target = target;
    found.name = to_string(target);
    found.sm_count = target.backend == BackendKind::cuda ? 100 : 8;
    found.l1_bytes = 32 * 1024;
    found.l2_bytes = target.backend == BackendKind::cuda ? 48 << 20 : 1 << 20;
    found.clock_ghz = target.backend == BackendKind::cuda ? 1.8 : 3.0;
    found.memory_gbps = target.backend == BackendKind::cuda ? 2000 : 50;
  }
  found.smem_per_block = arch.smem_per_block;
  found.smem_per_sm = arch.smem_per_sm;
  return found;
}

}  // namespace flashwright
