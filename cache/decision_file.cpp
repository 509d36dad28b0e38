#include "cache/decision_file.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <istream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cache/lines.hpp"

namespace flashwright {

// Defined in a file that cmake/embed.cmake writes from the folder share/tuned/.
struct EmbeddedDecisions {
  const char* path;
  const char* text;
};
extern const EmbeddedDecisions kTuned[];
extern const std::size_t kTunedCount;

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::size_t kLongestLine = 1u << 12;
constexpr double kGainSteps = 100;  // a gain is kept in whole percent, which another run repeats

// The first moment of a day in UTC, in microseconds since 1970.
std::optional<std::int64_t> moment_of(const std::string& date) {
  int year = 0, month = 0, day = 0, end = 0;
  if (std::sscanf(date.c_str(), "%4d-%2d-%2d%n", &year, &month, &day, &end) != 3 ||
      static_cast<std::size_t>(end) != date.size())
    return std::nullopt;
  const std::chrono::year_month_day parsed(std::chrono::year(year),
                                           std::chrono::month(static_cast<unsigned>(month)),
                                           std::chrono::day(static_cast<unsigned>(day)));
  if (!parsed.ok()) return std::nullopt;
  return std::chrono::microseconds(std::chrono::sys_days(parsed).time_since_epoch()).count();
}

// What every decision of a file has in common.
struct Common {
  Slot slot;
  std::int64_t at = 0;
};

// Returns what is wrong with the header. One of another kind of file is left to read_records.
std::string read_header(const std::string& line, DecisionFile& out, Common& common) {
  const json header = parse_json(line).value_or(json());
  if (text_field(header, "flashwright") != kDecisionRecords) return {};
  const auto field = [&](const char* name) { return text_field(header, name).value_or(""); };
  out.device = field("device");
  common.slot.device = out.device_class = field("class");
  common.slot.policy = out.policy = field("policy");
  out.tool = field("tool");
  out.date = field("date");
  const std::optional<std::int64_t> at = moment_of(out.date);
  if (!at) return fmt::format("the date is '{}'; expected year-month-day", out.date);
  common.at = *at;
  for (const char* name : {"device", "class", "policy", "tool"})
    if (field(name).empty()) return fmt::format("the {} is missing", name);
  return {};
}

std::string read_line(const json& record, const Common& common, DecisionFile& out) {
  const auto field = [&](const char* name) { return text_field(record, name).value_or(""); };
  for (const char* name : {"problem", "bucket", "schedule"})
    if (field(name).empty()) return fmt::format("the {} is missing", name);
  Slot slot = common.slot;
  slot.problem = field("problem");
  slot.bucket = field("bucket");
  Decision decision;
  decision.schedule = decision.baseline = field("schedule");
  decision.grade = Grade::measured;
  decision.tied = {decision.schedule};
  decision.at = common.at;
  if (record.contains("default") || record.contains("gain")) {
    const std::optional<double> gain = number_field(record, "gain");
    decision.baseline = field("default");
    if (decision.baseline.empty() || !gain) return "default and gain come together";
    decision.gain = decision.gain_low = decision.gain_high = *gain;
  }
  if (!out.decisions.emplace(slot, decision).second)
    return fmt::format("{} [{}] was there before", slot.problem, slot.bucket);
  return {};
}

}  // namespace

std::string DecisionFile::origin() const { return fmt::format("{}, {}, {}", device, date, tool); }

std::string to_text(const DecisionFile& file) {
  std::string text = ordered_json{{"flashwright", kDecisionRecords},
                                  {"version", kFormVersion},
                                  {"device", file.device},
                                  {"class", file.device_class},
                                  {"policy", file.policy},
                                  {"tool", file.tool},
                                  {"date", file.date}}
                         .dump() +
                     '\n';
  for (const auto& [slot, decision] : file.decisions) {
    ordered_json line = {
        {"problem", slot.problem}, {"bucket", slot.bucket}, {"schedule", decision.schedule}};
    if (decision.schedule != decision.baseline) {
      line["default"] = decision.baseline;
      line["gain"] = std::round(decision.gain * kGainSteps) / kGainSteps;
    }
    text += line.dump() + '\n';
  }
  return text;
}

ImportReport read_decisions(std::istream& in, DecisionFile& out) {
  std::string header;
  std::getline(in, header);
  in.clear();
  in.seekg(0);
  Common common;
  if (const std::string fault = read_header(header, out, common); !fault.empty())
    return {0, 0, 1, {"line 1: " + fault}};
  return read_records(in, kDecisionRecords, kLongestLine, [&](const json& record, ImportReport&) {
    return read_line(record, common, out);
  });
}

std::vector<std::pair<std::string, std::string>> shipped_texts() {
  std::vector<std::pair<std::string, std::string>> out;
  for (std::size_t i = 0; i < kTunedCount; ++i) out.emplace_back(kTuned[i].path, kTuned[i].text);
  return out;
}

const std::vector<DecisionFile>& shipped_decisions() {
  static const std::vector<DecisionFile> files = [] {
    std::vector<DecisionFile> out;
    for (const auto& [name, text] : shipped_texts()) {
      std::istringstream in(text);
      read_decisions(in, out.emplace_back());  // tests see to it that nothing is refused
    }
    return out;
  }();
  return files;
}

}  // namespace flashwright
