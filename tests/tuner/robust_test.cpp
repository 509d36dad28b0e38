// Clocks that drift, noise and outliers, with a timer that is told to misbehave (case C106).
#include <iostream>

#include "tests/support/testing.hpp"
#include "tests/tuner/landscape.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

struct Disturbance {
  const char* name;
  double noise, drift, outliers, drift_period_us = 1e6;
};

// Of how many sessions the winner is within 3 % of the true best; and how many trusted their result.
struct Score {
  int good = 0, confident = 0;
  int kept = 0;  // of how many the winner's kernel is in the store
};
Score score(const Disturbance& d, int sessions) {
  Score out;
  for (int i = 0; i < sessions; ++i) {
    Rig rig(usual_landscape(), BackendKind::cuda, static_cast<std::uint64_t>(i));
    rig.backend.noise = d.noise;
    rig.backend.drift = d.drift;
    rig.backend.outliers = d.outliers;
    rig.backend.drift_period_us = d.drift_period_us;
    const TuneReport report = rig.tune(test_seed() + static_cast<std::uint64_t>(i));
    out.good += report.decision &&
                rig.time_of(report.decision->schedule) <= 1.03 * best_time(rig.landscape);
    out.confident += report.decision && report.decision->confident;
    out.kept += report.decision &&
                rig.artifacts.contains(emit_candidate(rig.family, rig.problem,
                                                      parse_schedule(report.decision->schedule),
                                                      rig.backend)
                                           .key);
  }
  return out;
}

}  // namespace

TEST_CASE("the chosen schedule is within 3 % of the best in 95 of 100 disturbed sessions") {
  constexpr int kSessions = 60;
  for (const Disturbance& d : {Disturbance{"quiet", 0.002, 0, 0},
                               {"noise", 0.02, 0, 0},
                               {"drifting clock", 0.005, 0.15, 0},
                               {"fast drift", 0.005, 0.15, 0, 7000},
                               {"outliers", 0.005, 0, 0.03},
                               {"all of them", 0.01, 0.15, 0.03}}) {
    const Score result = score(d, kSessions);
    std::cout << d.name << ": " << result.good << " of " << kSessions << " good, "
              << result.confident << " confident" << std::endl;
    INFO(d.name);
    CHECK(result.good * 100 >= 95 * kSessions);
  }
}

TEST_CASE("a disturbed device is noticed, a quiet one trusted") {
  CHECK(score({"quiet", 0.002, 0, 0}, 20).confident >= 19);
  CHECK(score({"another program comes and goes", 0.005, 0.25, 0, 7000}, 20).confident <= 2);
  CHECK(score({"noise", 0.2, 0, 0}, 20).confident <= 2);
}

TEST_CASE(
    "the winner's kernel is stored, also when it left the race before the others turned out "
    "slower") {
  CHECK(score({"noise", 0.4, 0, 0.1}, 60).kept == 60);
}
