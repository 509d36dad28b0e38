#include "api/named_device.hpp"

#include <fmt/format.h>

#include "api/devices.hpp"
#include "core/error.hpp"

namespace flashwright {

DeviceInfo device_for(const std::string& target, const DeviceInfo* named) {
  if (named == nullptr) return device_for(target);
  const BackendKind kind = named->target.backend;
  DeviceInfo out = *named;
  if (!target.empty() && target != to_string(kind)) {
    if (target == "cuda" || !runs(*named, parse_target(target)))
      throw Error(Status::bad_argument,
                  fmt::format("target: given '{}'; expected {}, which the device {} is, or nothing",
                              target, to_string(named->target), named->name));
    out.target = parse_target(target);
  }
  for (DeviceInfo device : present_devices(kind)) {
    if (device_class(device) != device_class(*named)) continue;
    device.target = out.target;
    return device;
  }
  return out;
}

}  // namespace flashwright
