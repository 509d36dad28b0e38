// The winners of tuning on one kind of device as text to read and compare: a header line, then one
// line of JSON for each slot, sorted. `cache export --decisions` writes one, and the library carries
// those of share/tuned/.
#pragma once

#include <iosfwd>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cache/store.hpp"
#include "cache/tuning_row.hpp"

namespace flashwright {

inline constexpr const char* kDecisionRecords = "tuning decisions";  // what such a file holds

struct DecisionFile {
  std::string device;        // its name, for people
  std::string device_class;  // of all slots
  std::string policy;        // of all slots
  std::string tool;          // that wrote it: "flashwright 0.1.0"
  std::string date;          // of the latest measurement: "2026-11-30"
  // Of a decision a line has schedule, default and gain; the rest says that it came from elsewhere:
  // measured, with no candidates of its own, on the file's date.
  std::map<Slot, Decision> decisions;

  // Where its decisions come from, for people: "NVIDIA H200, 2026-11-30, flashwright 0.1.0".
  std::string origin() const;
};

// The same decisions give the same text.
std::string to_text(const DecisionFile& file);

// Reads what to_text writes. Wrong lines are reported and skipped, as those of any import.
ImportReport read_decisions(std::istream& in, DecisionFile& out);

// The files of share/tuned/, as they were when the library was built.
const std::vector<DecisionFile>& shipped_decisions();

// Names and texts of those files.
std::vector<std::pair<std::string, std::string>> shipped_texts();

}  // namespace flashwright
