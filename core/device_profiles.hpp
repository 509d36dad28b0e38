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

// A device as options name one, in JSON: a string is the name of a profile, an object is a profile.
// Throws Error(bad_argument).
DeviceInfo device_from_option(std::string_view json);

// What to assume for a target when no device of it is present and nobody named one: the first profile
// of that compute capability, else rounded figures of what is sold with it, under a name that says so.
DeviceInfo assumed_device(const Target& target);

}  // namespace flashwright
