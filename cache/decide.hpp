// From measurements to a choice. Pure functions: the same trials give the same winner on every machine
// and in any order, so tuning results can be merged and decisions rebuilt from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/sha256.hpp"

namespace flashwright {

enum class TrialStatus : std::uint8_t { ok, rejected, spilled, wrong, failed };
const char* to_string(TrialStatus status);

// What one session learned about one candidate. Times are compared as ratios to the baseline, which is
// measured in the same blocks: the clock of the device may drift, but not within a block.
struct Trial {
  std::string schedule;  // the candidate
  std::string baseline;  // the schedule that the ratio refers to: the default
  Digest kernel{};       // key of the binary that ran
  TrialStatus status = TrialStatus::ok;
  std::string detail;        // why it is not ok, in one line
  std::int64_t samples = 0;  // blocks
  double median_ns = 0;
  double low_ns = 0, high_ns = 0;  // between them lie 90 % of the samples
  double log_ratio = 0;            // mean of ln(time / time of the baseline)
  double margin = 0;               // half of its 95 % confidence interval
  int registers = 0, spill_bytes = 0, smem_bytes = 0;
  std::int64_t at = 0;  // microseconds since 1970
  bool operator==(const Trial&) const = default;
};

// Fills samples, times, log_ratio and margin. times[i] and baseline[i] belong to the same block. For
// the baseline itself, give its two measurements of each block: the margin is then the noise.
void summarise(Trial& trial, const std::vector<double>& times_ns,
               const std::vector<double>& baseline_ns);

enum class Grade : std::uint8_t { predicted, measured };
const char* to_string(Grade grade);

// Which schedule to use, and why.
struct Decision {
  std::string schedule;
  std::string baseline;
  Grade grade = Grade::predicted;
  double gain = 0;                        // 0.12: the baseline takes 12 % longer
  double gain_low = 0, gain_high = 0;     // 95 % confidence interval
  double noise = 0;                       // of the baseline against itself, relative
  bool confident = true;                  // false: the device was disturbed, measure again
  std::vector<std::string> tied;          // all that are as good, the winner included
  std::int64_t measured = 0, failed = 0;  // candidates
  std::int64_t at = 0;                    // of the latest trial, microseconds since 1970
  bool operator==(const Decision&) const = default;
};

// Candidates within max(2 %, combined 95 % margin) of the fastest are tied with it. Of these the
// incumbent wins, else the baseline, else, among those whose own mean is within 2 % and about as well
// known, the one with less spilling, less shared memory, fewer registers, and the first in the order of
// schedule texts. Only trials of the latest baseline count, and for each candidate only those of its
// latest binary. Nothing when no trial is ok.
std::optional<Decision> select_winner(const std::vector<Trial>& trials,
                                      std::string_view incumbent = {});

}  // namespace flashwright
