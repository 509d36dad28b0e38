#include "cache/tuning_table.hpp"

#include <functional>
#include <memory>
#include <tuple>

namespace flashwright {
namespace {

// The statements of a kind of record, and its name in an export.
struct KindInfo {
  const char* name;
  const char* select;  // digest and record of a slot
  const char* insert;
};
const KindInfo& info(RecordKind kind) {
  static constexpr KindInfo kTable[] = {
      {"trial", "SELECT uid, record FROM trial WHERE slot = ? ORDER BY uid",
       "INSERT OR REPLACE INTO trial(slot, uid, record) VALUES(?, ?, ?)"},
      {"decision", "SELECT digest, record FROM decision WHERE slot = ?",
       "INSERT OR REPLACE INTO decision(slot, digest, record) VALUES(?, ?, ?)"},
  };
  return kTable[static_cast<int>(kind)];
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

}  // namespace

// A record is the JSON text of cache/tuning_row; columns exist for what is looked up.
const Schema& tuning_schema() {
  static const Schema instance{
      "tuning store",
      0x46575444,  // "FWTD"
      2,
      4096,
      true,
      {"CREATE TABLE slot(id INTEGER PRIMARY KEY, device TEXT NOT NULL, problem TEXT NOT NULL, "
       "bucket TEXT NOT NULL, policy TEXT NOT NULL, UNIQUE(device, problem, policy, bucket)) "
       "STRICT",
       "CREATE TABLE trial(uid BLOB PRIMARY KEY, slot INTEGER NOT NULL REFERENCES slot(id), "
       "record TEXT NOT NULL) STRICT, WITHOUT ROWID",
       "CREATE INDEX trial_slot ON trial(slot)",
       "CREATE TABLE decision(slot INTEGER PRIMARY KEY REFERENCES slot(id), digest BLOB NOT NULL, "
       "record TEXT NOT NULL) STRICT"}};
  return instance;
}

const char* to_string(RecordKind kind) { return info(kind).name; }

std::int64_t collect(Connection& connection, RecordKind kind, const Slot& slot, Texts& out) {
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

std::optional<std::string> find_decision(Connection& connection, const Slot& slot,
                                         std::int64_t* damaged) {
  Texts texts;
  const std::int64_t bad = collect(connection, RecordKind::decision, slot, texts);
  if (damaged != nullptr) *damaged += bad;
  if (texts.empty()) return std::nullopt;
  return texts.begin()->second;
}

void write_record(Connection& connection, const Record& record) {
  const Digest digest = digest_of(record.slot, record.text);
  connection.query(info(record.kind).insert)
      .bind(make_slot(connection, record.slot), digest, record.text)
      .run();
}

std::vector<Trial> trials_of(const Texts& texts) {
  std::vector<Trial> trials;
  for (const auto& [uid, text] : texts)
    if (std::optional<Trial> trial = trial_of(text)) trials.push_back(std::move(*trial));
  return trials;
}

bool better(const std::string& a, const std::string& b) {
  const std::optional<Decision> first = decision_of(a), second = decision_of(b);
  if (!first || !second) return first.has_value();
  return std::tie(first->grade, first->at, a) >= std::tie(second->grade, second->at, b);
}

bool merge_record(Connection& connection, const Record& record) {
  if (record.kind == RecordKind::trial) {
    {
      Query query = connection.query("SELECT record FROM trial WHERE uid = ?");
      const Digest uid = digest_of(record.slot, record.text);
      if (query.bind(uid).step() && query.bytes(0) == record.text) return false;
    }
    write_record(connection, record);
    return true;
  }
  const std::optional<std::string> present = find_decision(connection, record.slot);
  if (present == record.text) return false;
  Texts trials;
  collect(connection, RecordKind::trial, record.slot, trials);
  if (const std::optional<Decision> derived = select_winner(trials_of(trials))) {
    if (present) return false;
    write_record(connection, {record.slot, RecordKind::decision, to_text(*derived)});
    return true;
  }
  if (present && better(*present, record.text)) return false;
  write_record(connection, record);
  return true;
}

std::vector<Slot> slots_of(Connection& connection) {
  std::vector<Slot> slots;
  Query rows = connection.query("SELECT device, problem, bucket, policy FROM slot");
  while (rows.step()) slots.push_back({rows.bytes(0), rows.bytes(1), rows.bytes(2), rows.bytes(3)});
  return slots;
}

std::vector<std::string> buckets_of(Connection& connection, const Slot& slot) {
  std::vector<std::string> buckets;
  Query rows =
      connection.query("SELECT bucket FROM slot WHERE device = ? AND problem = ? AND policy = ?");
  rows.bind(slot.device, slot.problem, slot.policy);
  while (rows.step()) buckets.push_back(rows.bytes(0));
  return buckets;
}

// Trials are found by the index and read one by one, so that a bad page costs no more than what lies
// on it.
Database::Body salvage(Connection& damaged) {
  auto records = std::make_shared<std::vector<Record>>();
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
          records->push_back({slot, RecordKind::trial, row.bytes(0)});
      });
    attempt([&] {
      if (auto text = find_decision(damaged, slot))
        records->push_back({slot, RecordKind::decision, *text});
    });
  }
  return [records](Connection& connection) {
    for (const Record& record : *records) write_record(connection, record);
    return true;
  };
}

}  // namespace flashwright
