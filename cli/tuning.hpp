// A tuning session with its progress on the console; ctrl-C stops it and keeps what was learned.
#pragma once

#include <string>

#include "cli/context.hpp"

namespace cli {

struct TuningResult {
  Json report;
  bool interrupted = false;
};

// `options` as flashwright_tune takes them; `budget_s` must be in it.
TuningResult tune_with_progress(Context& context, const std::string& config,
                                const flashwright_shape* shape, const Json& options);

// Tunes for `seconds` unless a schedule is pinned or was measured for this shape. Throws Error(interrupted).
void tune_if_untuned(Context& context, const std::string& config, const flashwright_shape& shape,
                     double seconds);

// Why a schedule is used, for the "chosen_by" of a report.
std::string choice_text(const std::string& chosen_by);

// The tables and sentences that end a session.
void print_tuning(const Json& report, bool everything);

}  // namespace cli
