#include "cache/tuning_row.hpp"

#include <nlohmann/json.hpp>

#include "cache/key.hpp"
#include "cache/lines.hpp"

namespace flashwright {
namespace {

using nlohmann::json;

// The value of the enumeration whose text this is; `last` is its highest.
template <class Enum>
std::optional<Enum> parse_enum(const std::optional<std::string>& text, Enum last) {
  for (int i = 0; text && i <= static_cast<int>(last); ++i)
    if (*text == to_string(static_cast<Enum>(i))) return static_cast<Enum>(i);
  return std::nullopt;
}

// Copies fields out of a record and remembers whether each was there.
class Reader {
 public:
  explicit Reader(const json& record) : record_(record) {}
  Reader& read(const char* name, std::string& out) { return set(text_field(record_, name), out); }
  Reader& read(const char* name, double& out) { return set(number_field(record_, name), out); }
  Reader& read(const char* name, std::int64_t& out) {
    return set(integer_field(record_, name), out);
  }
  Reader& read(const char* name, int& out) {
    std::int64_t value = 0;
    read(name, value);
    complete_ = complete_ && value >= 0 && value <= INT32_MAX;
    out = static_cast<int>(value);
    return *this;
  }
  bool complete() const { return complete_; }

 private:
  template <class T>
  Reader& set(const std::optional<T>& value, T& out) {
    complete_ = complete_ && value.has_value();
    if (value) out = *value;
    return *this;
  }
  const json& record_;
  bool complete_ = true;
};

}  // namespace

std::string to_string(const Slot& slot) {
  return slot.problem + " [" + slot.bucket + "] on " + slot.device + ", " + slot.policy;
}

std::string to_text(const Trial& trial) {
  return to_line({{"schedule", trial.schedule},
                  {"baseline", trial.baseline},
                  {"kernel", to_hex(trial.kernel)},
                  {"status", to_string(trial.status)},
                  {"detail", trial.detail},
                  {"samples", trial.samples},
                  {"median_ns", trial.median_ns},
                  {"low_ns", trial.low_ns},
                  {"high_ns", trial.high_ns},
                  {"log_ratio", trial.log_ratio},
                  {"margin", trial.margin},
                  {"registers", trial.registers},
                  {"spill_bytes", trial.spill_bytes},
                  {"smem_bytes", trial.smem_bytes},
                  {"at", trial.at}});
}

std::optional<Trial> trial_of(std::string_view text) {
  const std::optional<json> record = parse_json(text);
  if (!record) return std::nullopt;
  Trial trial;
  Reader reader(*record);
  reader.read("schedule", trial.schedule)
      .read("baseline", trial.baseline)
      .read("detail", trial.detail)
      .read("samples", trial.samples)
      .read("median_ns", trial.median_ns)
      .read("low_ns", trial.low_ns)
      .read("high_ns", trial.high_ns)
      .read("log_ratio", trial.log_ratio)
      .read("margin", trial.margin)
      .read("registers", trial.registers)
      .read("spill_bytes", trial.spill_bytes)
      .read("smem_bytes", trial.smem_bytes)
      .read("at", trial.at);
  const auto kernel = digest_from_hex(text_field(*record, "kernel").value_or(""));
  const auto status = parse_enum(text_field(*record, "status"), TrialStatus::failed);
  if (!reader.complete() || !kernel || !status || trial.schedule.empty()) return std::nullopt;
  trial.kernel = *kernel;
  trial.status = *status;
  return trial;
}

std::string to_text(const Decision& decision) {
  return to_line({{"schedule", decision.schedule},
                  {"baseline", decision.baseline},
                  {"grade", to_string(decision.grade)},
                  {"gain", decision.gain},
                  {"gain_low", decision.gain_low},
                  {"gain_high", decision.gain_high},
                  {"noise", decision.noise},
                  {"confident", decision.confident},
                  {"tied", decision.tied},
                  {"measured", decision.measured},
                  {"failed", decision.failed},
                  {"at", decision.at}});
}

std::optional<Decision> decision_of(std::string_view text) {
  const std::optional<json> record = parse_json(text);
  if (!record) return std::nullopt;
  Decision decision;
  Reader reader(*record);
  reader.read("schedule", decision.schedule)
      .read("baseline", decision.baseline)
      .read("gain", decision.gain)
      .read("gain_low", decision.gain_low)
      .read("gain_high", decision.gain_high)
      .read("noise", decision.noise)
      .read("measured", decision.measured)
      .read("failed", decision.failed)
      .read("at", decision.at);
  const auto grade = parse_enum(text_field(*record, "grade"), Grade::measured);
  if (!reader.complete() || !grade || decision.schedule.empty()) return std::nullopt;
  decision.grade = *grade;
  const auto confident = record->find("confident");
  const auto tied = record->find("tied");
  if (confident == record->end() || !confident->is_boolean() || tied == record->end() ||
      !tied->is_array())
    return std::nullopt;
  decision.confident = confident->get<bool>();
  for (const json& schedule : *tied) {
    if (!schedule.is_string()) return std::nullopt;
    decision.tied.push_back(schedule.get<std::string>());
  }
  return decision;
}

Digest digest_of(const Slot& slot, std::string_view text) {
  return sha256_of({"fw.tuning.v1", slot.device, slot.problem, slot.bucket, slot.policy, text});
}

json to_record(const Slot& slot) {
  return {{"device", slot.device},
          {"problem", slot.problem},
          {"bucket", slot.bucket},
          {"policy", slot.policy}};
}

std::optional<Slot> slot_of(const json& record) {
  Slot slot;
  Reader reader(record);
  reader.read("device", slot.device)
      .read("problem", slot.problem)
      .read("bucket", slot.bucket)
      .read("policy", slot.policy);
  return reader.complete() ? std::optional(slot) : std::nullopt;
}

}  // namespace flashwright
