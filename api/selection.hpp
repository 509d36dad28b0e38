// Which schedule serves a request, and on what evidence.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cache/trials.hpp"
#include "generator/family.hpp"

namespace flashwright {

enum class Choice { config, measured, measured_near, predicted, shipped, by_default };
const char* to_string(Choice choice);

struct Selection {
  Schedule schedule;
  Choice choice = Choice::by_default;
  std::optional<Decision> decision;      // the evidence, when there is some
  std::string bucket;                    // for which the decision was made
  std::string origin;                    // of a shipped decision: device, date, version
  std::vector<std::string> passed_over;  // better evidence that cannot run, and why
};

// In this order: a schedule in the Config, a measured winner of the bucket, one of a bucket nearby, a
// predicted one, the shipped winner of the bucket, the family's default. A stored or shipped schedule
// that is no longer legal is passed over.
Selection select_schedule(const Config& config, const Problem& problem, const DeviceInfo& device,
                          const Shape& shape, const Family& family, TuningStore& store,
                          const std::vector<DecisionFile>& shipped);

// The decision of shipped files for a slot, or null, and the file that it comes from.
struct Shipped {
  const DecisionFile* file = nullptr;
  const Decision* decision = nullptr;
};
Shipped find_shipped(const std::vector<DecisionFile>& files, const Slot& slot);

}  // namespace flashwright
