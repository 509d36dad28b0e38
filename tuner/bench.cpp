#include "tuner/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cache/decide.hpp"
#include "core/error.hpp"
#include "core/mask.hpp"
#include "core/traffic.hpp"
#include "tuner/measure.hpp"
#include "tuner/verify.hpp"

namespace flashwright {
namespace {

constexpr std::int64_t kBenchVerifiedRows = 16;
constexpr int kMinBlocks = 5;

// Launches once into poisoned outputs and compares; throws when the result is wrong. Each entry is judged as the
// problem that it is: unfused passes store scores of 16 bits.
void check_result(const Config& config, const BenchEntry& entry, Runner& runner, Workload& workload,
                  Backend& backend, int device_index) {
  const Verifier verifier(config, entry.problem, workload, kBenchVerifiedRows);
  workload.poison_outputs();
  runner.launch();
  backend.synchronize(device_index, nullptr);
  workload.fetch_outputs();
  if (const std::string wrong = verifier.verdict(workload); !wrong.empty())
    throw Error(Status::internal,
                fmt::format("bench: {} {}: {}", entry.name, to_string(entry.problem), wrong));
}

Problem unfused(Problem problem) {
  problem.algorithm = Algorithm::unfused;
  return problem;
}

}  // namespace

double visible_pairs(const Config& config, const Shape& shape, const Arguments& arguments) {
  const double all = static_cast<double>(shape.seq_q) * static_cast<double>(shape.seq_kv);
  if (config.mask.kind == Mask::Kind::none) return all;
  if (config.mask.kind == Mask::Kind::causal && shape.seq_q == shape.seq_kv) return all / 2;
  if (config.mask.kind == Mask::Kind::blocks) {
    const BlockLists& lists = *arguments.blocks;
    const std::int64_t rows = lists.batch * lists.heads * lists.query_blocks();
    return static_cast<double>(lists.full_offsets[rows] + lists.partial_offsets[rows]) *
           static_cast<double>(lists.block_q * lists.block_kv) /
           static_cast<double>(lists.batch * lists.heads);
  }
  const std::int64_t offset = arguments.q_position.value_or(shape.seq_kv - shape.seq_q);
  const std::int64_t left = config.mask.left < 0 ? kUnboundedWindow : config.mask.left;
  const std::int64_t right = config.mask.kind == Mask::Kind::causal ? 0
                             : config.mask.right < 0                ? kUnboundedWindow
                                                                    : config.mask.right;
  double pairs = 0;
  for (std::int64_t q = 0; q < shape.seq_q; ++q) {
    const std::int64_t first = std::max<std::int64_t>(0, q + offset - left);
    const std::int64_t last = std::min(shape.seq_kv - 1, q + offset + right);
    pairs += static_cast<double>(std::max<std::int64_t>(0, last - first + 1));
  }
  return pairs;
}

BenchReport bench(const Config& config, const Shape& shape, std::vector<BenchEntry> entries,
                  Backend& backend, int device_index, double seconds) {
  Workload workload(entries.front().problem, shape, backend, device_index, 1,
                    score_deviation(config));
  std::vector<std::unique_ptr<Runner>> owned;
  std::vector<Runner*> runners;
  for (const BenchEntry& entry : entries) {
    if (!entry.built.failure.empty())
      throw Error(Status::compile_failed, entry.built.failure, entry.built.detail);
    owned.push_back(std::make_unique<Runner>(config, entry.problem, workload, backend, device_index,
                                             entry.built.binary, entry.built.source.plan));
    runners.push_back(owned.back().get());
    check_result(config, entry, *runners.back(), workload, backend, device_index);
  }
  std::mt19937_64 random(1);
  std::vector<std::vector<double>> times(entries.size()), first(entries.size());
  const auto start = std::chrono::steady_clock::now();
  for (int block = 0; block < kMinBlocks || std::chrono::steady_clock::now() - start <
                                                std::chrono::duration<double>(seconds);
       ++block) {
    const BlockTimes measured = measure_block(runners, random);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      times[i].push_back(measured.time_us[i] * 1e3);
      first[i].push_back(i == 0 ? measured.baseline_again_us * 1e3 : measured.time_us[0] * 1e3);
    }
  }
  BenchReport report;
  report.shape = to_string(shape);
  const Problem& problem = entries.front().problem;
  const double pairs = visible_pairs(config, shape, workload.host());
  const double operations = product_flops(problem, shape, pairs);
  report.unfused_flops = product_flops(unfused(problem), shape, pairs);
  report.unfused_bytes = unfused_bytes(problem, shape);
  report.tensor_bytes = tensor_bytes(problem, shape);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    Trial summary;
    summarise(summary, times[i], first[i]);
    BenchRow row;
    row.name = entries[i].name;
    row.schedule = to_string(entries[i].built.schedule);
    row.median_us = summary.median_ns * 1e-3;
    row.low_us = summary.low_ns * 1e-3;
    row.high_us = summary.high_ns * 1e-3;
    row.ratio = i == 0 ? 1 : std::exp(summary.log_ratio);
    row.ratio_margin = summary.margin;
    row.tflops = operations / row.median_us * 1e-6;
    row.flops = product_flops(entries[i].problem, shape, pairs);
    row.traffic_bytes = entries[i].traffic_bytes;
    row.workspace_bytes = runners[i]->workspace_bytes();
    row.samples = static_cast<int>(summary.samples);
    report.rows.push_back(row);
  }
  return report;
}

std::string to_json(const BenchReport& report) {
  nlohmann::json out = {
      {"shape", report.shape},
      {"tensor_bytes", report.tensor_bytes},
      {"unfused", {{"flops", report.unfused_flops}, {"traffic_bytes", report.unfused_bytes}}}};
  for (const BenchRow& row : report.rows) {
    out["kernels"].push_back({{"name", row.name},
                              {"schedule", row.schedule},
                              {"time_us", row.median_us},
                              {"low_us", row.low_us},
                              {"high_us", row.high_us},
                              {"ratio", row.ratio},
                              {"ratio_margin", row.ratio_margin},
                              {"tflops", row.tflops},
                              {"flops", row.flops},
                              {"workspace_bytes", row.workspace_bytes},
                              {"samples", row.samples}});
    if (row.traffic_bytes) out["kernels"].back()["traffic_bytes"] = *row.traffic_bytes;
  }
  return out.dump();
}

}  // namespace flashwright
