// What a tuning session has found, for people.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "cli/console.hpp"
#include "cli/tuning.hpp"
#include "cli/values.hpp"

namespace cli {
namespace {

constexpr std::size_t kShown = 15;  // rows of a table, unless everything is asked for

// Everything that a session learned about one schedule, over all its measurements.
struct Tried {
  std::string schedule, status, detail;
  double time_us = 0, log_ratio = 0, samples = 0;
  int registers = 0;
  double smem_bytes = 0, spill_bytes = 0;

  double ratio() const { return std::exp(log_ratio); }
  bool ran() const { return time_us > 0; }
};

double number(const Json& row, const char* name) {
  return row.contains(name) && row[name].is_number() ? row[name].get<double>() : 0;
}

std::vector<Tried> collect(const Json& trials) {
  std::vector<Tried> out;
  std::map<std::string, std::size_t> places;
  for (const Json& trial : trials) {
    const auto [place, is_new] = places.try_emplace(trial.value("schedule", ""), out.size());
    if (is_new) out.emplace_back();
    Tried& tried = out[place->second];
    tried.schedule = place->first;
    tried.status = trial.value("status", "");
    tried.detail = trial.value("detail", "");
    tried.registers = trial.value("registers", 0);
    tried.smem_bytes = number(trial, "smem_bytes");
    tried.spill_bytes = number(trial, "spill_bytes");
    if (number(trial, "time_us") <= 0) continue;
    const double samples = std::max(1.0, number(trial, "samples")), all = tried.samples + samples;
    const double ratio = number(trial, "ratio_to_default");
    tried.time_us += (number(trial, "time_us") - tried.time_us) * samples / all;
    tried.log_ratio += ((ratio > 0 ? std::log(ratio) : 0) - tried.log_ratio) * samples / all;
    tried.samples = all;
  }
  return out;
}

std::string note_of(const Tried& tried, const Json& decision) {
  if (tried.schedule == decision.value("schedule", "")) return "winner";
  if (tried.schedule == decision.value("default", "")) return "default";
  for (const Json& tied : decision.value("tied", Json::array()))
    if (tied == tried.schedule) return "tied";
  return "";
}

void print_ran(std::vector<Tried> tried, const Json& decision, bool predicted, bool everything) {
  std::erase_if(tried, [](const Tried& t) { return !t.ran(); });
  std::stable_sort(tried.begin(), tried.end(), [predicted](const Tried& a, const Tried& b) {
    return predicted ? a.time_us < b.time_us : a.log_ratio < b.log_ratio;
  });
  if (tried.empty()) return;
  const bool gpu =
      std::any_of(tried.begin(), tried.end(), [](const Tried& t) { return t.registers > 0; });
  std::vector<std::string> headings = {"schedule", predicted ? ">model" : ">time"};
  if (!predicted) headings.insert(headings.end(), {">to default", ">samples"});
  if (gpu) headings.insert(headings.end(), {">registers", ">shared", ">spills"});
  headings.emplace_back("");
  Table table(headings);
  for (std::size_t i = 0; i < tried.size(); ++i) {
    const Tried& t = tried[i];
    const std::string remark = note_of(t, decision);
    if (i >= kShown && !everything && remark.empty()) continue;
    std::vector<std::string> cells = {t.schedule, time_text(t.time_us)};
    if (!predicted) {
      cells.push_back(fmt::format("{:.3f}", t.ratio()));
      cells.push_back(fmt::format("{:.0f}", t.samples));
    }
    if (gpu) {
      cells.push_back(std::to_string(t.registers));
      cells.push_back(bytes_text(t.smem_bytes));
      cells.push_back(bytes_text(t.spill_bytes));
    }
    cells.push_back(remark);
    table.add(std::move(cells));
  }
  print(fmt::format(
      "\n{} {}\n{}", counted(static_cast<std::int64_t>(tried.size()), "schedule"),
      predicted ? "compiled and ranked by the model, not measured:"
                : "compiled, found right and measured against the default in the same blocks:",
      table.text(2)));
  if (tried.size() > kShown && !everything) print("  (the rest is slower; --all shows it)\n");
}

void print_rejected(const std::vector<Tried>& tried, const Json& rejected, bool everything) {
  Table table({"schedule", "why it was dropped"});
  std::size_t count = 0;
  for (const Tried& t : tried)
    if (!t.ran() && (++count <= kShown || everything))
      table.add({t.schedule, t.detail.empty() ? t.status : t.detail});
  if (count > 0) print(fmt::format("\nDropped after compiling: {}\n{}", count, table.text(2)));
  if (count > kShown && !everything) print("  (--all shows the rest)\n");
  if (rejected.empty()) return;
  print("\nNever compiled, as they cannot run on this device:\n");
  for (const auto& [reason, number_of] : rejected.items())
    print(fmt::format("  {:5d}  {}\n", number_of.get<int>(), reason));
}

// The number behind a knob in the text of a schedule, e.g. 128 for "q" in "q128.kv64"; 0 if it is not there.
std::int64_t knob(const std::string& schedule, const std::string& key) {
  std::size_t start = 0;
  while (start < schedule.size()) {
    const std::size_t end = std::min(schedule.find('.', start), schedule.size());
    const std::string part = schedule.substr(start, end - start);
    if (part.starts_with(key) && part.size() > key.size() &&
        std::isdigit(static_cast<unsigned char>(part[key.size()])))
      return std::strtoll(part.c_str() + key.size(), nullptr, 10);
    start = end + 1;
  }
  return 0;
}

// How the tiles of a schedule fill the memory that is next to the arithmetic.
std::string fit_text(const std::string& schedule, const Json& estimate, const Json& problem,
                     const Json& device) {
  const std::string dtype = problem.value("dtype", "bf16");
  const double element = dtype == "fp32" ? 4 : 2;
  const double q = static_cast<double>(knob(schedule, "q")),
               kv = static_cast<double>(knob(schedule, "kv"));
  const double head_dim = problem.value("head_dim", 0.0);
  const double head_dim_v = std::max(problem.value("head_dim_v", 0.0), 0.0) > 0
                                ? problem.value("head_dim_v", 0.0)
                                : head_dim;
  const double taken = number(estimate, "smem_bytes");
  std::string text = fmt::format("{} queries a tile are {} of {}, {} keys with their values {}", q,
                                 bytes_text(q * head_dim * element), dtype, kv,
                                 bytes_text(kv * (head_dim + head_dim_v) * element));
  if (const double shared = number(device, "smem_per_block_bytes"); shared > 0)
    return text +
           fmt::format(
               "; a block takes {} of {} shared memory ({:.0f} %) and {} threads of {} registers",
               bytes_text(taken), bytes_text(shared), 100 * taken / shared,
               estimate.value("threads", 0), estimate.value("registers", 0));
  return text +
         fmt::format("; a core's scratch takes {}, with an L1 of {} and an L2 of {} ({:.0f} %)",
                     bytes_text(taken), bytes_text(number(device, "l1_bytes")),
                     bytes_text(number(device, "l2_bytes")),
                     100 * taken / std::max(1.0, number(device, "l2_bytes")));
}

void print_winner(const Json& report) {
  const Json& decision = report["decision"];
  const std::string winner = decision.value("schedule", ""),
                    standard = decision.value("default", "");
  const bool predicted = decision.value("grade", "") == "predicted";
  print("\n");
  print_field("winner",
              fmt::format("{}{}", winner,
                          predicted ? ", predicted by the model: nothing was measured" : ""));
  if (winner == standard) {
    print_field("gain", "none: the default is as good as the best");
  } else if (predicted) {
    print_field("gain", fmt::format("{} over the default {}, by the model",
                                    percent_text(number(decision, "gain")), standard));
  } else {
    print_field("gain", fmt::format("{} over the default {} (95 %: {} .. {})",
                                    percent_text(number(decision, "gain")), standard,
                                    percent_text(number(decision, "gain_low")),
                                    percent_text(number(decision, "gain_high"))));
  }
  const Json tied = decision.value("tied", Json::array());
  if (tied.size() > 1) {
    std::vector<std::string> others;
    for (const Json& schedule : tied)
      if (schedule != winner) others.push_back(schedule.get<std::string>());
    print_field("ties",
                fmt::format("{} as good within the noise: {}",
                            others.size() == 1 ? "one is" : "these are", fmt::join(others, ", ")));
  }
  if (report.contains("estimates")) {
    const Json& estimates = report["estimates"];
    print_field("why", fit_text(winner, estimates[winner], report["config"], report["device"]));
    if (winner != standard)
      print_field("default",
                  fit_text(standard, estimates[standard], report["config"], report["device"]));
  }
  if (!predicted)
    print_field(
        "noise",
        fmt::format(
            "{} of the default against itself{}", percent_text(number(decision, "noise")),
            decision.value("confident", true) ? "" : "; the device was disturbed, tune again"));
}

}  // namespace

void print_tuning(const Json& report, bool everything) {
  const Json decision = report.value("decision", Json::object());
  const Json& device = report["device"];
  const bool predicted = !device.value("present", true);
  const std::vector<Tried> tried = collect(report.value("trials", Json::array()));
  print_field("device",
              fmt::format("{} ({}){}", device.value("name", ""), device.value("target", ""),
                          predicted ? ", not present: results are predicted" : ""));
  print_field("problem", report["slot"].value("problem", ""));
  print_field("sizes",
              fmt::format("{}{}", report["slot"].value("bucket", ""),
                          report.contains("measured_shape")
                              ? fmt::format(", measured at {}", report.value("measured_shape", ""))
                              : ""));
  print_field("tried", fmt::format("{} of {} in {:.1f} s", report.value("considered", 0),
                                   counted(report.value("legal", 0), "legal schedule"),
                                   number(report, "seconds")));
  print_ran(tried, decision, predicted, everything);
  print_rejected(tried, report.value("rejected", Json::object()), everything);
  if (!decision.empty()) print_winner(report);
  if (decision.empty()) print("\nNo decision: nothing was tried to the end.\n");
}

}  // namespace cli
