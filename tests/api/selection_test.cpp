// Which schedule serves a request, and on what evidence.
#include "api/selection.hpp"

#include "core/log.hpp"
#include "tests/api/fake_devices.hpp"
#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"
#include "tuner/session.hpp"
#include "tuner/space.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

constexpr Shape kShape{4, 16, 16, 1000, 1000};

// A request over a store of its own.
struct Choosing {
  Machine& m = fresh_machine();
  Config config = config_from_json(kConfig);
  Problem problem = normalise(config, {BackendKind::cuda, "sm_80"});
  DeviceInfo device = fake_device();
  TuningStore store{{":memory:", 0, ""}};

  std::vector<DecisionFile> files;

  Selection choose() {
    return select_schedule(config, problem, device, kShape, *m.family, store, files);
  }
  void ship(const Slot& where, const std::string& schedule) {
    DecisionFile file;
    file.device = "some device";
    file.date = "2026-11-30";
    file.tool = "flashwright 0.1.0";
    Decision decision;
    decision.schedule = decision.baseline = schedule;
    decision.grade = Grade::measured;
    file.decisions.emplace(where, decision);
    files.push_back(file);
  }
  Slot slot(const Shape& shape = kShape) const { return make_slot(problem, device, shape); }
  void measured(const Slot& where, const std::string& schedule) {
    Trial trial;
    trial.schedule = schedule;
    trial.baseline = kSchedules[0];
    trial.samples = 10;
    trial.median_ns = 50000;
    trial.low_ns = trial.high_ns = 50000;
    trial.log_ratio = -0.5;
    trial.margin = 0.01;
    store.add_trials(where, {trial});
    store.decide(where);
  }
};

}  // namespace

TEST_CASE("without evidence the family's default serves") {
  Choosing c;
  CHECK(to_string(c.choose().schedule) == kSchedules[0]);
  CHECK(c.choose().choice == Choice::by_default);
  CHECK(!c.choose().decision);
}

TEST_CASE("evidence is preferred in the order: Config, measured, measured nearby, predicted") {
  Choosing c;
  Decision predicted;
  predicted.schedule = kSchedules[1];
  predicted.baseline = kSchedules[0];
  c.store.put_decision(c.slot(), predicted);
  CHECK(c.choose().choice == Choice::predicted);
  CHECK(to_string(c.choose().schedule) == kSchedules[1]);

  const Slot near = c.slot({4, 16, 16, 4000, 1000}), far = c.slot({4, 16, 16, 100000, 100000});
  CHECK(bucket_distance(near.bucket, c.slot().bucket) == 1);
  c.measured(far, kSchedules[1]);
  CHECK(c.choose().choice == Choice::predicted);
  c.measured(near, kSchedules[2]);
  CHECK(c.choose().choice == Choice::measured_near);
  CHECK(to_string(c.choose().schedule) == kSchedules[2]);
  CHECK(c.choose().bucket == near.bucket);

  c.measured(c.slot(), kSchedules[1]);
  CHECK(c.choose().choice == Choice::measured);
  CHECK(to_string(c.choose().schedule) == kSchedules[1]);
  REQUIRE(c.choose().decision);
  CHECK(c.choose().decision->gain > 0.5);

  c.config.schedule = kSchedules[2];
  CHECK(c.choose().choice == Choice::config);
  CHECK(to_string(c.choose().schedule) == kSchedules[2]);
}

TEST_CASE("a shipped winner goes before the default, not before what one's own store has") {
  Choosing c;
  c.ship(c.slot({4, 16, 16, 100000, 100000}), kSchedules[1]);
  CHECK(c.choose().choice == Choice::by_default);
  c.ship(c.slot(), kSchedules[2]);
  CHECK(c.choose().choice == Choice::shipped);
  CHECK(to_string(c.choose().schedule) == kSchedules[2]);
  CHECK(c.choose().origin == "some device, 2026-11-30, flashwright 0.1.0");
  CHECK(c.choose().bucket == c.slot().bucket);

  Decision predicted;
  predicted.schedule = kSchedules[1];
  c.store.put_decision(c.slot(), predicted);
  CHECK(c.choose().choice == Choice::predicted);
  CHECK(c.choose().origin == "");
  c.measured(c.slot({4, 16, 16, 4000, 1000}), kSchedules[1]);
  CHECK(c.choose().choice == Choice::measured_near);
  c.measured(c.slot(), kSchedules[1]);
  CHECK(c.choose().choice == Choice::measured);
  c.config.schedule = kSchedules[2];
  CHECK(c.choose().choice == Choice::config);
}

TEST_CASE("a shipped schedule of another device, or one that can no longer run, is passed over") {
  Choosing c;
  Slot other = c.slot();
  other.device = "another class";
  c.ship(other, kSchedules[1]);
  CHECK(c.choose().choice == Choice::by_default);
  CHECK(c.choose().passed_over.empty());
  c.ship(c.slot(), "q999.kv64.w4.st2");
  CHECK(c.choose().choice == Choice::by_default);
  CHECK(to_string(c.choose().schedule) == kSchedules[0]);
  CHECK(c.choose().origin == "");
  REQUIRE(c.choose().passed_over.size() == 1);
  CHECK(contains(c.choose().passed_over[0], "q999.kv64.w4.st2: "));
  CHECK(contains(c.choose().passed_over[0], "no such schedule"));
}

TEST_CASE("a stored schedule that can no longer run is passed over") {
  Choosing c;
  c.measured(c.slot(), "q999.kv64.w4.st2");
  std::string told;
  set_log_level(LogLevel::info);
  set_log_sink([&](LogLevel, const std::string& line) { told += line; });
  const Selection selection = c.choose();
  set_log_sink({});
  set_log_level(LogLevel::warn);
  CHECK(selection.choice == Choice::by_default);
  CHECK(contains(told, "q999.kv64.w4.st2"));
  CHECK(contains(told, "no such schedule"));
}

TEST_CASE("a stored schedule that cannot be read is passed over") {
  Choosing c;
  Decision later;
  later.schedule = "written by a later version";
  c.store.put_decision(c.slot(), later);
  CHECK(c.choose().choice == Choice::by_default);
}

TEST_CASE("a schedule in the Config that cannot run is an error with the reason") {
  Choosing c;
  c.config.schedule = "q999.kv64.w4.st2";
  const Error error = error_of([&] { c.choose(); });
  CHECK(error.status == Status::unsupported);
  for (const char* part :
       {"schedule", "q999.kv64.w4.st2", "fp32 d16", "fake device", "no such schedule"})
    CHECK(contains(error.message, part));
  c.config.schedule = "nonsense";
  CHECK(error_of([&] { c.choose(); }).status == Status::bad_argument);
}

TEST_CASE("evidence of another device, problem or bucket does not count") {
  Choosing c;
  c.measured(c.slot(), kSchedules[1]);
  c.device.sm_count /= 2;
  CHECK(c.choose().choice == Choice::by_default);
  c.device = fake_device();
  c.problem.head_dim = c.problem.head_dim_v = 32;
  CHECK(c.choose().choice == Choice::by_default);
}
