#include "tuner/measure.hpp"

#include "tests/support/testing.hpp"
#include "tests/tuner/landscape.hpp"
#include "tuner/verify.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

// Runners of some schedules over one workload.
struct Race {
  Rig rig;
  Workload workload;
  std::vector<std::unique_ptr<Runner>> owned;
  std::vector<Runner*> runners;

  explicit Race(const std::vector<std::string>& schedules, Landscape landscape = usual_landscape())
      : rig(std::move(landscape)), workload(rig.problem, rig.shape, rig.backend, 0, 1) {
    for (const std::string& schedule : schedules) {
      const Source source = rig.family.emit(rig.problem, parse_schedule(schedule));
      owned.push_back(std::make_unique<Runner>(rig.config, rig.problem, workload, rig.backend, 0,
                                               rig.backend.compile(source), source.plan));
      runners.push_back(owned.back().get());
    }
  }
};

}  // namespace

TEST_CASE("a block measures every runner once and the first one twice") {
  Race race({schedule_names()[0], schedule_names()[1], schedule_names()[2]});
  std::mt19937_64 random(1);
  for (int block = 0; block < 5; ++block) {
    const BlockTimes times = measure_block(race.runners, random);
    REQUIRE(times.time_us.size() == 3);
    CHECK(times.time_us[0] == doctest::Approx(100));
    CHECK(times.time_us[1] == doctest::Approx(81));
    CHECK(times.time_us[2] == doctest::Approx(81.3));
    CHECK(times.baseline_again_us == doctest::Approx(100));
  }
}

TEST_CASE("short kernels are launched many times for one measurement, long ones once") {
  Landscape landscape = usual_landscape();
  landscape[schedule_names()[0]].time_us = 2;
  landscape[schedule_names()[1]].time_us = 5000;
  Race race({schedule_names()[0], schedule_names()[1]}, landscape);
  const auto launches_of = [&](Runner& runner) {
    runner.time_us();  // finds how many
    const int before = race.rig.backend.launches;
    CHECK(runner.time_us() > 0);
    return race.rig.backend.launches - before;
  };
  CHECK(launches_of(*race.runners[0]) >= 100);
  CHECK(launches_of(*race.runners[1]) == 1);
}

TEST_CASE("the verifier sees outputs that are wrong, missing or not numbers") {
  Race race({schedule_names()[0]});
  const Verifier verifier(race.rig.config, race.rig.problem, race.workload, 24);
  race.workload.poison_outputs();
  race.workload.fetch_outputs();
  CHECK(contains(verifier.verdict(race.workload), "not finite"));  // nobody has written them
  race.runners[0]->launch();
  race.workload.fetch_outputs();
  CHECK(verifier.verdict(race.workload) == "");
  // One element of the last row, which is always looked at.
  const TensorView& o = race.workload.host().o;
  float* const last =
      static_cast<float*>(o.data) + o.shape[0] * o.shape[1] * o.shape[2] * o.shape[3] - 1;
  *last += 0.01f;
  CHECK(contains(verifier.verdict(race.workload), "wrong result: error 0.01"));
  race.workload.fetch_outputs();
  CHECK(verifier.verdict(race.workload) == "");
  const TensorView& lse = *race.workload.host().lse;
  static_cast<float*>(lse.data)[lse.shape[0] * lse.shape[1] * lse.shape[2] - 1] += 0.01f;
  CHECK(contains(verifier.verdict(race.workload), "LSE off"));
}
