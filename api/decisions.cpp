#include "api/decisions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "api/devices.hpp"
#include "core/device_profiles.hpp"
#include "core/error.hpp"

namespace flashwright {
namespace {

// The classes of device on which something was measured.
std::set<std::string> measured_classes(TuningStore& store) {
  std::set<std::string> out;
  for (const SlotSummary& row : store.list())
    if (row.decision && row.decision->grade == Grade::measured) out.insert(row.slot.device);
  return out;
}

// What people call a device of this class: its own name if it is here, else that of a profile.
std::string name_of(const std::string& device, const DeviceInfo* named) {
  std::vector<DeviceInfo> known;
  for (const BackendKind kind : {BackendKind::cuda, BackendKind::cpu})
    for (const DeviceInfo& present : present_devices(kind)) known.push_back(present);
  if (named != nullptr) known.push_back(*named);
  for (const std::string& name : profile_names()) known.push_back(device_profile(name));
  const auto found = std::find_if(known.begin(), known.end(), [&](const DeviceInfo& one) {
    return device_class(one) == device;
  });
  return found == known.end() ? device : found->name;
}

}  // namespace

DecisionFile decisions_to_export(Engine& engine) {
  const std::set<std::string> classes = measured_classes(engine.tuning());
  std::string wanted;
  if (engine.device() != nullptr) {
    wanted = device_class(*engine.device());
  } else if (classes.size() == 1) {
    wanted = *classes.begin();
  }
  if (classes.contains(wanted))
    return engine.tuning().decisions_on(wanted, name_of(wanted, engine.device()));
  throw Error(Status::bad_argument,
              fmt::format("cache export: expected measured winners of one device; the tuning store "
                          "has {}{}",
                          classes.empty() ? "none" : fmt::format("{}", fmt::join(classes, "; ")),
                          engine.device() != nullptr ? fmt::format(", and device is {}", wanted)
                          : classes.empty()          ? ""
                                                     : "; the option device names one"));
}

}  // namespace flashwright
