// From a Problem to text: picks the family and lets it emit.
#pragma once

#include <string_view>

#include "generator/family.hpp"

namespace flashwright {

// The families known to this process for a target's backend, best first; with FLASHWRIGHT_FAMILY that
// one alone. The CPU family comes from the plugin: see register_family.
std::vector<const Family*> families(BackendKind backend);
void register_family(BackendKind backend, const Family* family);

// The first family without a reason against the problem. Throws Error(unsupported) that lists,
// family by family, every reason.
const Family& choose_family(const Problem& problem);

// The first family that can do the problem with a pinned schedule on the device; the first that can do
// the problem when `schedule` is empty or none takes it.
const Family& choose_family(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                            std::string_view schedule);

// All reasons against the problem when no family can do it; empty otherwise.
std::vector<std::string> reasons_against(const Problem& problem);

}  // namespace flashwright
