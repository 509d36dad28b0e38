#include "cli/tuning.hpp"

#include <fmt/format.h>

#include "cli/console.hpp"
#include "cli/interrupt.hpp"
#include "cli/values.hpp"

namespace cli {
namespace {

// Follows the events of a session.
struct Follower {
  Progress progress;
  double budget_s;
  std::string leader;
  double best = 0;  // ratio to the default of what was measured; or the model's time
  bool predicted = false;
  std::int64_t measured = 0, rejected = 0;
  bool asked_to_stop = false;

  Follower(bool quiet, double budget) : progress(quiet), budget_s(budget) {}

  void take(const Json& event) {
    const std::string stage = event.value("stage", "");
    if (stage == "rejected") ++rejected;
    if (stage != "measured" && stage != "predicted") return;
    ++measured;
    predicted = stage == "predicted";
    const double value = predicted ? event.value("time_us", 0.0) : event.value("ratio", 1.0);
    if (!leader.empty() && value >= best) return;
    best = value;
    leader = event.value("schedule", "");
  }

  std::string text(std::int64_t done, std::int64_t total, const Json& event) const {
    std::string line = fmt::format("of {:.0f} s  {}/{} tried", budget_s, done, total);
    if (!leader.empty() && predicted)
      line += fmt::format(", leader {}, by the model {}", leader, time_text(best));
    else if (!leader.empty() && best < 1)
      line += fmt::format(", leader {}, {} faster than the default", leader,
                          percent_text(1 / best - 1));
    else if (!leader.empty())
      line += ", the default leads";
    if (rejected > 0) line += fmt::format(", {} rejected", rejected);
    if (event.value("stage", "") == "compiled") line += ", compiling";
    return line;
  }
};

std::int32_t on_progress(void* user, std::int64_t done, std::int64_t total, const char* text) {
  auto& follower = *static_cast<Follower*>(user);
  try {
    const Json event = Json::parse(text);
    follower.take(event);
    follower.progress.set(follower.text(done, total, event));
    if (InterruptGuard::requested() && !follower.asked_to_stop) {
      follower.asked_to_stop = true;
      follower.progress.say("stopping after this block; ctrl-C again ends at once");
    }
  } catch (const std::exception&) {
    // An event that cannot be shown is no reason to end a session.
  }
  return InterruptGuard::requested() ? 1 : 0;
}

}  // namespace

TuningResult tune_with_progress(Context& context, const std::string& config,
                                const flashwright_shape* shape, const Json& options) {
  const InterruptGuard guard;
  Follower follower(context.json, options.value("budget_s", 60.0));
  char* text = nullptr;
  const flashwright_status status =
      flashwright_tune(context.engine(), config.c_str(), shape, options.dump().c_str(),
                       &on_progress, &follower, &text);
  follower.progress.finish();
  if (status != FLASHWRIGHT_OK && InterruptGuard::requested())
    throw Error(Exit::interrupted, "stopped before anything was measured");
  flashwright::check(status);
  TuningResult result;
  result.report = Json::parse(flashwright::take(text));
  result.interrupted = result.report.value("interrupted", false) || InterruptGuard::requested();
  return result;
}

void tune_if_untuned(Context& context, const std::string& config, const flashwright_shape& shape,
                     double seconds) {
  const Json now = ask([&](char** text) {
    return flashwright_explain(context.engine(), config.c_str(), &shape, text);
  });
  const std::string chosen = now.value("chosen_by", "");
  if (chosen == "config" || chosen == "measured" || chosen == "shipped") return;
  note(context,
       fmt::format("nothing was measured for this shape yet; tuning for up to {:.0f} s", seconds));
  if (tune_with_progress(context, config, &shape, {{"budget_s", seconds}}).interrupted)
    throw Error(Exit::interrupted, "stopped while tuning; what was learned is kept");
}

std::string choice_text(const std::string& chosen_by) {
  if (chosen_by == "config") return "the schedule is the one that was asked for";
  if (chosen_by == "measured")
    return "the schedule won a measured search for this size on this device";
  if (chosen_by == "measured nearby") return "the schedule won a measured search for a size nearby";
  if (chosen_by == "shipped")
    return "the schedule won a measured search on such a device and came with the library";
  if (chosen_by == "predicted")
    return "the model ranks the schedule first; `flashwright tune` measures";
  return "the schedule is the default; `flashwright tune` looks for a faster one";
}

}  // namespace cli
