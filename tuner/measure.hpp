// The timing protocol: candidates are measured in blocks, each visiting all of them once in random
// order with the baseline twice, so that drift of the clock cancels in the ratios.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "runtime/loaded_kernel.hpp"
#include "tuner/workload.hpp"

namespace flashwright {

// A kernel bound to the tensors of a workload.
class Runner {
 public:
  Runner(const Config& config, const Problem& problem, Workload& workload, Backend& backend,
         int device_index, const Binary& binary, const LaunchPlan& plan);

  void launch();     // once
  double time_us();  // of one launch: a batch long enough for the device's clock, divided
  std::size_t workspace_bytes() const { return workspace_bytes_; }

 private:
  Backend& backend_;
  int device_index_;
  LoadedKernel kernel_;
  ResolvedArguments arguments_;
  Workload& workload_;
  std::size_t workspace_bytes_;
  int batch_ = 0;  // launches per measurement; found at the first one
};

// One block: microseconds of every runner, in their order, and a second measurement of the first
// one.
struct BlockTimes {
  std::vector<double> time_us;
  double baseline_again_us = 0;
};
BlockTimes measure_block(const std::vector<Runner*>& runners, std::mt19937_64& random);

}  // namespace flashwright
