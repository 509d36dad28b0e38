// The store of tuning results: what was measured, and what was decided from it. Trials are never
// changed, decisions can be made again from them, and stores merge by union.
#pragma once

#include <atomic>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/decide.hpp"
#include "cache/decision_file.hpp"
#include "cache/store.hpp"
#include "cache/tuning_row.hpp"

namespace flashwright {

class Database;

struct SlotSummary {
  Slot slot;
  std::int64_t trials = 0;
  std::optional<Decision> decision;
};

// Safe to use from many threads. Trouble with the file never fails a call.
class TuningStore {
 public:
  explicit TuningStore(StoreOptions options = {});
  ~TuningStore();

  // One commit: call it after each measured block, so that an interrupt loses no more than that.
  // A trial without time gets the current one.
  void add_trials(const Slot& slot, std::vector<Trial> trials);
  std::vector<Trial> trials(const Slot& slot);

  // select_winner over the slot's trials, with the present decision as incumbent; stored in the same
  // transaction. Nothing when no trial is ok.
  std::optional<Decision> decide(const Slot& slot);

  // For a decision without trials. One that rests on better evidence stays.
  void put_decision(const Slot& slot, const Decision& decision);

  std::optional<Decision> decision(const Slot& slot);

  // Decisions for the same device, problem and policy in any bucket, this one included.
  std::vector<std::pair<Slot, Decision>> decisions_near(const Slot& slot);

  std::vector<SlotSummary> list();
  StoreStatus status();

  // One JSON line for each trial and decision, after a line that says what the file is. Importing twice
  // adds nothing and the order of imports does not matter. A decision that follows from trials is not
  // taken over but made again, and counts as added where there was none.
  std::int64_t export_lines(std::ostream& out);
  ImportReport import_lines(std::istream& in);

  // The measured winners of one class of device; `name` is what people call it.
  DecisionFile decisions_on(const std::string& device_class, const std::string& name);

  // Takes the winners of such a file. What follows from trials that are here stays.
  ImportReport import_decisions(std::istream& in);

 private:
  std::vector<Slot> slots();
  void rebuild(const Slot& slot);
  void tell(std::int64_t damaged);

  std::unique_ptr<Database> database_;
  std::atomic<bool> told_{false};  // of damaged records
};

}  // namespace flashwright
