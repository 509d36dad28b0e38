#include "api/selection.hpp"

#include <fmt/format.h>

#include <array>

#include "core/error.hpp"
#include "core/log.hpp"
#include "tuner/session.hpp"
#include "tuner/space.hpp"

namespace flashwright {
namespace {

// The schedule of a decision, if it can still run.
std::optional<Schedule> usable(const Decision& decision, const Problem& problem,
                               const DeviceInfo& device, const Shape& shape, const Family& family) {
  try {
    const Schedule schedule = parse_schedule(decision.schedule);
    const Candidate candidate = family.consider(problem, device, shape, schedule);
    if (candidate.rejected.empty()) return schedule;
    log(LogLevel::info, fmt::format("stored schedule {} of {} is passed over: {}",
                                    decision.schedule, to_string(problem), candidate.rejected));
  } catch (const Error& error) {
    log(LogLevel::info, fmt::format("stored schedule {} of {} is passed over: {}",
                                    decision.schedule, to_string(problem), error.message));
  }
  return std::nullopt;
}

}  // namespace

const char* to_string(Choice choice) {
  constexpr std::array kNames = {"config", "measured", "measured nearby", "predicted", "default"};
  return kNames[static_cast<std::size_t>(choice)];
}

Selection select_schedule(const Config& config, const Problem& problem, const DeviceInfo& device,
                          const Shape& shape, const Family& family, TuningStore& store) {
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
    const std::optional<Schedule> schedule = usable(decision, problem, device, shape, family);
    if (!schedule) return false;
    out.schedule = *schedule;
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
  if (own && take(*own, slot.bucket, Choice::predicted)) return out;
  out.schedule = family.default_schedule(problem, device, shape);
  return out;
}

}  // namespace flashwright
