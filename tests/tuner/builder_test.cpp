#include "tuner/builder.hpp"

#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"
#include "tests/tuner/landscape.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

std::vector<Schedule> all_schedules() {
  std::vector<Schedule> out;
  for (const std::string& name : schedule_names()) out.push_back(parse_schedule(name));
  return out;
}

}  // namespace

TEST_CASE("what is built is compiled once, stored when kept, and found again") {
  Rig rig;
  const Schedule schedule = all_schedules()[1];
  const Built first = build(rig.family, rig.problem, schedule, rig.backend, &rig.artifacts);
  CHECK(first.failure == "");
  CHECK(!first.from_store);
  CHECK(first.key != first.base);
  CHECK(rig.artifacts.list().empty());
  keep(first, rig.problem, rig.artifacts);
  const Built second = build(rig.family, rig.problem, schedule, rig.backend, &rig.artifacts);
  CHECK(second.from_store);
  CHECK(second.binary.bytes == first.binary.bytes);
  CHECK(rig.backend.compilations == 1);
  CHECK(contains(rig.artifacts.list().front().label, to_string(schedule)));
  const Built apart = build(rig.family, rig.problem, schedule, rig.backend, nullptr);
  CHECK(!apart.from_store);
}

TEST_CASE("another compiler makes another binary; without one, any will do") {
  Rig rig;
  const Schedule schedule = all_schedules()[1];
  keep(build(rig.family, rig.problem, schedule, rig.backend, &rig.artifacts), rig.problem,
       rig.artifacts);
  rig.backend.toolchain_name = "fake 2";
  CHECK(!build(rig.family, rig.problem, schedule, rig.backend, &rig.artifacts).from_store);
  rig.backend.compiler_lacks = "no compiler";
  const Built built = build(rig.family, rig.problem, schedule, rig.backend, &rig.artifacts);
  CHECK(built.from_store);
  CHECK(built.key == built.base);
}

TEST_CASE("what does not compile is told in one line and never stored") {
  Landscape landscape = usual_landscape();
  landscape[schedule_names()[1]].compiles = false;
  Rig rig(landscape);
  const Built built =
      build(rig.family, rig.problem, all_schedules()[1], rig.backend, &rig.artifacts);
  CHECK(contains(built.failure, "is not wanted"));
  keep(built, rig.problem, rig.artifacts);
  CHECK(rig.artifacts.list().empty());
}

TEST_CASE("a queue builds everything, in order on one thread") {
  Rig rig;
  BuildQueue queue(rig.family, rig.problem, all_schedules(), rig.backend, nullptr, 1);
  for (const std::string& name : schedule_names()) {
    const std::unique_ptr<Built> built = queue.take(true);
    REQUIRE(built != nullptr);
    CHECK(to_string(built->schedule) == name);
  }
  CHECK(queue.take(true) == nullptr);
  CHECK(queue.unfinished() == 0);
}

TEST_CASE("many threads build each schedule once") {
  Rig rig;
  rig.backend.compile_seconds = 0.001;
  BuildQueue queue(rig.family, rig.problem, all_schedules(), rig.backend, nullptr, 8);
  std::set<std::string> seen;
  while (const std::unique_ptr<Built> built = queue.take(true))
    seen.insert(to_string(built->schedule));
  CHECK(seen.size() == schedule_names().size());
  CHECK(rig.backend.compilations == static_cast<int>(schedule_names().size()));
}

TEST_CASE("a queue that is stopped, or goes, starts nothing more") {
  Rig rig;
  rig.backend.compile_seconds = 0.02;
  {
    BuildQueue queue(rig.family, rig.problem, all_schedules(), rig.backend, nullptr, 2);
    CHECK(queue.take(true) != nullptr);
    queue.stop();
    while (queue.take(true) != nullptr) {
    }
    CHECK(queue.unfinished() == 0);
  }
  const int after_stop = rig.backend.compilations;
  CHECK(after_stop < 8);
  { const BuildQueue queue(rig.family, rig.problem, all_schedules(), rig.backend, nullptr, 2); }
  CHECK(rig.backend.compilations - after_stop <= 2);
}

TEST_CASE("FLASHWRIGHT_JOBS says how many threads compile") {
  const test::Environment five(test::Variables{{"FLASHWRIGHT_JOBS", "5"}});
  CHECK(default_jobs() == 5);
  for (const char* text : {"0", "-3", "many", ""}) {
    const test::Environment odd(test::Variables{{"FLASHWRIGHT_JOBS", text}});
    CHECK(default_jobs() >= 1);
  }
}
