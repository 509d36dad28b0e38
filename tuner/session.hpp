// One search for the fastest schedule of a problem on a device. Learns into the store as it goes,
// so it can be stopped at any moment; without a device it compiles, ranks by the model, and marks
// the result as predicted.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <random>
#include <string>

#include "cache/artifacts.hpp"
#include "cache/trials.hpp"
#include "tuner/builder.hpp"
#include "tuner/measure.hpp"
#include "tuner/space.hpp"
#include "tuner/verify.hpp"

namespace flashwright {

struct TuneOptions {
  double budget_s = 60;
  std::uint64_t seed = 1;
  int jobs = 0;  // 0: default_jobs()
  // Called with what was just learned as a line of JSON; false asks to stop.
  std::function<bool(std::int64_t done, std::int64_t total, const std::string& event)> progress;
};

struct TuneReport {
  Slot slot;
  std::optional<Decision> decision;
  std::vector<Trial> trials;  // of this search
  int legal = 0, considered = 0;
  std::map<std::string, int> rejected;
  bool interrupted = false;
  double seconds = 0;
  std::string measured_shape;  // smaller than asked when memory is short
};
std::string to_json(const TuneReport& report);

// The question that a decision answers.
Slot make_slot(const Problem& problem, const DeviceInfo& device, const Shape& shape);

struct TuneRequest {
  const Config& config;
  const Problem& problem;
  const Family& family;
  Backend& backend;
  const DeviceInfo& device;  // `present` says whether anything can be measured
  Shape shape;
  std::string known{};  // a schedule that was found fast elsewhere and is tried early; "": none
};

TuneReport tune(const TuneRequest& request, ArtifactStore& artifacts, TuningStore& store,
                const TuneOptions& options);

}  // namespace flashwright
