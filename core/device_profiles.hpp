// Descriptions of devices that need not be present, so that tuning can be planned without them. The
// profiles of share/devices are built in; any other comes as JSON.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/device.hpp"

namespace flashwright {

std::vector<std::string> profile_names();  // "a100", "h200", ...

// Throws Error(bad_argument) that lists the names there are.
DeviceInfo device_profile(std::string_view name);

// What to assume for a target when no device of it is present: the first profile of that
// architecture, else one of the same generation or middling figures, with the architecture's own
// shared memory.
DeviceInfo assumed_device(const Target& target);

}  // namespace flashwright
