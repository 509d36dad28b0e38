// Collects the reasons against a schedule.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>

namespace flashwright {

// Only the first reason is kept, as later checks may rest on it.
class Verdict {
 public:
  void require(bool holds, const std::string& otherwise) {
    if (!holds && reason_.empty()) reason_ = otherwise;
  }
  void one_of(const char* knob, int value, std::initializer_list<int> allowed) {
    require(std::find(allowed.begin(), allowed.end(), value) != allowed.end(),
            fmt::format("{} is {}; allowed: {}", knob, value, fmt::join(allowed, ", ")));
  }
  bool legal() const { return reason_.empty(); }
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

}  // namespace flashwright
