#include "cache/decide.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

namespace flashwright {
namespace {

const double kTie = std::log(1.02);
constexpr double kUnknownMargin = 1.0;    // one sample tells nothing about its spread
constexpr double kSmallestMargin = 1e-3;  // repeated samples share errors that they do not show
constexpr double kDisturbed = 0.10;       // spread of the baseline's times on a device left alone
constexpr double kNoisy = 0.02;
constexpr double kVague = 0.05;  // margin of a mean that proves little

// Student's t, two-sided 95 %, by degrees of freedom; beyond the table an expansion around 1.96.
double student(std::int64_t freedom) {
  constexpr double kTable[] = {12.706, 4.303, 3.182, 2.776, 2.571,
                               2.447,  2.365, 2.306, 2.262, 2.228};
  if (freedom <= 10) return kTable[std::max<std::int64_t>(freedom, 1) - 1];
  const double f = static_cast<double>(freedom);
  return 1.96 + 2.37 / f + 2.8 / (f * f);
}

double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], at - static_cast<double>(below));
}

struct Estimate {
  double mean = 0, margin = 0;
};

// Trimmed mean, an eighth off each end, with the interval of Tukey and McLaughlin: outliers move
// neither, and nothing is assumed about them.
Estimate robust_mean(std::vector<double> values) {
  const std::size_t n = values.size();
  std::sort(values.begin(), values.end());
  const std::size_t cut = n / 8;
  const double count = static_cast<double>(n - 2 * cut);
  double sum = 0;
  for (std::size_t i = cut; i < n - cut; ++i) sum += values[i];
  if (n < 2) return {sum / count, kUnknownMargin};

  const auto clamped = [&](std::size_t i) { return values[std::clamp(i, cut, n - 1 - cut)]; };
  double middle = 0, squares = 0;
  for (std::size_t i = 0; i < n; ++i) middle += clamped(i) / static_cast<double>(n);
  for (std::size_t i = 0; i < n; ++i) squares += (clamped(i) - middle) * (clamped(i) - middle);
  const double deviation = std::sqrt(squares / static_cast<double>(n - 1));
  const double error = deviation * std::sqrt(static_cast<double>(n)) / count;
  const double margin = student(static_cast<std::int64_t>(count) - 1) * error;
  return {sum / count, std::max(margin, kSmallestMargin)};
}

struct Pooled {
  std::string schedule;
  Estimate ratio;
  double spread = 0;  // of the times, relative: widest of its trials
  std::tuple<int, int, int> resources;
};

// Several sessions: weights by precision, and a margin that grows when they disagree (Birge).
Pooled pool(const std::string& schedule, const std::vector<const Trial*>& trials) {
  Pooled result;
  result.schedule = schedule;
  double weights = 0, sum = 0;
  for (const Trial* trial : trials) {
    const double weight = 1 / (trial->margin * trial->margin);
    weights += weight;
    sum += weight * trial->log_ratio;
    result.spread = std::max(result.spread, (trial->high_ns - trial->low_ns) / trial->median_ns);
    const std::tuple needs(trial->spill_bytes, trial->smem_bytes, trial->registers);
    result.resources = std::max(result.resources, needs);
  }
  result.ratio.mean = sum / weights;
  double scatter = 0;
  for (const Trial* trial : trials)
    scatter += std::pow((trial->log_ratio - result.ratio.mean) * 1.96 / trial->margin, 2);
  if (trials.size() > 1) scatter /= static_cast<double>(trials.size() - 1);
  result.ratio.margin = std::sqrt(std::max(1.0, scatter) / weights);
  return result;
}

bool usable(const Trial& trial) {
  return trial.status == TrialStatus::ok && trial.samples > 0 && trial.median_ns > 0 &&
         trial.margin > 0;
}

// The order of two trials in time; content decides between equal times, so it is the same everywhere.
bool later(const Trial* a, const Trial* b) {
  return std::tie(a->at, a->baseline, a->kernel) > std::tie(b->at, b->baseline, b->kernel);
}

// The trials that count, by candidate.
std::map<std::string, std::vector<const Trial*>> evidence(const std::vector<Trial>& trials) {
  std::vector<const Trial*> all;
  for (const Trial& trial : trials)
    if (usable(trial)) all.push_back(&trial);
  std::sort(all.begin(), all.end(), [](const Trial* a, const Trial* b) {
    if (later(a, b) != later(b, a)) return later(a, b);
    return std::tie(a->schedule, a->log_ratio, a->margin) <
           std::tie(b->schedule, b->log_ratio, b->margin);
  });
  std::map<std::string, std::vector<const Trial*>> groups;
  for (const Trial* trial : all) {
    if (trial->baseline != all.front()->baseline) continue;
    std::vector<const Trial*>& group = groups[trial->schedule];
    if (group.empty() || group.front()->kernel == trial->kernel) group.push_back(trial);
  }
  return groups;
}

}  // namespace

const char* to_string(TrialStatus status) {
  constexpr const char* kNames[] = {"ok", "rejected", "spilled", "wrong", "failed"};
  return kNames[static_cast<int>(status)];
}

const char* to_string(Grade grade) {
  constexpr const char* kNames[] = {"predicted", "measured"};
  return kNames[static_cast<int>(grade)];
}

void summarise(Trial& trial, const std::vector<double>& times_ns,
               const std::vector<double>& baseline_ns) {
  const std::size_t n = std::min(times_ns.size(), baseline_ns.size());
  trial.samples = static_cast<std::int64_t>(n);
  if (n == 0) return;
  std::vector<double> sorted(times_ns.begin(), times_ns.begin() + static_cast<std::ptrdiff_t>(n));
  std::sort(sorted.begin(), sorted.end());
  trial.median_ns = quantile(sorted, 0.5);
  trial.low_ns = quantile(sorted, 0.05);
  trial.high_ns = quantile(sorted, 0.95);
  std::vector<double> ratios(n);
  for (std::size_t i = 0; i < n; ++i) ratios[i] = std::log(times_ns[i] / baseline_ns[i]);
  const Estimate estimate = robust_mean(std::move(ratios));
  trial.log_ratio = estimate.mean;
  trial.margin = estimate.margin;
}

std::optional<Decision> select_winner(const std::vector<Trial>& trials,
                                      std::string_view incumbent) {
  std::vector<Pooled> candidates;
  const auto groups = evidence(trials);
  if (groups.empty()) return std::nullopt;
  Decision decision;
  decision.baseline = groups.begin()->second.front()->baseline;
  decision.grade = Grade::measured;
  decision.confident = false;  // until the baseline has shown how quiet the device is
  for (const auto& [schedule, group] : groups) {
    candidates.push_back(pool(schedule, group));
    for (const Trial* trial : group) decision.at = std::max(decision.at, trial->at);
    if (schedule != decision.baseline) continue;
    Pooled& baseline = candidates.back();
    decision.noise = std::hypot(baseline.ratio.mean, baseline.ratio.margin);
    decision.confident = baseline.spread <= kDisturbed && decision.noise <= kNoisy;
    baseline.ratio.mean = 0;  // against itself, by definition
  }
  const auto by_mean = [](const Pooled& a, const Pooled& b) { return a.ratio.mean < b.ratio.mean; };
  const Pooled& best = *std::min_element(candidates.begin(), candidates.end(), by_mean);

  // In the order of preference. What is neither in use nor the baseline must be about as fast by its
  // own mean, and not much less well known than the best.
  const auto rank = [&](const Pooled& c) {
    const bool vague = c.ratio.margin > std::max(kVague, 3 * best.ratio.margin);
    const bool behind = vague || c.ratio.mean - best.ratio.mean > kTie;
    return std::tuple(c.schedule != incumbent, c.schedule != decision.baseline, behind, c.resources,
                      c.schedule);
  };
  const Pooled* winner = &best;
  for (const Pooled& candidate : candidates) {
    const double margin = std::hypot(candidate.ratio.margin, best.ratio.margin);
    if (candidate.ratio.mean - best.ratio.mean > std::max(kTie, margin)) continue;
    decision.tied.push_back(candidate.schedule);
    if (rank(candidate) < rank(*winner)) winner = &candidate;
  }
  decision.schedule = winner->schedule;
  if (winner->schedule != decision.baseline) {
    const Estimate& ratio = winner->ratio;
    decision.gain = std::expm1(-ratio.mean);
    decision.gain_low = std::expm1(-ratio.mean - ratio.margin);
    decision.gain_high = std::expm1(-ratio.mean + ratio.margin);
  }

  decision.measured = static_cast<std::int64_t>(candidates.size());
  std::set<std::string> failures;
  for (const Trial& trial : trials)
    if (trial.status != TrialStatus::ok && !groups.contains(trial.schedule))
      failures.insert(trial.schedule);
  decision.failed = static_cast<std::int64_t>(failures.size());
  return decision;
}

}  // namespace flashwright
