// Times kernels side by side on the same tensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tuner/builder.hpp"
#include "tuner/workload.hpp"

namespace flashwright {

struct BenchEntry {
  std::string name;  // "tiled", "unfused"
  Problem problem;
  Built built;
  std::optional<double> traffic_bytes;  // of a launch, as core/traffic counts; nothing: not counted
};

struct BenchRow {
  std::string name;
  std::string schedule;
  double median_us = 0, low_us = 0, high_us = 0;  // between them lie 90 % of the samples
  double ratio = 1;                               // time over that of the first entry, paired
  double ratio_margin = 0;                        // half the 95 % interval of its logarithm
  // 2 * visible pairs * (head_dim + head_dim_v) a second; backward (3 head_dim + 2 head_dim_v), without what is
  // computed a second time.
  double tflops = 0;
  double flops =
      0;  // of the products that it computes, a second time or hidden by the mask as well
  std::optional<double> traffic_bytes;
  std::size_t workspace_bytes = 0;
  int samples = 0;
};

struct BenchReport {
  std::string shape;
  std::vector<BenchRow> rows;  // in the order of the entries
  // The computation that stores all scores, whether or not it is among the rows.
  double unfused_flops = 0, unfused_bytes = 0;
  double tensor_bytes = 0;  // of inputs and outputs, each once
};

// Every entry is verified against the reference before it is timed.
BenchReport bench(const Config& config, const Shape& shape, std::vector<BenchEntry> entries,
                  Backend& backend, int device_index, double seconds);

// Pairs of query and key that the mask lets through, of one head; half of all for causal squares,
// as is usual.
double visible_pairs(const Config& config, const Shape& shape, const Arguments& arguments);

std::string to_json(const BenchReport& report);

}  // namespace flashwright
