#include "core/schedule.hpp"

#include "tests/support/random.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

TEST_CASE("the text of a schedule reads back") {
  property("round trip", [] {
    const Schedule schedule = *schedules();
    RC_ASSERT(parse_schedule(to_string(schedule)) == schedule);
  });
  CHECK(to_string(Schedule{}).empty());
  CHECK(parse_schedule("") == Schedule{});
}

TEST_CASE(
    "the text names knobs by key, in the order of the table, without those that do not apply") {
  Schedule schedule;
  schedule.tile_q = 128;
  schedule.tile_kv = 64;
  schedule.warps = 4;
  schedule.stages = 2;
  CHECK(to_string(schedule) == "q128.kv64.w4.st2");
  CHECK(parse_schedule("st2.w4.kv64.q128") == schedule);
}

TEST_CASE("no two knobs share a key or a field") {
  for (const Knob& a : knobs())
    for (const Knob& b : knobs())
      if (&a != &b) {
        CHECK(std::string(a.key) != b.key);
        CHECK(std::string(a.name) != b.name);
        CHECK(a.value != b.value);
      }
}

TEST_CASE("what cannot be read is named, with the keys that there are") {
  const std::vector<std::pair<std::string, const char*>> table = {{"q128.x3", "x3"},
                                                                  {"q", "q"},
                                                                  {"128", "128"},
                                                                  {"q128..kv64", ""},
                                                                  {"q-1", "q-1"},
                                                                  {"q128.kv6a", "kv6a"},
                                                                  {"Q128", "Q128"},
                                                                  {"q128,kv64", "q128,kv64"},
                                                                  {"q99999999999", "q99999999999"},
                                                                  {" q128", " q128"},
                                                                  {"q128 ", "q128 "}};
  for (const auto& [text, part] : table) {
    INFO(text);
    const Error error = error_of([&text = text] { parse_schedule(text); });
    CHECK(error.status == Status::bad_argument);
    CHECK(contains(error.message, std::string("cannot read '") + part + "' of '" + text + "'"));
    for (const Knob& knob : knobs())
      CHECK(contains(error.message, std::string(knob.key) + " (" + knob.name + ")"));
  }
}
