// The devices of this machine and the backends that run them.
#pragma once

#include <string>
#include <vector>

#include "core/device.hpp"
#include "runtime/backend.hpp"

namespace flashwright {

// Loads the CPU plugin on first use. Throws Error(unavailable) when it is missing.
Backend& backend_for(BackendKind kind);

// The devices present; found once. A backend that is missing has none.
const std::vector<DeviceInfo>& present_devices(BackendKind kind);

// The device that a Config's target means: "" the best one present, "cuda" and "cpu" the first of
// that kind, an architecture a device that can run it, or else an assumed one that is not present.
DeviceInfo device_for(const std::string& target);

// Makes the kernel families of a backend known; the CPU's come with its plugin.
void ensure_families(BackendKind kind);

}  // namespace flashwright
