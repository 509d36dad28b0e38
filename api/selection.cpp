#include "api/selection.hpp"

#include <fmt/format.h>

#include <array>

#include "core/error.hpp"
#include "core/log.hpp"
#include "tuner/session.hpp"
#include "tuner/space.hpp"

namespace flashwright {
namespace {

// Why a stored schedule cannot run; "" if it can, and then it is in `out`.
std::string why_not(const Decision& decision, const Problem& problem, const DeviceInfo& device,
                    const Shape& shape, const Family& family, Schedule& out) {
  try {
    out = parse_schedule(decision.schedule);
    return family.consider(problem, device, shape, out).rejected;
  } catch (const Error& error) {
    return error.message;
  }
}

}  // namespace

const char* to_string(Choice choice) {
  constexpr std::array kNames = {"config",    "measured", "measured nearby",
                                 "predicted", "shipped",  "default"};
  return kNames[static_cast<std::size_t>(choice)];
}

Shipped find_shipped(const std::vector<DecisionFile>& files, const Slot& slot) {
  for (const DecisionFile& file : files)
    if (const auto found = file.decisions.find(slot); found != file.decisions.end())
      return {&file, &found->second};
  return {};
}

Selection select_schedule(const Config& config, const Problem& problem, const DeviceInfo& device,
                          const Shape& shape, const Family& family, TuningStore& store,
                          const std::vector<DecisionFile>& shipped) {
  Selection out;
  if (!config.schedule.empty()) {
    out.schedule = parse_schedule(config.schedule);
    out.choice = Choice::config;
    const Candidate candidate = family.consider(problem, device, shape, out.schedule);
    if (!candidate.rejected.empty())
      throw Error(Status::unsupported,
                  fmt::format("schedule: {} for {} on {}: {}", config.schedule, to_string(problem),
                              device.name, candidate.rejected));
    return out;
  }
  const Slot slot = make_slot(problem, device, shape);
  const auto take = [&](const Decision& decision, const std::string& bucket_text, Choice choice) {
    Schedule schedule;
    if (const std::string why = why_not(decision, problem, device, shape, family, schedule);
        !why.empty()) {
      out.passed_over.push_back(fmt::format("{}: {}", decision.schedule, why));
      log(LogLevel::info, fmt::format("stored schedule {} of {} is passed over: {}",
                                      decision.schedule, to_string(problem), why));
      return false;
    }
    out.schedule = schedule;
    out.choice = choice;
    out.decision = decision;
    out.bucket = bucket_text;
    return true;
  };
  const std::optional<Decision> own = store.decision(slot);
  if (own && own->grade == Grade::measured && take(*own, slot.bucket, Choice::measured)) return out;
  for (const auto& [near, decision] : store.decisions_near(slot))
    if (decision.grade == Grade::measured && bucket_distance(near.bucket, slot.bucket) <= 1 &&
        take(decision, near.bucket, Choice::measured_near))
      return out;
  if (own && own->grade == Grade::predicted && take(*own, slot.bucket, Choice::predicted))
    return out;
  if (const Shipped found = find_shipped(shipped, slot);
      found.decision != nullptr && take(*found.decision, slot.bucket, Choice::shipped)) {
    out.origin = found.file->origin();
    return out;
  }
  out.schedule = family.default_schedule(problem, device, shape);
  return out;
}

}  // namespace flashwright
