// The option `device`: a Config is meant for a device that was named, whatever is present.
#pragma once

#include <string>

#include "core/device.hpp"

namespace flashwright {

// The device that a Config's target means. Without a named one that of api/devices. The named one must
// run the target; of its class a device that is present is taken, which can also launch kernels. Throws
// Error(bad_argument).
DeviceInfo device_for(const std::string& target, const DeviceInfo* named);

}  // namespace flashwright
