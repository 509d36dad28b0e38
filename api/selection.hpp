// Which schedule serves a request, and on what evidence.
#pragma once

#include <optional>
#include <string>

#include "cache/trials.hpp"
#include "generator/family.hpp"

namespace flashwright {

enum class Choice { config, measured, measured_near, predicted, by_default };
const char* to_string(Choice choice);

struct Selection {
  Schedule schedule;
  Choice choice = Choice::by_default;
  std::optional<Decision> decision;  // the evidence, when there is some
  std::string bucket;                // for which the decision was made
};

// In this order: a schedule in the Config, a measured winner of the bucket, one of a bucket nearby, a
// predicted winner, the family's default. A stored schedule that is no longer legal is
// passed over.
Selection select_schedule(const Config& config, const Problem& problem, const DeviceInfo& device,
                          const Shape& shape, const Family& family, TuningStore& store);

}  // namespace flashwright
