#include "cache/trials.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "cache/database.hpp"
#include "cache/key.hpp"
#include "cache/lines.hpp"

namespace flashwright {
namespace {

// A record is the JSON text of cache/tuning_row; columns exist for what is looked up.
const Schema& schema() {
  static const Schema instance{
      "tuning store",
      0x46575444,  // "FWTD"
      1,
      4096,
      true,
      {"CREATE TABLE slot(id INTEGER PRIMARY KEY, device TEXT NOT NULL, problem TEXT NOT NULL, "
       "bucket TEXT NOT NULL, policy TEXT NOT NULL, UNIQUE(device, problem, policy, bucket)) STRICT",
       "CREATE TABLE trial(uid BLOB PRIMARY KEY, slot INTEGER NOT NULL REFERENCES slot(id), "
       "record TEXT NOT NULL) STRICT, WITHOUT ROWID",
       "CREATE INDEX trial_slot ON trial(slot)",
       "CREATE TABLE decision(slot INTEGER PRIMARY KEY REFERENCES slot(id), digest BLOB NOT NULL, "
       "record TEXT NOT NULL) STRICT",
       "CREATE TABLE pin(slot INTEGER PRIMARY KEY REFERENCES slot(id), digest BLOB NOT NULL, "
       "record TEXT NOT NULL) STRICT"}};
  return instance;
}

enum class Kind { trial, decision, pin };

// The statements of a kind of record, and its name in an export.
struct KindInfo {
  const char* name;
  const char* select;  // digest and record of a slot
  const char* insert;
};
const KindInfo& info(Kind kind) {
  static constexpr KindInfo kTable[] = {
      {"trial", "SELECT uid, record FROM trial WHERE slot = ? ORDER BY uid",
       "INSERT OR REPLACE INTO trial(slot, uid, record) VALUES(?, ?, ?)"},
      {"decision", "SELECT digest, record FROM decision WHERE slot = ?",
       "INSERT OR REPLACE INTO decision(slot, digest, record) VALUES(?, ?, ?)"},
      {"pin", "SELECT digest, record FROM pin WHERE slot = ?",
       "INSERT OR REPLACE INTO pin(slot, digest, record) VALUES(?, ?, ?)"},
  };
  return kTable[static_cast<int>(kind)];
}

constexpr const char* kRecords = "tuning results";  // what an export holds
constexpr std::size_t kLongestLine = 1u << 20;
constexpr std::size_t kImportBatch = 500;

// One record with the slot it belongs to.
struct Entry {
  Slot slot;
  Kind kind;
  std::string text;
};

using Texts = std::map<Digest, std::string>;

std::int64_t now_microseconds() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// The row of a slot, or 0.
std::int64_t find_slot(Connection& connection, const Slot& slot) {
  Query query = connection.query(
      "SELECT id FROM slot WHERE device = ? AND problem = ? AND policy = ? AND bucket = ?");
  query.bind(slot.device, slot.problem, slot.policy, slot.bucket);
  return query.step() ? query.integer(0) : 0;
}

std::int64_t make_slot(Connection& connection, const Slot& slot) {
  if (const std::int64_t id = find_slot(connection, slot); id != 0) return id;
  connection.query("INSERT INTO slot(device, problem, policy, bucket) VALUES(?, ?, ?, ?)")
      .bind(slot.device, slot.problem, slot.policy, slot.bucket)
      .run();
  return find_slot(connection, slot);
}

// Adds the slot's records of one kind. A record that its digest does not cover is left out: it was
// damaged, or belongs to another slot. Returns how many there were of those.
std::int64_t collect(Connection& connection, Kind kind, const Slot& slot, Texts& out) {
  const std::int64_t id = find_slot(connection, slot);
  if (id == 0) return 0;
  std::int64_t damaged = 0;
  Query rows = connection.query(info(kind).select);
  rows.bind(id);
  while (rows.step()) {
    Digest digest;
    std::string text = rows.bytes(1);
    if (rows.digest(0, digest) && digest == digest_of(slot, text))
      out.emplace(digest, std::move(text));
    else
      ++damaged;
  }
  return damaged;
}

// The slot's decision or pin.
std::optional<std::string> find_note(Connection& connection, Kind kind, const Slot& slot,
                                     std::int64_t* damaged = nullptr) {
  Texts texts;
  const std::int64_t bad = collect(connection, kind, slot, texts);
  if (damaged != nullptr) *damaged += bad;
  if (texts.empty()) return std::nullopt;
  return texts.begin()->second;
}

void write(Connection& connection, const Entry& entry) {
  const Digest digest = digest_of(entry.slot, entry.text);
  connection.query(info(entry.kind).insert)
      .bind(make_slot(connection, entry.slot), digest, entry.text)
      .run();
}

std::vector<Trial> trials_of(const Texts& texts) {
  std::vector<Trial> trials;
  for (const auto& [uid, text] : texts)
    if (std::optional<Trial> trial = trial_of(text)) trials.push_back(std::move(*trial));
  return trials;
}

// Whether the first of two decisions is to be kept. Total, so that merging has no order.
bool better(const std::string& a, const std::string& b) {
  const std::optional<Decision> first = decision_of(a), second = decision_of(b);
  if (!first || !second) return first.has_value();
  return std::tie(first->grade, first->at, a) >= std::tie(second->grade, second->at, b);
}

bool newer(const std::string& a, const std::string& b) {
  const std::optional<Pin> first = pin_of(a), second = pin_of(b);
  if (!first || !second) return first.has_value();
  return std::tie(first->at, a) >= std::tie(second->at, b);
}

// Adds a record from elsewhere; tells whether it was new.
bool merge(Connection& connection, const Entry& entry) {
  if (entry.kind == Kind::trial) {
    {
      Query query = connection.query("SELECT record FROM trial WHERE uid = ?");
      const Digest uid = digest_of(entry.slot, entry.text);
      if (query.bind(uid).step() && query.bytes(0) == entry.text) return false;
    }
    write(connection, entry);
    return true;
  }
  const std::optional<std::string> present = find_note(connection, entry.kind, entry.slot);
  if (present == entry.text) return false;
  if (entry.kind == Kind::pin) {
    if (present && newer(*present, entry.text)) return false;
  } else {
    Texts trials;
    collect(connection, Kind::trial, entry.slot, trials);
    if (!trials.empty() || (present && better(*present, entry.text))) return false;
  }
  write(connection, entry);
  return true;
}

std::vector<Slot> slots_of(Connection& connection) {
  std::vector<Slot> slots;
  Query rows = connection.query("SELECT device, problem, bucket, policy FROM slot");
  while (rows.step()) slots.push_back({rows.bytes(0), rows.bytes(1), rows.bytes(2), rows.bytes(3)});
  return slots;
}

// What can still be read of a damaged file, to be written into the one that replaces it. Trials are
// found by the index and read one by one, so that a bad page costs no more than what lies on it.
Database::Body salvage(Connection& damaged) {
  auto entries = std::make_shared<std::vector<Entry>>();
  const auto attempt = [](const std::function<void()>& read) {
    try {
      read();
    } catch (const SQLite::Exception&) {  // lost
    }
  };
  for (const Slot& slot : slots_of(damaged)) {
    std::vector<Digest> uids;
    attempt([&] {
      Query rows = damaged.query("SELECT uid FROM trial WHERE slot = ?");
      rows.bind(find_slot(damaged, slot));
      for (Digest uid; rows.step();)
        if (rows.digest(0, uid)) uids.push_back(uid);
    });
    for (const Digest& uid : uids)
      attempt([&] {
        Query row = damaged.query("SELECT record FROM trial WHERE uid = ?");
        if (row.bind(uid).step() && digest_of(slot, row.bytes(0)) == uid)
          entries->push_back({slot, Kind::trial, row.bytes(0)});
      });
    for (const Kind kind : {Kind::decision, Kind::pin})
      attempt([&] {
        if (auto text = find_note(damaged, kind, slot)) entries->push_back({slot, kind, *text});
      });
  }
  return [entries](Connection& connection) {
    for (const Entry& entry : *entries) merge(connection, entry);
    return true;
  };
}

std::string read_entry(const nlohmann::json& record, Entry& entry) {
  const auto slot_field = record.find("slot");
  const std::optional<Slot> slot =
      slot_field == record.end() ? std::nullopt : slot_of(*slot_field);
  if (!slot) return "the slot is missing";
  entry.slot = *slot;
  for (const Kind kind : {Kind::trial, Kind::decision, Kind::pin}) {
    const auto found = record.find(info(kind).name);
    if (found == record.end()) continue;
    entry.kind = kind;
    entry.text = found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    const bool readable = kind == Kind::trial      ? trial_of(entry.text).has_value()
                          : kind == Kind::decision ? decision_of(entry.text).has_value()
                                                   : pin_of(entry.text).has_value();
    if (!readable) return fmt::format("the {} cannot be read", info(kind).name);
    const auto digest = digest_from_hex(text_field(record, "digest").value_or(""));
    if (digest != digest_of(entry.slot, entry.text)) return "the digest does not match";
    return {};
  }
  return "neither a trial nor a decision nor a pin";
}

}  // namespace

TuningStore::TuningStore(StoreOptions options)
    : database_(std::make_unique<Database>(StoreKind::tuning, schema(), options.directory,
                                           options.journal, salvage)) {}

TuningStore::~TuningStore() = default;

void TuningStore::add_trials(const Slot& slot, std::vector<Trial> trials) {
  for (Trial& trial : trials)
    if (trial.at == 0) trial.at = now_microseconds();
  database_->write([&](Connection& connection) {
    for (const Trial& trial : trials) {
      const Entry entry{slot, Kind::trial, to_text(trial)};
      if (trial_of(entry.text)) write(connection, entry);  // not one with a NaN
    }
    return true;
  });
}

std::vector<Trial> TuningStore::trials(const Slot& slot) {
  Texts texts;
  std::int64_t damaged = 0;
  database_->read([&](Connection& connection) {
    damaged = collect(connection, Kind::trial, slot, texts);
    return false;  // the other layer as well
  });
  tell(damaged);
  return trials_of(texts);
}

void TuningStore::tell(std::int64_t damaged) {
  if (damaged == 0 || told_.exchange(true)) return;
  log(LogLevel::warn, "tuning store: some records do not match their digests; they are passed over, "
                      "and tuning again replaces them");
}

std::optional<Decision> TuningStore::decide(const Slot& slot) {
  // Where the file cannot be written, what it holds counts all the same.
  Texts known;
  std::optional<std::string> previous;
  database_->read([&](Connection& connection) {
    collect(connection, Kind::trial, slot, known);
    if (!previous) previous = find_note(connection, Kind::decision, slot);
    return false;
  });
  std::optional<Decision> decision;
  database_->write([&](Connection& connection) {
    Texts texts = known;
    collect(connection, Kind::trial, slot, texts);
    std::optional<std::string> present = find_note(connection, Kind::decision, slot);
    if (!present) present = previous;
    const std::optional<Decision> incumbent = present ? decision_of(*present) : std::nullopt;
    const bool measured = incumbent && incumbent->grade == Grade::measured;
    decision = select_winner(trials_of(texts), measured ? incumbent->schedule : std::string());
    if (decision) write(connection, {slot, Kind::decision, to_text(*decision)});
    return decision.has_value();
  });
  return decision;
}

void TuningStore::put_decision(const Slot& slot, const Decision& decision) {
  Decision stamped = decision;
  if (stamped.at == 0) stamped.at = now_microseconds();
  const std::string text = to_text(stamped);
  database_->write([&](Connection& connection) {
    const std::optional<std::string> present = find_note(connection, Kind::decision, slot);
    if (present && better(*present, text)) return false;
    write(connection, {slot, Kind::decision, text});
    return true;
  });
}

std::optional<Decision> TuningStore::decision(const Slot& slot) {
  std::optional<std::string> text, pin_text;
  std::int64_t damaged = 0;
  database_->read([&](Connection& connection) {
    if (!text) text = find_note(connection, Kind::decision, slot, &damaged);
    if (!pin_text) pin_text = find_note(connection, Kind::pin, slot, &damaged);
    return text && pin_text;
  });
  tell(damaged);
  std::optional<Decision> decision = text ? decision_of(*text) : std::nullopt;
  const std::optional<Pin> pin = pin_text ? pin_of(*pin_text) : std::nullopt;
  if (!pin || pin->schedule.empty()) return decision;
  if (!decision) decision.emplace();
  // What was measured speaks of another schedule.
  if (decision->schedule != pin->schedule) {
    decision->gain = decision->gain_low = decision->gain_high = 0;
    decision->schedule = pin->schedule;
  }
  decision->grade = Grade::pinned;
  return decision;
}

std::vector<std::pair<Slot, Decision>> TuningStore::decisions_near(const Slot& slot) {
  std::set<std::string> buckets;
  database_->read([&](Connection& connection) {
    Query rows = connection.query(
        "SELECT bucket FROM slot WHERE device = ? AND problem = ? AND policy = ?");
    rows.bind(slot.device, slot.problem, slot.policy);
    while (rows.step()) buckets.insert(rows.bytes(0));
    return false;
  });
  std::vector<std::pair<Slot, Decision>> near;
  for (const std::string& bucket : buckets) {
    const Slot other{slot.device, slot.problem, bucket, slot.policy};
    if (std::optional<Decision> found = decision(other)) near.emplace_back(other, *found);
  }
  return near;
}

void TuningStore::pin(const Slot& slot, const std::string& schedule, const std::string& why) {
  const std::string text = to_text(Pin{schedule, why, now_microseconds()});
  database_->write([&](Connection& connection) {
    write(connection, {slot, Kind::pin, text});
    return true;
  });
}

// A pin of nothing, not a deletion: the older pin may come back with an import, or lie in a file that
// cannot be written.
void TuningStore::unpin(const Slot& slot) { pin(slot, "", ""); }

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

void TuningStore::forget(const Slot& slot) {
  database_->write_all([&slot](Connection& connection) {
    const std::int64_t id = find_slot(connection, slot);
    connection.query("DELETE FROM trial WHERE slot = ?").bind(id).run();
    connection.query("DELETE FROM decision WHERE slot = ?").bind(id).run();
    return true;
  });
}

StoreStatus TuningStore::status() { return database_->status(); }

std::int64_t TuningStore::export_lines(std::ostream& out) {
  std::int64_t count = 0;
  write_header(out, kRecords);
  for (const Slot& slot : slots()) {
    for (const Kind kind : {Kind::trial, Kind::decision, Kind::pin}) {
      Texts texts;
      database_->read([&](Connection& connection) {
        // Of notes there is one, and the layer in memory comes first.
        if (kind == Kind::trial || texts.empty()) collect(connection, kind, slot, texts);
        return false;
      });
      for (const auto& [digest, text] : texts) {
        const nlohmann::json line = {{"slot", to_record(slot)},
                                     {info(kind).name, nlohmann::json::parse(text)},
                                     {"digest", to_hex(digest)}};
        out << line.dump() << '\n';
        ++count;
      }
    }
  }
  return count;
}

ImportReport TuningStore::import_lines(std::istream& in) {
  std::vector<Entry> batch;
  std::set<Slot> changed;
  std::int64_t added = 0, known = 0;
  const auto flush = [&] {
    std::int64_t fresh = 0;
    database_->write([&](Connection& connection) {
      fresh = 0;
      for (const Entry& entry : batch) {
        if (!merge(connection, entry)) continue;
        ++fresh;
        if (entry.kind == Kind::trial) changed.insert(entry.slot);
      }
      return true;
    });
    added += fresh;
    known += static_cast<std::int64_t>(batch.size()) - fresh;
    batch.clear();
  };
  const auto take_record = [&](const nlohmann::json& record, ImportReport&) -> std::string {
    Entry entry;
    if (std::string reason = read_entry(record, entry); !reason.empty()) return reason;
    batch.push_back(std::move(entry));
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

// Without an incumbent: after a merge the decision depends on the trials alone, not on which of the
// stores was there first.
void TuningStore::rebuild(const Slot& slot) {
  database_->write([&](Connection& connection) {
    Texts texts;
    collect(connection, Kind::trial, slot, texts);
    const std::optional<Decision> decision = select_winner(trials_of(texts));
    if (decision) write(connection, {slot, Kind::decision, to_text(*decision)});
    return decision.has_value();
  });
}

}  // namespace flashwright
