#include "core/device_profiles.hpp"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

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

// Rounded figures for compute capabilities without a profile, from the data sheets of the products
// behind them; a row also holds for later minor versions.
struct Figures {
  int major, minor;
  int sm_count, l2_mib;
  double clock_ghz, memory_gbps;
};
constexpr std::array<Figures, 5> kFigures = {{
    {8, 6, 84, 6, 1.7, 700},       // A40, RTX 3090
    {8, 7, 16, 4, 1.3, 200},       // Jetson AGX Orin
    {10, 0, 148, 126, 1.9, 8000},  // B200, B300
    {11, 0, 20, 32, 1.6, 270},     // Jetson AGX Thor
    {12, 1, 48, 24, 2.4, 270},     // GB10
}};
constexpr Figures kMiddling = {0, 0, 100, 48, 1.8, 2000};  // of a generation that is not there

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

DeviceInfo device_from_option(std::string_view text) {
  const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  if (value.is_string()) return device_profile(value.get<std::string>());
  if (value.is_object()) return device_from_json(text);
  throw Error(Status::bad_argument,
              fmt::format("device: given {}; expected the name of a known device ({}), or a device "
                          "profile as a JSON object",
                          text, fmt::join(profile_names(), ", ")));
}

DeviceInfo assumed_device(const Target& target) {
  const ArchInfo& arch = arch_info(target);
  for (const std::string& name : profile_names()) {
    DeviceInfo profile = device_profile(name);
    const ArchInfo& other = arch_info(profile.target);
    if (profile.target.backend != target.backend || target.backend != BackendKind::cuda ||
        std::pair(other.major, other.minor) != std::pair(arch.major, arch.minor))
      continue;
    profile.target = target;  // with or without suffix
    return profile;
  }
  DeviceInfo device;
  device.target = target;
  device.smem_per_block = arch.smem_per_block;
  device.smem_per_sm = arch.smem_per_sm;
  if (target.backend == BackendKind::cpu) {
    device.name = fmt::format("a processor with {} (assumed)", target.arch);
    device.sm_count = 8;
    device.l1_bytes = 32 * 1024;
    device.l2_bytes = 1 << 20;
    device.clock_ghz = 3.0;
    device.memory_gbps = 50;
    return device;
  }
  device.name = fmt::format("an {} GPU (assumed)", target.arch);
  Figures figures = kMiddling;
  for (const Figures& row : kFigures)
    if (row.major == arch.major && row.minor <= arch.minor) figures = row;
  device.sm_count = figures.sm_count;
  device.l2_bytes = std::int64_t{figures.l2_mib} << 20;
  device.clock_ghz = figures.clock_ghz;
  device.memory_gbps = figures.memory_gbps;
  return device;
}

}  // namespace flashwright
