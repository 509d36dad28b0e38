#include "tuner/measure.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace flashwright {
namespace {

// Shorter batches drown in the resolution of event timers and in launch jitter.
constexpr double kBatchUs = 300;
constexpr int kMaxBatch = 200;

}  // namespace

Runner::Runner(const Config& config, const Problem& problem, Workload& workload, Backend& backend,
               int device_index, const Binary& binary, const LaunchPlan& plan)
    : backend_(backend),
      device_index_(device_index),
      kernel_(backend, binary, plan, device_index),
      arguments_(resolve(config, problem, workload.device())),
      workload_(workload),
      workspace_bytes_(kernel_.workspace_bytes(arguments_)) {}

void Runner::launch() {
  kernel_.launch(arguments_, workload_.workspace(workspace_bytes_), nullptr);
}

double Runner::time_us() {
  if (batch_ == 0) {  // loading is lazy and caches are cold: the first launches do not count
    launch();
    backend_.synchronize(device_index_, nullptr);
    const double once = std::max(backend_.time(device_index_, nullptr, [this] { launch(); }), 0.1);
    batch_ = std::clamp(static_cast<int>(std::ceil(kBatchUs / once)), 1, kMaxBatch);
  }
  const double total = backend_.time(device_index_, nullptr, [this] {
    for (int i = 0; i < batch_; ++i) launch();
  });
  return total / batch_;
}

BlockTimes measure_block(const std::vector<Runner*>& runners, std::mt19937_64& random) {
  // Index runners.size() stands for the second visit to the baseline.
  std::vector<std::size_t> order(runners.size() + 1);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  BlockTimes out;
  out.time_us.resize(runners.size());
  for (const std::size_t i : order) {
    if (i == runners.size()) {
      out.baseline_again_us = runners[0]->time_us();
    } else {
      out.time_us[i] = runners[i]->time_us();
    }
  }
  return out;
}

}  // namespace flashwright
