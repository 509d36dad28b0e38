// A landscape of schedules with their times, and a tuning session over it without a device.
#pragma once

#include <string>
#include <vector>

#include "tests/support/fake_backend.hpp"
#include "tuner/session.hpp"

namespace flashwright::testing {

// The default first; the best is 19 % faster, with another a hair behind it.
const std::vector<std::string>& schedule_names();
Landscape usual_landscape();
double best_time(const Landscape& landscape);  // of those that can win

// A session: family, backend and stores of its own, in memory.
struct Rig {
  Landscape landscape;
  FakeFamily family;
  FakeBackend backend;
  Config config;
  Problem problem;
  DeviceInfo device;
  ArtifactStore artifacts{{":memory:", 0, ""}};
  TuningStore store{{":memory:", 0, ""}};
  Shape shape{1, 2, 1, 40, 50};
  std::string known;  // a schedule found elsewhere

  explicit Rig(Landscape what = usual_landscape(), BackendKind kind = BackendKind::cuda,
               std::uint64_t seed = 1);

  TuneReport tune(const TuneOptions& options);
  TuneReport tune(std::uint64_t seed = 1);
  double time_of(const std::string& schedule) const { return landscape.at(schedule).time_us; }
};

}  // namespace flashwright::testing
