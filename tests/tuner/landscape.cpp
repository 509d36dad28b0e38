#include "tests/tuner/landscape.hpp"

#include <algorithm>

namespace flashwright::testing {
namespace {

struct Row {
  const char* schedule;
  double time_us;
};

constexpr Row kRows[] = {
    {"q64.kv64.w4.st2.b2", 100.0},  {"q128.kv64.w4.st2.b2", 81.0},   {"q128.kv32.w4.st2.b2", 81.3},
    {"q128.kv64.w8.st2.b1", 86.5},  {"q64.kv32.w4.st2.b2", 104.0},   {"q64.kv64.w4.st1.b2", 108.2},
    {"q64.kv128.w4.st1.b1", 97.0},  {"q32.kv64.w2.st2.b4", 121.0},   {"q16.kv64.w1.st2.b6", 190.0},
    {"q128.kv128.w8.st1.b1", 92.4}, {"q128.kv128.w4.st1.b1", 250.0}, {"q256.kv64.w8.st1.b1", 88.9},
    {"q256.kv32.w8.st2.b1", 87.0},  {"q64.kv96.w4.st2.b1", 95.5},    {"q32.kv32.w2.st2.b4", 133.0},
    {"q16.kv32.w1.st2.b8", 240.0},  {"q128.kv96.w4.st1.b1", 84.1},   {"q64.kv64.w2.st2.b2", 99.0},
    {"q128.kv32.w8.st2.b2", 90.0},  {"q32.kv128.w2.st1.b2", 125.0}};

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Row& row : kRows) out.emplace_back(row.schedule);
    return out;
  }();
  return names;
}

Landscape usual_landscape() {
  Landscape landscape;
  for (const Row& row : kRows) landscape[row.schedule].time_us = row.time_us;
  return landscape;
}

double best_time(const Landscape& landscape) {
  double best = 1e9;
  for (const auto& [schedule, outcome] : landscape)
    if (outcome.compiles && outcome.loads && outcome.launches && outcome.right &&
        outcome.spill_bytes == 0)
      best = std::min(best, outcome.time_us);
  return best;
}

Rig::Rig(Landscape what, BackendKind kind, std::uint64_t seed)
    : landscape(std::move(what)),
      family(schedule_names(), landscape, seed),
      backend(kind, landscape) {
  config.dtype = DType::fp32;
  config.head_dim = 16;
  const Target target = kind == BackendKind::cuda ? Target{kind, "sm_80"} : Target{kind, "avx2"};
  problem = normalise(config, target);
  device = fake_device(target);
}

TuneReport Rig::tune(const TuneOptions& options) {
  const TuneRequest request = {config, problem, family, backend, device, shape, known};
  return flashwright::tune(request, artifacts, store, options);
}

TuneReport Rig::tune(std::uint64_t seed) {
  TuneOptions options;
  options.seed = seed;
  options.jobs = 1;
  return tune(options);
}

}  // namespace flashwright::testing
