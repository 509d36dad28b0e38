#include "cache/trials.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "cache/key.hpp"
#include "cache/lines.hpp"
#include "cache/tuning_table.hpp"
#include "core/version.hpp"

namespace flashwright {
namespace {

constexpr const char* kRecords = "tuning results";  // what an export holds
constexpr std::size_t kLongestLine = 1u << 20;
constexpr std::size_t kImportBatch = 500;

std::int64_t now_microseconds() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string read_record(const nlohmann::json& record, Record& out) {
  const auto slot_field = record.find("slot");
  const std::optional<Slot> slot = slot_field == record.end() ? std::nullopt : slot_of(*slot_field);
  if (!slot) return "the slot is missing";
  out.slot = *slot;
  for (const RecordKind kind : {RecordKind::trial, RecordKind::decision}) {
    const auto found = record.find(to_string(kind));
    if (found == record.end()) continue;
    out.kind = kind;
    out.text = to_line(*found);
    const bool readable = kind == RecordKind::trial ? trial_of(out.text).has_value()
                                                    : decision_of(out.text).has_value();
    if (!readable) return fmt::format("the {} cannot be read", to_string(kind));
    const auto digest = digest_from_hex(text_field(record, "digest").value_or(""));
    if (digest != digest_of(out.slot, out.text)) return "the digest does not match";
    return {};
  }
  return "neither a trial nor a decision";
}

}  // namespace

TuningStore::TuningStore(StoreOptions options)
    : database_(std::make_unique<Database>(StoreKind::tuning, tuning_schema(), options.directory,
                                           options.journal, salvage)) {}

TuningStore::~TuningStore() = default;

void TuningStore::add_trials(const Slot& slot, std::vector<Trial> trials) {
  for (Trial& trial : trials)
    if (trial.at == 0) trial.at = now_microseconds();
  database_->write([&](Connection& connection) {
    for (const Trial& trial : trials) {
      const Record record{slot, RecordKind::trial, to_text(trial)};
      if (trial_of(record.text)) write_record(connection, record);  // not one with a NaN
    }
    return true;
  });
}

std::vector<Trial> TuningStore::trials(const Slot& slot) {
  Texts texts;
  std::int64_t damaged = 0;
  database_->read([&](Connection& connection) {
    damaged = collect(connection, RecordKind::trial, slot, texts);
    return false;  // the other layer as well
  });
  tell(damaged);
  return trials_of(texts);
}

void TuningStore::tell(std::int64_t damaged) {
  if (damaged == 0 || told_.exchange(true)) return;
  log(LogLevel::warn,
      "tuning store: some records do not match their digests; they are passed over, "
      "and tuning again replaces them");
}

std::optional<Decision> TuningStore::decide(const Slot& slot) {
  // Where the file cannot be written, what it holds counts all the same.
  Texts known;
  std::optional<std::string> previous;
  database_->read([&](Connection& connection) {
    collect(connection, RecordKind::trial, slot, known);
    if (!previous) previous = find_decision(connection, slot);
    return false;
  });
  std::optional<Decision> decision;
  database_->write([&](Connection& connection) {
    Texts texts = known;
    collect(connection, RecordKind::trial, slot, texts);
    std::optional<std::string> present = find_decision(connection, slot);
    if (!present) present = previous;
    const std::optional<Decision> incumbent = present ? decision_of(*present) : std::nullopt;
    const bool measured = incumbent && incumbent->grade == Grade::measured;
    decision = select_winner(trials_of(texts), measured ? incumbent->schedule : std::string());
    if (decision) write_record(connection, {slot, RecordKind::decision, to_text(*decision)});
    return decision.has_value();
  });
  return decision;
}

void TuningStore::put_decision(const Slot& slot, const Decision& decision) {
  Decision stamped = decision;
  if (stamped.at == 0) stamped.at = now_microseconds();
  const std::string text = to_text(stamped);
  database_->write([&](Connection& connection) {
    const std::optional<std::string> present = find_decision(connection, slot);
    if (present && better(*present, text)) return false;
    write_record(connection, {slot, RecordKind::decision, text});
    return true;
  });
}

std::optional<Decision> TuningStore::decision(const Slot& slot) {
  std::optional<std::string> text;
  std::int64_t damaged = 0;
  database_->read([&](Connection& connection) {
    text = find_decision(connection, slot, &damaged);
    return text.has_value();
  });
  tell(damaged);
  return text ? decision_of(*text) : std::nullopt;
}

std::vector<std::pair<Slot, Decision>> TuningStore::decisions_near(const Slot& slot) {
  std::set<std::string> buckets;
  database_->read([&](Connection& connection) {
    const std::vector<std::string> here = buckets_of(connection, slot);
    buckets.insert(here.begin(), here.end());
    return false;
  });
  std::vector<std::pair<Slot, Decision>> near;
  for (const std::string& bucket : buckets) {
    const Slot other{slot.device, slot.problem, bucket, slot.policy};
    if (std::optional<Decision> found = decision(other)) near.emplace_back(other, *found);
  }
  return near;
}

std::vector<Slot> TuningStore::slots() {
  std::set<Slot> all;
  database_->read([&all](Connection& connection) {
    const std::vector<Slot> here = slots_of(connection);
    all.insert(here.begin(), here.end());
    return false;
  });
  return {all.begin(), all.end()};
}

std::vector<SlotSummary> TuningStore::list() {
  std::vector<SlotSummary> all;
  for (const Slot& slot : slots())
    all.push_back({slot, static_cast<std::int64_t>(trials(slot).size()), decision(slot)});
  return all;
}

StoreStatus TuningStore::status() { return database_->status(); }

std::int64_t TuningStore::export_lines(std::ostream& out) {
  std::int64_t count = 0;
  write_header(out, kRecords);
  for (const Slot& slot : slots()) {
    for (const RecordKind kind : {RecordKind::trial, RecordKind::decision}) {
      Texts texts;
      database_->read([&](Connection& connection) {
        // Of decisions there is one, and the layer in memory comes first.
        if (kind == RecordKind::trial || texts.empty()) collect(connection, kind, slot, texts);
        return false;
      });
      for (const auto& [digest, text] : texts) {
        const std::optional<nlohmann::json> record = parse_json(text);
        if (!record) continue;
        out << to_line({{"slot", to_record(slot)},
                        {to_string(kind), *record},
                        {"digest", to_hex(digest)}})
            << '\n';
        ++count;
      }
    }
  }
  return count;
}

ImportReport TuningStore::import_lines(std::istream& in) {
  std::vector<Record> batch;
  std::set<Slot> changed;
  std::int64_t added = 0, known = 0;
  const auto flush = [&] {
    std::int64_t fresh = 0;
    database_->write([&](Connection& connection) {
      fresh = 0;
      for (const Record& record : batch) {
        if (!merge_record(connection, record)) continue;
        ++fresh;
        if (record.kind == RecordKind::trial) changed.insert(record.slot);
      }
      return true;
    });
    added += fresh;
    known += static_cast<std::int64_t>(batch.size()) - fresh;
    batch.clear();
  };
  const auto take_record = [&](const nlohmann::json& record, ImportReport&) -> std::string {
    Record parsed;
    if (std::string reason = read_record(record, parsed); !reason.empty()) return reason;
    batch.push_back(std::move(parsed));
    if (batch.size() >= kImportBatch) flush();
    return {};
  };
  ImportReport report = read_records(in, kRecords, kLongestLine, take_record);
  flush();
  report.added = added;
  report.known = known;
  for (const Slot& slot : changed) rebuild(slot);
  return report;
}

DecisionFile TuningStore::decisions_on(const std::string& device_class, const std::string& name) {
  DecisionFile file;
  file.device = name;
  file.device_class = device_class;
  file.tool = fmt::format("flashwright {}", kVersion);
  std::int64_t latest = 0;
  for (const SlotSummary& row : list()) {
    if (row.slot.device != device_class || !row.decision || row.decision->grade != Grade::measured)
      continue;
    file.policy = row.slot.policy;
    file.decisions.emplace(row.slot, *row.decision);
    latest = std::max(latest, row.decision->at);
  }
  file.date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(static_cast<std::time_t>(latest / 1000000)));
  return file;
}

ImportReport TuningStore::import_decisions(std::istream& in) {
  DecisionFile file;
  ImportReport report = read_decisions(in, file);
  database_->write([&](Connection& connection) {
    report.added = 0;
    for (const auto& [slot, decision] : file.decisions)
      if (merge_record(connection, {slot, RecordKind::decision, to_text(decision)})) ++report.added;
    return true;
  });
  report.known = static_cast<std::int64_t>(file.decisions.size()) - report.added;
  return report;
}

// Without an incumbent: after a merge the decision depends on the trials alone, not on which of the
// stores was there first.
void TuningStore::rebuild(const Slot& slot) {
  database_->write([&](Connection& connection) {
    Texts texts;
    collect(connection, RecordKind::trial, slot, texts);
    const std::optional<Decision> decision = select_winner(trials_of(texts));
    if (decision) write_record(connection, {slot, RecordKind::decision, to_text(*decision)});
    return decision.has_value();
  });
}

}  // namespace flashwright
