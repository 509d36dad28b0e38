// The tables of the tuning store: what a transaction of cache/trials reads and writes. Every record is
// checked against its digest when it is read, so damage shows as absence and never as another result.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cache/database.hpp"
#include "cache/tuning_row.hpp"

namespace flashwright {

const Schema& tuning_schema();

enum class RecordKind { trial, decision };
const char* to_string(RecordKind kind);

// One record, as text of cache/tuning_row, with the slot it belongs to.
struct Record {
  Slot slot;
  RecordKind kind{};
  std::string text;
};

using Texts = std::map<Digest, std::string>;

// Adds the slot's records of one kind. A record that its digest does not cover is left out: it was
// damaged, or belongs to another slot. Returns how many there were of those.
std::int64_t collect(Connection& connection, RecordKind kind, const Slot& slot, Texts& out);

// The slot's decision; adds to `damaged` what was left out.
std::optional<std::string> find_decision(Connection& connection, const Slot& slot,
                                         std::int64_t* damaged = nullptr);

// Puts a record in place of any other of its kind; trials stand side by side.
void write_record(Connection& connection, const Record& record);

// Adds a record from elsewhere unless what is there says more; tells whether it was added. Where trials
// are, a decision is the one that they give, not the one that came. Once that is done for every slot
// with new trials, the result does not depend on the order in which records come.
bool merge_record(Connection& connection, const Record& record);

// Whether the first of two decisions, as texts, is to be kept.
bool better(const std::string& a, const std::string& b);

std::vector<Slot> slots_of(Connection& connection);
// The buckets of a slot's device, problem and policy.
std::vector<std::string> buckets_of(Connection& connection, const Slot& slot);
std::vector<Trial> trials_of(const Texts& texts);

// What can still be read of a damaged file, as work that writes it into the one that replaces it.
Database::Body salvage(Connection& damaged);

}  // namespace flashwright
