// One search over a landscape that is known.
#include "tuner/session.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/log.hpp"
#include "tests/support/testing.hpp"
#include "tests/tuner/landscape.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

// Wrong candidates are logged as errors; here they are planted.
struct Quiet {
  Quiet() {
    set_log_sink([](LogLevel, const std::string&) {});
  }
  ~Quiet() { set_log_sink({}); }
};

void check_nothing_left(const Rig& rig) {
  CHECK(rig.backend.alive == 0);
  CHECK(rig.backend.memory_blocks == 0);
}

int count_of(const TuneReport& report, const std::string& schedule, TrialStatus status) {
  int count = 0;
  for (const Trial& trial : report.trials)
    count += trial.schedule == schedule && trial.status == status;
  return count;
}

}  // namespace

TEST_CASE("the fastest schedule wins, and everything is given back") {
  for (const BackendKind kind : {BackendKind::cuda, BackendKind::cpu}) {
    Rig rig(usual_landscape(), kind);
    const TuneReport report = rig.tune();
    REQUIRE(report.decision);
    CHECK(rig.time_of(report.decision->schedule) <= 1.01 * best_time(rig.landscape));
    CHECK(report.decision->grade == Grade::measured);
    CHECK(report.decision->confident);
    CHECK(report.decision->baseline == schedule_names().front());
    CHECK(report.decision->gain ==
          doctest::Approx(100.0 / rig.time_of(report.decision->schedule) - 1).epsilon(0.02));
    CHECK(report.considered == static_cast<int>(schedule_names().size()));
    CHECK(report.legal == report.considered);
    CHECK(!report.interrupted);
    CHECK(rig.store.decision(report.slot)->schedule == report.decision->schedule);
    check_nothing_left(rig);
  }
}

TEST_CASE("schedules much slower than the default are dropped at first sight") {
  Rig rig;
  const TuneReport report = rig.tune();
  for (const char* hopeless :
       {"q128.kv128.w4.st1.b1", "q16.kv32.w1.st2.b8", "q16.kv64.w1.st2.b6"}) {
    CHECK(count_of(report, hopeless, TrialStatus::rejected) == 1);
    CHECK(count_of(report, hopeless, TrialStatus::ok) == 0);
  }
}

TEST_CASE("candidates that do not compile, load, run or compute right never win, however fast") {
  const Quiet quiet;
  Landscape landscape = usual_landscape();
  const std::vector<std::string> bad = {schedule_names()[1], schedule_names()[3],
                                        schedule_names()[5], schedule_names()[7],
                                        schedule_names()[9]};
  for (const std::string& schedule : bad) landscape[schedule].time_us = 5;
  landscape[bad[0]].compiles = false;
  landscape[bad[1]].loads = false;
  landscape[bad[2]].launches = false;
  landscape[bad[3]].right = false;
  landscape[bad[4]].spill_bytes = 300;
  Rig rig(landscape);
  const TuneReport report = rig.tune();
  REQUIRE(report.decision);
  CHECK(report.decision->schedule == "q128.kv32.w4.st2.b2");
  CHECK(report.decision->failed == 5 + 3);  // three more are hopeless
  const std::vector<TrialStatus> statuses = {TrialStatus::failed, TrialStatus::failed,
                                             TrialStatus::failed, TrialStatus::wrong,
                                             TrialStatus::spilled};
  const std::vector<std::string> details = {"is not wanted", "cannot be loaded", "illegal address",
                                            "wrong result", "spills 300 bytes"};
  for (std::size_t i = 0; i < bad.size(); ++i) {
    INFO(bad[i]);
    CHECK(count_of(report, bad[i], statuses[i]) == 1);
    CHECK(count_of(report, bad[i], TrialStatus::ok) == 0);
    for (const Trial& trial : report.trials)
      if (trial.schedule == bad[i]) CHECK(contains(trial.detail, details[i]));
  }
  // Losers are not stored; the winner and the default are.
  CHECK(rig.artifacts.list().size() == 2);
  check_nothing_left(rig);
}

TEST_CASE("a little spilling is tried when all others are done") {
  Landscape landscape = usual_landscape();
  landscape[schedule_names()[4]] = {50, 255, 64, 40000, true, true, true, true};
  Rig rig(landscape);
  const TuneReport report = rig.tune();
  std::size_t first_spilled = report.trials.size(), last_clean = 0;
  std::set<std::string> seen;
  for (std::size_t i = 0; i < report.trials.size(); ++i) {
    const Trial& trial = report.trials[i];
    if (trial.spill_bytes > 0) first_spilled = std::min(first_spilled, i);
    if (trial.spill_bytes == 0 && seen.insert(trial.schedule).second) last_clean = i;
  }
  CHECK(first_spilled < report.trials.size());
  CHECK(last_clean < first_spilled);
}

TEST_CASE("a broken default gives way to the next candidate") {
  const Quiet quiet;
  Landscape landscape = usual_landscape();
  landscape[schedule_names().front()].right = false;
  Rig rig(landscape);
  const TuneReport report = rig.tune();
  REQUIRE(report.decision);
  CHECK(rig.time_of(report.decision->schedule) <= 1.03 * best_time(landscape));
  CHECK(report.decision->baseline != schedule_names().front());
}

TEST_CASE("when no candidate can run, the error lists each with its reason") {  // C101
  const Quiet quiet;
  Landscape landscape = usual_landscape();
  int number = 0;
  for (const std::string& schedule : schedule_names()) {
    Outcome& outcome = landscape[schedule];
    outcome.compiles = number % 3 != 0;
    outcome.launches = number % 3 != 1;
    outcome.right = number++ % 3 != 2;
  }
  Rig rig(landscape);
  const Error error = error_of([&] { rig.tune(); });
  CHECK(error.status == Status::compile_failed);
  CHECK(contains(error.message,
                 "none of " + std::to_string(schedule_names().size()) + " candidates"));
  CHECK(contains(error.message, to_string(rig.problem)));
  for (const std::string& schedule : schedule_names()) {
    const std::size_t at = error.message.find("\n  " + schedule + ": ");
    REQUIRE(at != std::string::npos);
    const std::string line = error.message.substr(at + 1, error.message.find('\n', at + 1) - at);
    CHECK((contains(line, "is not wanted") || contains(line, "illegal address") ||
           contains(line, "wrong result")));
  }
  check_nothing_left(rig);
}

TEST_CASE("without a legal schedule the error names the problem and the device") {
  Rig rig;
  rig.device.smem_per_block = 1000;
  const Error error = error_of([&] { rig.tune(); });
  CHECK(error.status == Status::unsupported);
  for (const std::string& part :
       {to_string(rig.problem), std::string("fake device"), std::string("fake for")})
    CHECK(contains(error.message, part));
}

TEST_CASE("a budget of nothing is safe") {
  for (const BackendKind kind : {BackendKind::cuda, BackendKind::cpu}) {
    Rig rig(usual_landscape(), kind);
    TuneOptions options;
    options.budget_s = 0;
    const TuneReport report = rig.tune(options);
    CHECK(!report.interrupted);
    CHECK(report.considered == 1);
    if (report.decision) CHECK(report.decision->schedule == schedule_names().front());
    check_nothing_left(rig);
  }
}

TEST_CASE("an interrupt at any moment keeps what was learned") {
  const Quiet quiet;
  Landscape landscape = usual_landscape();
  landscape[schedule_names()[2]].right = false;
  int events = 0;
  {
    Rig rig(landscape);
    TuneOptions options;
    options.jobs = 1;
    options.progress = [&](std::int64_t, std::int64_t, const std::string&) { return ++events > 0; };
    rig.tune(options);
  }
  REQUIRE(events > 30);
  for (int stop = 1; stop <= events; stop += 3) {
    Rig rig(landscape);
    TuneOptions options;
    options.jobs = 1;
    int told = 0, learned = 0;
    options.progress = [&](std::int64_t done, std::int64_t total, const std::string& event) {
      const nlohmann::json row = nlohmann::json::parse(event);
      learned += row["stage"] == "measured" || row["stage"] == "rejected";
      CHECK(done <= total);
      return ++told < stop;
    };
    const TuneReport report = rig.tune(options);
    INFO("stopped at event " << stop);
    CHECK(report.interrupted);
    CHECK(static_cast<int>(rig.store.trials(report.slot).size()) == learned);
    CHECK(static_cast<int>(report.trials.size()) == learned);
    check_nothing_left(rig);
    // A later session goes on from there.
    const TuneReport again = rig.tune();
    REQUIRE(again.decision);
    CHECK(rig.time_of(again.decision->schedule) <= 1.03 * best_time(landscape));
    CHECK(rig.store.trials(report.slot).size() > static_cast<std::size_t>(learned));
  }
}

TEST_CASE("a schedule that was found elsewhere is tried next to the default") {
  const std::string known = schedule_names().back();
  for (const std::string& given : {known, std::string()}) {
    Rig rig;
    rig.known = given;
    std::vector<std::string> tried;
    TuneOptions options;
    options.jobs = 1;
    options.progress = [&](std::int64_t, std::int64_t, const std::string& event) {
      const std::string schedule = nlohmann::json::parse(event).value("schedule", "");
      if (!schedule.empty()) tried.push_back(schedule);
      return true;
    };
    rig.tune(options);
    const auto place = std::find(tried.begin(), tried.end(), known) - tried.begin();
    CHECK((place <= 1) == !given.empty());
  }
}

TEST_CASE("the same seed gives the same decision") {
  std::set<std::string> by_seed;
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    Rig first, second;
    const TuneReport a = first.tune(seed), b = second.tune(seed);
    CHECK(a.decision->schedule == b.decision->schedule);
    CHECK(a.considered == b.considered);
    CHECK(a.trials.size() == b.trials.size());
    by_seed.insert(a.decision->schedule);
  }
  CHECK(by_seed.size() == 1);  // two schedules are tied: the rule, not the seed, decides
}

TEST_CASE("a second session starts from the first one's winner") {
  Rig rig;
  const TuneReport first = rig.tune();
  std::vector<std::string> order;
  TuneOptions options;
  options.jobs = 1;
  options.progress = [&](std::int64_t, std::int64_t, const std::string& event) {
    const nlohmann::json row = nlohmann::json::parse(event);
    if (row.contains("schedule")) order.push_back(row["schedule"]);
    return true;
  };
  const int before = rig.backend.compilations;
  const TuneReport second = rig.tune(options);
  CHECK(second.decision->schedule == first.decision->schedule);
  CHECK(std::find(order.begin(), order.begin() + 8, first.decision->schedule) != order.begin() + 8);
  // The winner and the default come from the store.
  CHECK(rig.backend.compilations - before == static_cast<int>(schedule_names().size()) - 2);
}

TEST_CASE("for an absent device candidates are compiled and ranked, and the result says so") {
  Landscape landscape = usual_landscape();
  landscape[schedule_names()[1]].spill_bytes = 8;
  landscape[schedule_names()[2]].compiles = false;
  Rig rig(landscape);
  rig.device.present = false;
  const TuneReport report = rig.tune();
  REQUIRE(report.decision);
  CHECK(report.decision->grade == Grade::predicted);
  CHECK(rig.backend.launches == 0);
  CHECK(rig.backend.loads == 0);
  CHECK(report.considered == static_cast<int>(schedule_names().size()));
  std::string best;
  double best_us = 1e9;
  for (const Candidate& c : rig.family.space(rig.problem, rig.device, rig.shape)) {
    const std::string schedule = to_string(c.schedule);
    if (schedule == schedule_names()[1] || schedule == schedule_names()[2] ||
        c.estimate.time_us >= best_us)
      continue;
    best = schedule;
    best_us = c.estimate.time_us;
  }
  CHECK(report.decision->schedule == best);
  CHECK(count_of(report, schedule_names()[1], TrialStatus::spilled) == 1);
  CHECK(count_of(report, schedule_names()[2], TrialStatus::failed) == 1);
  // A measurement outranks a prediction, and a prediction does not push a measurement out.
  rig.device.present = true;
  CHECK(rig.tune().decision->grade == Grade::measured);
  rig.device.present = false;
  CHECK(rig.tune().decision->grade == Grade::measured);
}

TEST_CASE("the report is JSON with every trial and the decision") {
  Rig rig;
  const nlohmann::json report = nlohmann::json::parse(to_json(rig.tune()));
  for (const char* field : {"slot", "legal", "considered", "rejected", "interrupted", "seconds",
                            "measured_shape", "trials", "decision"})
    CHECK(report.contains(field));
  CHECK(report["decision"]["grade"] == "measured");
  CHECK(report["slot"]["problem"] == to_string(rig.problem));
  bool measured = false;
  for (const nlohmann::json& trial : report["trials"]) {
    CHECK(trial.contains("status"));
    measured = measured || (trial.contains("time_us") && trial.contains("ratio_to_default") &&
                            trial["samples"] > 0);
  }
  CHECK(measured);
}
