// Winners as text that travels: what an export holds, how it is read, what is refused.
#include "cache/decision_file.hpp"

#include <doctest/doctest.h>

#include <sstream>

#include "cache/trials.hpp"
#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::test;
using flashwright::testing::contains;

namespace {

const std::string kHeader =
    R"({"flashwright":"tuning decisions","version":1,"device":"GPU","class":"sm_80 sms1","policy":"eager warm",)"
    R"("tool":"flashwright 0.1.0","date":"2026-11-30"})"
    "\n";
const std::string kPlain =
    R"({"problem":"forward bf16 d64 none sm_80","bucket":"q768 kv768 full","schedule":"q64"})"
    "\n";
const std::string kFaster =
    R"({"problem":"forward bf16 d64 none sm_80","bucket":"q16 kv768 few","schedule":"q128",)"
    R"("default":"q64","gain":0.12})"
    "\n";
const Slot kSlot{"sm_80 sms1", "forward bf16 d64 none sm_80", "q768 kv768 full", "eager warm"};

Trial trial(const std::string& schedule, double log_ratio) {
  Trial out;
  out.schedule = schedule;
  out.baseline = "q64";
  out.samples = 10;
  out.median_ns = out.low_ns = out.high_ns = 1000;
  out.log_ratio = log_ratio;
  out.margin = 0.001;
  out.at = 1795913600000000;  // 2026-11-29
  return out;
}

ImportReport read(const std::string& text, DecisionFile& file) {
  std::istringstream in(text);
  return read_decisions(in, file);
}

ImportReport import(TuningStore& store, const std::string& text) {
  std::istringstream in(text);
  return store.import_decisions(in);
}

}  // namespace

TEST_CASE("an export holds the measured winners of one device, sorted, and nothing else") {
  TuningStore store({":memory:", 0, ""});
  Slot few = kSlot, other = kSlot, guessed = kSlot;
  few.bucket = "q16 kv768 few";
  other.device = "sm_90a sms132";
  guessed.bucket = "q768 kv16 full";
  store.add_trials(kSlot, {trial("q64", 0), trial("q32", 0.2)});
  store.add_trials(few, {trial("q64", 0), trial("q128", -0.1131)});
  store.add_trials(other, {trial("q64", 0)});
  for (const Slot& slot : {kSlot, few, other}) store.decide(slot);
  Decision predicted;
  predicted.schedule = predicted.baseline = "q64";
  store.put_decision(guessed, predicted);
  const DecisionFile file = store.decisions_on("sm_80 sms1", "GPU");
  std::string expected = kHeader + kFaster + kPlain;
  expected.replace(expected.find("2026-11-30"), 10, "2026-11-29");
  CHECK(to_text(file) == expected);
  CHECK(to_text(store.decisions_on("sm_80 sms1", "GPU")) == expected);
  CHECK(file.origin() == "GPU, 2026-11-29, flashwright 0.1.0");
}

TEST_CASE("what is imported is exported as it came") {
  TuningStore store({":memory:", 0, ""});
  CHECK(import(store, kHeader + kPlain + kFaster).added == 2);
  const ImportReport again = import(store, kHeader + kFaster + kPlain);
  CHECK(again.added == 0);
  CHECK(again.known == 2);
  CHECK(to_text(store.decisions_on("sm_80 sms1", "GPU")) == kHeader + kFaster + kPlain);
  REQUIRE(store.decision(kSlot));
  CHECK(store.decision(kSlot)->grade == Grade::measured);
  CHECK(store.decision(kSlot)->gain == 0);
}

TEST_CASE("an imported winner does not replace what follows from trials") {
  TuningStore store({":memory:", 0, ""});
  store.add_trials(kSlot, {trial("q64", 0), trial("q32", -0.2)});
  store.decide(kSlot);
  CHECK(import(store, kHeader + kPlain).known == 1);
  CHECK(store.decision(kSlot)->schedule == "q32");
}

TEST_CASE("lines and headers that are wrong are refused with the reason") {
  const auto with = [](std::string text, const std::string& what, const std::string& by) {
    REQUIRE(contains(text, what));
    return text.replace(text.find(what), what.size(), by);
  };
  const std::vector<std::pair<std::string, std::string>> table = {
      {"", "the file is empty"},
      {"{}\n" + kPlain, "line 1: this is not an export of tuning decisions"},
      {with(kHeader, "\"version\":1", "\"version\":2") + kPlain, "that this version can read"},
      {with(kHeader, "2026-11-30", "2026-11-31") + kPlain, "line 1: the date is '2026-11-31'"},
      {with(kHeader, "2026-11-30", "2026-11-30T1") + kPlain, "line 1: the date is"},
      {with(kHeader, "\"class\"", "\"sort\"") + kPlain, "line 1: the class is missing"},
      {kHeader + "q64\n", "line 2: not a JSON object"},
      {kHeader + with(kPlain, "\"schedule\"", "\"plan\""), "line 2: the schedule is missing"},
      {kHeader + kPlain + kPlain, "line 3: forward bf16 d64 none sm_80 [q768 kv768 full] was"},
      {kHeader + with(kFaster, "0.12", "\"much\""), "line 2: default and gain come together"},
      {kHeader + with(kFaster, "\"default\":\"q64\",", ""), "default and gain come together"}};
  for (const auto& [text, part] : table) {
    INFO(text);
    DecisionFile file;
    const ImportReport report = read(text, file);
    CHECK(report.refused == 1);
    REQUIRE(report.problems.size() == 1);
    INFO(report.problems[0]);
    CHECK(contains(report.problems[0], part));
    TuningStore store({":memory:", 0, ""});
    CHECK(import(store, text).refused == 1);
  }
}
