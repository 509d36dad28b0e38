// Timing for the host benchmarks.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace flashwright::bench {

using Clock = std::chrono::steady_clock;

inline double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Nanoseconds of one call of `body`: the median of 21 samples of many calls each.
template <typename Body>
double nanoseconds(int calls, const Body& body) {
  std::vector<double> samples;
  for (int sample = 0; sample < 21; ++sample) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < calls; ++i) body();
    samples.push_back(milliseconds_since(start) * 1e6 / calls);
  }
  return median(samples);
}

}  // namespace flashwright::bench
