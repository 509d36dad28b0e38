#include "cache/trials.hpp"

#include <SQLiteCpp/SQLiteCpp.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::test;

namespace {

const Slot kSlot{"sm_90a sms132", "forward bf16 d128 causal sm_90a", "bh64 q4096 kv4096", "eager"};

Slot with_bucket(const std::string& bucket) {
  Slot slot = kSlot;
  slot.bucket = bucket;
  return slot;
}

Trial measured(const std::string& schedule, double relative, std::int64_t at) {
  Trial trial;
  trial.schedule = schedule;
  trial.baseline = "q64";
  trial.kernel = sha256(schedule);
  trial.at = at;
  trial.registers = 128;
  summarise(trial, {100.1 * relative, 99.7 * relative, 100 * relative}, {100, 100, 100.3});
  return trial;
}

Trial failed(const std::string& schedule, std::int64_t at) {
  Trial trial;
  trial.schedule = schedule;
  trial.baseline = "q64";
  trial.status = TrialStatus::failed;
  trial.detail = "ptxas: out of \"registers\"\xff";  // not UTF-8
  trial.at = at;
  return trial;
}

std::string exported(TuningStore& store) {
  std::stringstream out;
  store.export_lines(out);
  return out.str();
}

ImportReport import_text(TuningStore& store, const std::string& text) {
  std::stringstream in(text);
  return store.import_lines(in);
}

std::string file_of(const Folder& folder) { return folder / "tuning-2.db"; }

}  // namespace

TEST_CASE("trials come back as they were, in the next store as well") {
  const Folder folder;
  {
    TuningStore store(in_folder(folder));
    CHECK(store.trials(kSlot).empty());
    store.add_trials(kSlot, {measured("q64", 1, 1), measured("q128", 0.8, 2)});
    store.add_trials(kSlot, {failed("q256", 3)});
    store.add_trials(kSlot, {measured("q64", 1, 1)});  // the same once more
    store.add_trials(with_bucket("other"), {measured("q64", 1, 1)});
  }
  TuningStore store(in_folder(folder));
  std::vector<Trial> trials = store.trials(kSlot);
  REQUIRE(trials.size() == 3);
  std::sort(trials.begin(), trials.end(),
            [](const Trial& a, const Trial& b) { return a.at < b.at; });
  CHECK(trials[0] == measured("q64", 1, 1));
  CHECK(trials[1] == measured("q128", 0.8, 2));
  CHECK(trials[2].status == TrialStatus::failed);
  CHECK(trials[2].detail.starts_with("ptxas: out of \"registers\""));
  Trial nonsense = measured("q64", 1, 9);
  nonsense.log_ratio = std::numeric_limits<double>::quiet_NaN();
  store.add_trials(kSlot, {nonsense});
  CHECK(store.trials(kSlot).size() == 3);
  Trial now = measured("q64", 1, 0);
  store.add_trials(kSlot, {now});
  CHECK(store.trials(kSlot).size() == 4);
}

TEST_CASE("decisions follow from trials, and the winner in use stays while it is as good") {
  const Folder folder;
  TuningStore store(in_folder(folder));
  CHECK(!store.decision(kSlot));
  CHECK(!store.decide(kSlot));
  store.add_trials(kSlot, {measured("q64", 1, 1), measured("q128", 0.8, 2), failed("q256", 3)});
  const std::optional<Decision> decision = store.decide(kSlot);
  REQUIRE(decision);
  CHECK(decision->schedule == "q128");
  CHECK(decision->grade == Grade::measured);
  CHECK(decision->measured == 2);
  CHECK(decision->failed == 1);
  CHECK(store.decision(kSlot) == decision);
  CHECK(TuningStore(in_folder(folder)).decision(kSlot) == decision);

  store.add_trials(kSlot, {measured("q112", 0.799, 4)});  // first by text, but no better
  CHECK(store.decide(kSlot)->schedule == "q128");
  store.add_trials(kSlot, {measured("q96", 0.7, 5)});
  CHECK(store.decide(kSlot)->schedule == "q96");
}

TEST_CASE("a prediction stands until something was measured") {
  const Folder folder;
  TuningStore store(in_folder(folder));
  Decision predicted;
  predicted.schedule = predicted.baseline = "q32";
  predicted.tied = {"q32"};
  store.put_decision(kSlot, predicted);
  CHECK(store.decision(kSlot)->schedule == "q32");
  CHECK(store.decision(kSlot)->grade == Grade::predicted);
  store.add_trials(kSlot, {measured("q64", 1, 1), measured("q32", 1.001, 2)});
  CHECK(store.decide(kSlot)->schedule == "q64");  // a prediction is no incumbent
  store.put_decision(kSlot, predicted);
  CHECK(store.decision(kSlot)->grade == Grade::measured);
}

TEST_CASE("decisions of other buckets are found") {
  const Folder folder;
  TuningStore store(in_folder(folder));
  for (const char* bucket : {"small", "large", "untuned"})
    store.add_trials(with_bucket(bucket), {measured("q64", 1, 1)});
  store.decide(with_bucket("small"));
  store.decide(with_bucket("large"));
  Slot other_device = with_bucket("small");
  other_device.device = "sm_90a sms16";
  store.add_trials(other_device, {measured("q64", 1, 1)});
  store.decide(other_device);
  const auto near = store.decisions_near(with_bucket("none"));
  REQUIRE(near.size() == 2);
  CHECK(near[0].first.bucket == "large");
  CHECK(near[1].first.bucket == "small");
  const std::vector<SlotSummary> all = store.list();
  CHECK(all.size() == 4);
  CHECK(std::count_if(all.begin(), all.end(),
                      [](const SlotSummary& s) { return s.decision.has_value(); }) == 3);
}

TEST_CASE("merging is a union: twice adds nothing, and the order does not matter") {
  const Folder first, second, third, fourth;
  TuningStore a(in_folder(first)), b(in_folder(second));
  for (int i = 0; i < 6; ++i) {
    a.add_trials(with_bucket(fmt::format("{}", i % 3)),
                 {measured("q64", 1, i), measured("q128", 0.9, i)});
    b.add_trials(with_bucket(fmt::format("{}", i % 2)),
                 {measured("q64", 1, 10 + i), measured("q96", 0.8, 10 + i)});
  }
  for (int i = 0; i < 3; ++i) {
    a.decide(with_bucket(fmt::format("{}", i)));
    b.decide(with_bucket(fmt::format("{}", i)));
  }
  b.add_trials(with_bucket("0"), {measured("q64", 1, 1)});
  Decision predicted;
  predicted.schedule = "q5";
  predicted.at = 7;
  b.put_decision(with_bucket("far"), predicted);
  const std::string from_a = exported(a), from_b = exported(b);
  TuningStore ab(in_folder(third)), ba(in_folder(fourth));
  CHECK(import_text(ab, from_a).refused == 0);
  CHECK(import_text(ab, from_b).added > 0);
  import_text(ba, from_b);
  import_text(ba, from_a);
  CHECK(exported(ab) == exported(ba));
  const std::string before = exported(ab);
  for (const std::string& text : {from_a, from_b, before}) CHECK(import_text(ab, text).added == 0);
  CHECK(exported(ab) == before);
  CHECK(ab.decision(with_bucket("0"))->schedule == "q96");
  CHECK(ab.decision(with_bucket("0"))->measured == 3);
  CHECK(ab.decision(with_bucket("2"))->schedule == "q128");
  CHECK(ab.decision(with_bucket("far"))->schedule == "q5");

  // Lines in any order, and doubled.
  std::vector<std::string> lines;
  std::stringstream in(before);
  std::string header;
  std::getline(in, header);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  for (std::size_t i = 0; i < 5; ++i) lines.push_back(std::string(lines[i]));
  std::shuffle(lines.begin(), lines.end(), std::mt19937(5));
  std::string shuffled = header + "\n";
  for (const std::string& line : lines) shuffled += line + "\n";
  const Folder fifth;
  TuningStore again(in_folder(fifth));
  CHECK(import_text(again, shuffled).refused == 0);
  CHECK(exported(again) == before);
}

TEST_CASE("an import counts as known what was there before it, and nothing else") {
  const Folder first, second, third;
  TuningStore from(in_folder(first)), to(in_folder(second)), undecided(in_folder(third));
  Decision predicted;
  predicted.schedule = "q5";
  from.put_decision(with_bucket("guessed"), predicted);
  for (const char* bucket : {"1", "2"}) {
    from.add_trials(with_bucket(bucket), {measured("q64", 1, 1), measured("q128", 0.8, 2)});
    from.decide(with_bucket(bucket));
  }
  const std::string text = exported(from);
  const std::int64_t records = 2 * 3 + 1;
  CHECK(std::count(text.begin(), text.end(), '\n') == records + 1);
  ImportReport report = import_text(to, text);
  CHECK(report.added == records);
  CHECK(report.known == 0);
  CHECK(exported(to) == text);
  report = import_text(to, text);
  CHECK(report.added == 0);
  CHECK(report.known == records);
  // The trials are there, the decision is not.
  undecided.add_trials(with_bucket("1"), from.trials(with_bucket("1")));
  report = import_text(undecided, text);
  CHECK(report.added == records - 2);
  CHECK(report.known == 2);
  CHECK(undecided.decision(with_bucket("1")) == from.decision(with_bucket("1")));
}

TEST_CASE("a hostile import is refused line by line") {
  const Folder folder, sample_folder;
  TuningStore store(in_folder(folder)), sample(in_folder(sample_folder));
  sample.add_trials(kSlot, {measured("q64", 1, 1)});
  std::stringstream in(exported(sample));
  std::string header, line;
  std::getline(in, header);
  std::getline(in, line);
  const nlohmann::json good = nlohmann::json::parse(line);
  std::vector<std::string> lines = {"", "{}", "[]", "{\"slot\":7,\"trial\":{}}",
                                    std::string(2 << 20, 'x')};
  for (const auto& [field, value] :
       std::vector<std::pair<const char*, nlohmann::json>>{{"schedule", 5},
                                                           {"kernel", "zz"},
                                                           {"status", "fine"},
                                                           {"samples", -1.5},
                                                           {"log_ratio", nullptr},
                                                           {"registers", -1},
                                                           {"registers", 1e30},
                                                           {"median_ns", 1}}) {
    nlohmann::json copy = good;
    copy["trial"][field] = value;
    lines.push_back(copy.dump());
  }
  lines.push_back(nlohmann::json{{"slot", good["slot"]}, {"pin", {{"schedule", "q8"}}}}.dump());
  nlohmann::json moved = good;
  moved["slot"]["bucket"] = "another";
  lines.push_back(moved.dump());
  std::string text = header + "\n";
  for (const std::string& one : lines) text += one + "\n";
  const ImportReport report = import_text(store, text + line + "\n");
  CHECK(report.refused == static_cast<std::int64_t>(lines.size()));
  CHECK(report.added == 1);
  CHECK(store.trials(kSlot) == sample.trials(kSlot));
  CHECK(import_text(store, line).refused == 1);  // no header
}

TEST_CASE("records that were damaged in the file are passed over") {
  const Folder folder;
  {
    TuningStore store(in_folder(folder));
    store.add_trials(kSlot, {measured("q64", 1, 1), measured("q128", 0.8, 2)});
    store.decide(kSlot);
  }
  SQLite::Database(file_of(folder), SQLite::OPEN_READWRITE)
      .exec(
          "UPDATE trial SET record = replace(record, '\"q128\"', '\"q129\"');"
          "UPDATE decision SET record = replace(record, '\"q128\"', '\"q129\"')");
  const Log log;
  TuningStore store(in_folder(folder));
  CHECK(store.trials(kSlot).size() == 1);
  CHECK(!store.decision(kSlot));
  CHECK(log.warnings().size() == 1);
  store.add_trials(kSlot, {measured("q128", 0.8, 2)});
  CHECK(store.decide(kSlot)->schedule == "q128");
}

TEST_CASE("what a damaged file still holds is carried over into the new one") {
  const Folder folder;
  {
    TuningStore store(in_folder(folder));
    for (int i = 0; i < 400; ++i)
      store.add_trials(with_bucket(fmt::format("{}", i % 4)),
                       {measured(fmt::format("q{}", i), 1, i)});
    Decision predicted;
    predicted.schedule = "q7";
    store.put_decision(with_bucket("guessed"), predicted);
    CHECK(store.decide(with_bucket("0"))->schedule == "q64");
  }
  std::string bytes = read_file(file_of(folder));
  REQUIRE(bytes.size() > 40 * 4096);
  bytes.replace(bytes.size() / 2 / 4096 * 4096, 4096, 4096, 'x');  // one page
  write_file(file_of(folder), bytes);
  const Log log;
  TuningStore store(in_folder(folder));
  std::size_t left = 0;
  for (int round = 0; round < 2; ++round) {
    left = 0;
    for (int i = 0; i < 4; ++i) left += store.trials(with_bucket(fmt::format("{}", i))).size();
  }
  MESSAGE(fmt::format("{} of 400 trials survived", left));
  CHECK(left > 380);
  CHECK(store.decision(with_bucket("guessed"))->schedule == "q7");
  CHECK(store.decision(with_bucket("0"))->schedule == "q64");
  CHECK(integrity(file_of(folder)) == "ok");
  CHECK(log.warnings().size() == 1);
}

TEST_CASE("a tuning store that cannot write its file adds to it in memory") {
  const Folder folder;
  {
    TuningStore store(in_folder(folder));
    store.add_trials(kSlot, {measured("q64", 1, 1)});
    store.decide(kSlot);
  }
  SQLite::Database(file_of(folder), SQLite::OPEN_READWRITE).exec("PRAGMA user_version = 2");
  std::filesystem::permissions(folder.path(), std::filesystem::perms{0755});
  std::filesystem::permissions(file_of(folder), std::filesystem::perms{0444});
  const auto status = as_nobody([&] {
    const Log log;
    TuningStore store(in_folder(folder));
    store.add_trials(kSlot, {measured("q128", 0.8, 2)});
    if (store.trials(kSlot).size() != 2) return 1;
    if (store.decision(kSlot)->schedule != "q64") return 2;
    if (store.decide(kSlot)->schedule != "q128") return 3;
    if (store.decision(kSlot)->schedule != "q128") return 4;
    return log.warnings().size() == 1 ? 0 : 5;
  });
  if (status)
    CHECK(*status == 0);
  else
    testing::skip("a tuning store that cannot write its file adds to it in memory",
                  "this process cannot become another user");
}
