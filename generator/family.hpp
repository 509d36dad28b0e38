// A family is one way of writing the kernel: for cp.async and mma.sync, for TMA and wgmma, for the
// vector unit of a CPU. It knows which problems it can do, which schedules are legal, what they
// cost, and how to emit them. It knows no compiler and no device beyond a DeviceInfo.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/arguments.hpp"
#include "core/device.hpp"
#include "core/problem.hpp"
#include "core/schedule.hpp"
#include "core/source.hpp"

namespace flashwright {

// What a schedule is known to take before anything is compiled.
struct Estimate {
  int threads = 0;     // per block
  int smem_bytes = 0;  // per block; CPU: scratch of one worker
  int registers = 0;   // per thread, by the family's law; CPU: vector registers of the inner loop
  double time_us = 0;  // of one launch, by the family's model; only the order matters
};

// One schedule that was considered. `rejected` says why it cannot run; empty means legal.
struct Candidate {
  Schedule schedule;
  Estimate estimate;
  std::string rejected;
};

class Family {
 public:
  virtual ~Family() = default;

  virtual std::string name() const = 0;  // "sm80", "cpu"

  // Every reason why this family cannot do the problem; empty means it can.
  virtual std::vector<std::string> reasons_against(const Problem& problem) const = 0;

  // What it does, but slowly, by what a Config does not tell: strides and addresses. For `explain`.
  virtual std::vector<std::string> slow_launches() const { return {}; }

  // All schedules of the knob space, legal or rejected with the reason, in a fixed order.
  virtual std::vector<Candidate> space(const Problem& problem, const DeviceInfo& device,
                                       const Shape& shape) const = 0;

  // One schedule under the same rules, for a pinned one.
  virtual Candidate consider(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                             const Schedule& schedule) const = 0;

  // A good schedule without any search. Depends on the shape only through its bucket.
  virtual Schedule default_schedule(const Problem& problem, const DeviceInfo& device,
                                    const Shape& shape) const = 0;

  // Bytes that a launch moves between the memory of a block or task and what lies beyond (core/traffic), with all
  // outputs wanted. Nothing where that is not counted.
  virtual std::optional<double> traffic_bytes(const Problem&, const Schedule&, const Shape&) const {
    return std::nullopt;
  }

  virtual Source emit(const Problem& problem, const Schedule& schedule) const = 0;
};

}  // namespace flashwright
