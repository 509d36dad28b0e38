// What the tuning store keeps, as text: one JSON object for each trial and decision, with a digest over
// it and the slot it belongs to. The digest is the identity of a trial, so that merging
// two stores is a union of sets.
#pragma once

#include <compare>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "cache/decide.hpp"
#include "core/sha256.hpp"

namespace flashwright {

// A question that tuning answers: which schedule is best for this problem, for shapes of this bucket,
// on a device of this class, measured in this way.
struct Slot {
  std::string device;   // device_class(DeviceInfo)
  std::string problem;  // to_string(Problem)
  std::string bucket;   // of the sizes
  std::string policy;   // of the measurement: eager or graph, warm or cold cache
  std::strong_ordering operator<=>(const Slot&) const = default;
  bool operator==(const Slot&) const = default;
};
std::string to_string(const Slot& slot);

std::string to_text(const Trial& trial);
std::string to_text(const Decision& decision);

// Nothing when the text is not one of these.
std::optional<Trial> trial_of(std::string_view text);
std::optional<Decision> decision_of(std::string_view text);

Digest digest_of(const Slot& slot, std::string_view text);

nlohmann::json to_record(const Slot& slot);
std::optional<Slot> slot_of(const nlohmann::json& record);

}  // namespace flashwright
