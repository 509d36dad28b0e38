#include "tuner/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/log.hpp"

namespace flashwright {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kMaxElements = std::int64_t{1} << 25;  // of one tensor of the workload
constexpr std::int64_t kVerifiedRows = 24;
constexpr std::size_t kGroup = 6;  // candidates that enter the race together
constexpr int kFirstBlocks = 3;    // measurements before a candidate may be dropped
constexpr int kFinalBlocks = 24;   // at most, of the finalists
constexpr std::size_t kFinalists = 8;
constexpr double kCleanShare = 0.45;   // of the budget, for candidates that spill nothing
constexpr double kExploreShare = 0.6;  // also those that spill a little; the rest is for the final
constexpr double kHopeless = 1.6;      // times the baseline, at first sight
constexpr double kFirstMargin = 0.08;  // behind the leader, beyond the error of measurement
constexpr double kFinalMargin = 0.03;
constexpr int kSmallSpill = 128;  // bytes; such candidates are tried last

// A candidate in the race.
struct Racer {
  std::unique_ptr<Built> built;
  std::unique_ptr<Runner> runner;
  std::vector<double> times_ns, baseline_ns;  // of the blocks since the last commit
  double log_ratio = 0, margin = 0;           // over all blocks
  std::vector<double> all_times, all_baseline;
};

class Session {
 public:
  Session(const TuneRequest& request, ArtifactStore& artifacts, TuningStore& store,
          const TuneOptions& options)
      : r_(request),
        artifacts_(artifacts),
        store_(store),
        options_(options),
        random_(options.seed),
        start_(Clock::now()) {
    report_.slot = make_slot(r_.problem, r_.device, r_.shape);
  }

  TuneReport run();

 private:
  void search_measured(const SearchSpace& space);
  void search_predicted(const SearchSpace& space);
  void start_baseline(const SearchSpace& space);
  void explore(BuildQueue& queue);
  bool admit(std::unique_ptr<Built> built, bool spilled_too);
  void race(std::vector<Racer*> racers, int blocks, double margin);
  void final_round();
  void commit(Racer& racer);
  void reject(const Built& built, TrialStatus status, const std::string& detail);
  void keep_finalists();

  Trial trial_of(const Built& built) const;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  bool over(double share) const {
    return report_.interrupted || seconds() > share * options_.budget_s;
  }
  void tell(json event);

  const TuneRequest& r_;
  ArtifactStore& artifacts_;
  TuningStore& store_;
  const TuneOptions& options_;
  std::mt19937_64 random_;
  const Clock::time_point start_;
  TuneReport report_;
  std::int64_t total_ = 0;
  std::unique_ptr<Workload> workload_;
  std::unique_ptr<Verifier> verifier_;
  std::vector<std::unique_ptr<Racer>> racers_;  // the baseline is the first
  std::vector<std::unique_ptr<Built>> spilled_;
  bool raced_ = false;  // something has been measured
};

void Session::tell(json event) {
  if (!options_.progress) return;
  if (!options_.progress(report_.considered, total_, event.dump())) report_.interrupted = true;
}

Trial Session::trial_of(const Built& built) const {
  Trial trial;
  trial.schedule = to_string(built.schedule);
  trial.baseline = racers_.empty() ? trial.schedule : to_string(racers_.front()->built->schedule);
  trial.kernel = built.key;
  trial.registers = built.binary.resources.registers;
  trial.spill_bytes = built.binary.resources.spill_bytes;
  trial.smem_bytes = built.binary.resources.dynamic_smem_bytes;
  return trial;
}

void Session::reject(const Built& built, TrialStatus status, const std::string& detail) {
  Trial trial = trial_of(built);
  trial.status = status;
  trial.detail = detail.substr(0, detail.find('\n'));
  report_.trials.push_back(trial);
  store_.add_trials(report_.slot, {trial});
  tell({{"stage", "rejected"}, {"schedule", trial.schedule}, {"why", trial.detail}});
}

bool Session::admit(std::unique_ptr<Built> built, bool spilled_too) {
  ++report_.considered;
  if (!built->failure.empty()) {
    reject(*built, TrialStatus::failed, built->failure);
    return false;
  }
  if (built->binary.resources.spill_bytes > 0 && !spilled_too) {
    if (built->binary.resources.spill_bytes <= kSmallSpill) {
      spilled_.push_back(std::move(built));
    } else {
      reject(*built, TrialStatus::spilled,
             fmt::format("spills {} bytes", built->binary.resources.spill_bytes));
    }
    return false;
  }
  try {
    auto racer = std::make_unique<Racer>();
    racer->runner = std::make_unique<Runner>(r_.config, r_.problem, *workload_, r_.backend,
                                             r_.device.index, built->binary, built->source.plan);
    workload_->poison_outputs();
    racer->runner->launch();
    r_.backend.synchronize(r_.device.index, nullptr);
    workload_->fetch_outputs();
    if (const std::string wrong = verifier_->verdict(*workload_); !wrong.empty()) {
      log(LogLevel::error,
          fmt::format("tune: {} {}: {}", to_string(r_.problem), to_string(built->schedule), wrong));
      reject(*built, TrialStatus::wrong, wrong);
      return false;
    }
    racer->built = std::move(built);
    racers_.push_back(std::move(racer));
  } catch (const Error& error) {
    reject(*built, TrialStatus::failed, error.message);
    return false;
  }
  return true;
}

void Session::start_baseline(const SearchSpace& space) {
  std::string reasons, detail;
  for (const Candidate& candidate : space.order) {
    auto built = std::make_unique<Built>(
        build(r_.family, r_.problem, candidate.schedule, r_.backend, &artifacts_));
    const std::string text = to_string(candidate.schedule);
    if (detail.empty()) detail = built->detail;
    if (admit(std::move(built), true)) {
      racers_.front()->runner->time_us();
      return;
    }
    reasons += fmt::format("\n  {}: {}", text, report_.trials.back().detail);
    if (over(1)) break;
  }
  throw Error(Status::compile_failed,
              fmt::format("tune: none of {} candidates for {} can run:{}", report_.considered,
                          to_string(r_.problem), reasons),
              detail);
}

// Measures the racers in common blocks with the baseline; drops those that are behind the leader by
// more than `margin`.
void Session::race(std::vector<Racer*> racers, int blocks, double margin) {
  Racer* const baseline = racers_.front().get();
  racers.erase(std::remove(racers.begin(), racers.end(), baseline), racers.end());
  std::vector<Runner*> runners = {baseline->runner.get()};
  for (Racer* racer : racers) runners.push_back(racer->runner.get());
  // One block even when the time is up, so that a small budget still learns something.
  for (int block = 0; block < blocks && (block == 0 || !over(1)); ++block) {
    const BlockTimes times = measure_block(runners, random_);
    const double again = times.baseline_again_us * 1e3, first = times.time_us[0] * 1e3;
    const auto add = [](Racer& racer, double time, double reference) {
      racer.times_ns.push_back(time);
      racer.baseline_ns.push_back(reference);
      racer.all_times.push_back(time);
      racer.all_baseline.push_back(reference);
    };
    add(*baseline, again, first);
    for (std::size_t i = 0; i < racers.size(); ++i)
      add(*racers[i], times.time_us[i + 1] * 1e3, std::sqrt(first * again));
  }
  raced_ = true;
  double leader = 0;
  for (Racer* racer : racers) {
    Trial all;
    summarise(all, racer->all_times, racer->all_baseline);
    racer->log_ratio = all.log_ratio;
    racer->margin = all.margin;
    commit(*racer);
    leader = std::min(leader, racer->log_ratio);
  }
  commit(*baseline);
  for (const auto& racer : racers_) leader = std::min(leader, racer->log_ratio);
  std::erase_if(racers_, [&](const std::unique_ptr<Racer>& racer) {
    return racer.get() != baseline && !racer->all_times.empty() &&
           racer->log_ratio - std::min(racer->margin, 0.5) - leader > margin;
  });
}

void Session::commit(Racer& racer) {
  if (racer.times_ns.empty()) return;
  Trial trial = trial_of(*racer.built);
  summarise(trial, racer.times_ns, racer.baseline_ns);
  racer.times_ns.clear();
  racer.baseline_ns.clear();
  store_.add_trials(report_.slot, {trial});
  report_.trials.push_back(trial);
  tell({{"stage", "measured"},
        {"schedule", trial.schedule},
        {"time_us", trial.median_ns * 1e-3},
        {"ratio", std::exp(trial.log_ratio)}});
}

void Session::explore(BuildQueue& queue) {
  std::vector<Racer*> group;
  const auto enter = [&](std::unique_ptr<Built> built, bool spilled_too) {
    if (!admit(std::move(built), spilled_too)) return;
    Racer* const racer = racers_.back().get();
    const double ratio = racer->runner->time_us() / racers_.front()->runner->time_us();
    if (ratio > kHopeless) {
      reject(*racer->built, TrialStatus::rejected,
             fmt::format("{:.2f} times the default at first sight", ratio));
      racers_.pop_back();
      return;
    }
    group.push_back(racer);
  };
  const auto race_group = [&] {
    if (group.empty()) return;
    race(std::exchange(group, {}), kFirstBlocks, kFirstMargin);
  };
  // Compiling and measuring on the same cores would disturb each other: there, all is compiled
  // first.
  std::vector<std::unique_ptr<Built>> waiting;
  if (r_.backend.kind() == BackendKind::cpu) {
    while (!over(kExploreShare / 2)) {
      std::unique_ptr<Built> built = queue.take(true);
      if (built == nullptr) break;
      tell({{"stage", "compiled"},
            {"schedule", to_string(built->schedule)},
            {"ms", built->binary.compile_ms}});
      waiting.push_back(std::move(built));
    }
    queue.stop();
  }
  std::size_t next = 0;
  const auto enough = [&] {
    return over(kCleanShare) && (raced_ || report_.interrupted || over(1));
  };
  while (!enough()) {
    std::unique_ptr<Built> built =
        next < waiting.size() ? std::move(waiting[next++]) : queue.take(group.empty());
    if (built != nullptr) {
      enter(std::move(built), false);
    } else if (group.empty() && queue.unfinished() == 0) {
      break;
    }
    if (built == nullptr || group.size() >= kGroup) race_group();
  }
  for (auto& built : spilled_)
    if (!over(kExploreShare)) enter(std::move(built), true);
  race_group();
}

void Session::final_round() {
  std::stable_sort(racers_.begin() + 1, racers_.end(),
                   [](const auto& a, const auto& b) { return a->log_ratio < b->log_ratio; });
  if (racers_.size() > kFinalists + 1) racers_.resize(kFinalists + 1);
  constexpr int kStep = 4;
  const auto worth_it = [&] { return racers_.size() > 1 && !over(1); };
  for (int blocks = 0; blocks < kFinalBlocks && (!raced_ || worth_it()); blocks += kStep) {
    std::vector<Racer*> all;
    for (const auto& racer : racers_) all.push_back(racer.get());
    race(all, kStep, blocks == 0 ? kFirstMargin : kFinalMargin);
  }
}

void Session::search_measured(const SearchSpace& space) {
  const Shape shape = bounded_shape(r_.problem, r_.shape, kMaxElements);
  report_.measured_shape = to_string(shape);
  workload_ = std::make_unique<Workload>(r_.problem, shape, r_.backend, r_.device.index,
                                         options_.seed, score_deviation(r_.config));
  verifier_ = std::make_unique<Verifier>(r_.config, r_.problem, *workload_, kVerifiedRows);
  start_baseline(space);
  std::vector<Schedule> schedules;
  for (const Candidate& candidate : space.order)
    if (candidate.schedule != racers_.front()->built->schedule)
      schedules.push_back(candidate.schedule);
  {
    BuildQueue queue(r_.family, r_.problem, schedules, r_.backend, &artifacts_,
                     options_.jobs > 0 ? options_.jobs : default_jobs());
    explore(queue);
  }
  final_round();
  report_.decision = store_.decide(report_.slot);
  keep_finalists();
}

// Only what may be asked for again is stored: the winner and the default. All trials decide, so the winner may be one
// that left the race early, or that another session measured.
void Session::keep_finalists() {
  keep(*racers_.front()->built, r_.problem, artifacts_);
  if (!report_.decision) return;
  const Schedule winner = parse_schedule(report_.decision->schedule);
  for (const auto& racer : racers_)
    if (racer->built->schedule == winner) return keep(*racer->built, r_.problem, artifacts_);
  keep(build(r_.family, r_.problem, winner, r_.backend, &artifacts_), r_.problem, artifacts_);
}

void Session::search_predicted(const SearchSpace& space) {
  std::vector<Schedule> schedules;
  for (const Candidate& candidate : space.order) schedules.push_back(candidate.schedule);
  std::map<std::string, double> predicted;
  for (const Candidate& candidate : space.order)
    predicted[to_string(candidate.schedule)] = candidate.estimate.time_us;
  BuildQueue queue(r_.family, r_.problem, schedules, r_.backend, &artifacts_,
                   options_.jobs > 0 ? options_.jobs : default_jobs());
  std::unique_ptr<Built> best;
  double best_us = 0;
  while (!over(1)) {
    std::unique_ptr<Built> built = queue.take(true);
    if (built == nullptr) break;
    ++report_.considered;
    const std::string schedule = to_string(built->schedule);
    Trial trial = trial_of(*built);
    if (!built->failure.empty()) {
      reject(*built, TrialStatus::failed, built->failure);
      continue;
    }
    if (built->binary.resources.spill_bytes > 0) {
      reject(*built, TrialStatus::spilled,
             fmt::format("spills {} bytes", built->binary.resources.spill_bytes));
      continue;
    }
    trial.median_ns = predicted[schedule] * 1e3;
    report_.trials.push_back(trial);
    tell({{"stage", "predicted"},
          {"schedule", schedule},
          {"time_us", predicted[schedule]},
          {"registers", trial.registers},
          {"smem_bytes", trial.smem_bytes}});
    if (best != nullptr && predicted[schedule] >= best_us) continue;
    best_us = predicted[schedule];
    best = std::move(built);
  }
  if (best == nullptr) return;
  Decision decision;
  decision.schedule = to_string(best->schedule);
  decision.baseline = to_string(space.order.front().schedule);
  decision.grade = Grade::predicted;
  decision.gain = predicted[decision.baseline] / best_us - 1;
  decision.tied = {decision.schedule};
  store_.put_decision(report_.slot, decision);
  report_.decision = store_.decision(report_.slot);
  keep(*best, r_.problem, artifacts_);
}

TuneReport Session::run() {
  std::vector<Schedule> incumbents;
  if (const auto stored = store_.decision(report_.slot))
    incumbents.push_back(parse_schedule(stored->schedule));
  if (!r_.known.empty()) incumbents.push_back(parse_schedule(r_.known));
  const SearchSpace space =
      search_space(r_.family, r_.problem, r_.device, r_.shape, incumbents, options_.seed);
  if (space.order.empty())
    throw Error(Status::unsupported,
                fmt::format("tune: no legal schedule of {} for {} on {}", r_.family.name(),
                            to_string(r_.problem), r_.device.name));
  report_.legal = space.legal;
  report_.rejected = space.rejected;
  total_ = static_cast<std::int64_t>(space.order.size());
  tell({{"stage", "start"}, {"legal", space.legal}, {"slot", to_string(report_.slot)}});
  if (r_.device.present) {
    search_measured(space);
  } else {
    search_predicted(space);
  }
  report_.seconds = seconds();
  return std::move(report_);
}

}  // namespace

Slot make_slot(const Problem& problem, const DeviceInfo& device, const Shape& shape) {
  return {device_class(device), to_string(problem), bucket(shape, device), "eager warm"};
}

TuneReport tune(const TuneRequest& request, ArtifactStore& artifacts, TuningStore& store,
                const TuneOptions& options) {
  return Session(request, artifacts, store, options).run();
}

std::string to_json(const TuneReport& report) {
  json out;
  out["slot"] = {{"device", report.slot.device},
                 {"problem", report.slot.problem},
                 {"bucket", report.slot.bucket},
                 {"policy", report.slot.policy}};
  out["legal"] = report.legal;
  out["considered"] = report.considered;
  out["rejected"] = report.rejected;
  out["interrupted"] = report.interrupted;
  out["seconds"] = report.seconds;
  if (!report.measured_shape.empty()) out["measured_shape"] = report.measured_shape;
  for (const Trial& trial : report.trials) {
    json row = {{"schedule", trial.schedule},
                {"status", to_string(trial.status)},
                {"registers", trial.registers},
                {"spill_bytes", trial.spill_bytes},
                {"smem_bytes", trial.smem_bytes}};
    if (!trial.detail.empty()) row["detail"] = trial.detail;
    if (trial.median_ns > 0) row["time_us"] = trial.median_ns * 1e-3;
    if (trial.samples > 0) {
      row["samples"] = trial.samples;
      row["ratio_to_default"] = std::exp(trial.log_ratio);
      row["margin"] = trial.margin;
    }
    out["trials"].push_back(row);
  }
  if (const auto& d = report.decision)
    out["decision"] = {
        {"schedule", d->schedule}, {"default", d->baseline},    {"grade", to_string(d->grade)},
        {"gain", d->gain},         {"gain_low", d->gain_low},   {"gain_high", d->gain_high},
        {"noise", d->noise},       {"confident", d->confident}, {"tied", d->tied},
        {"measured", d->measured}, {"failed", d->failed}};
  return out.dump();
}

}  // namespace flashwright
