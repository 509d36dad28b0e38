// No candidate may win before its results were compared with the float64 reference.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/reference.hpp"
#include "core/reference_gradient.hpp"
#include "tuner/workload.hpp"

namespace flashwright {

// The reference for sampled rows of a workload, computed once and compared with many candidates.
class Verifier {
 public:
  Verifier(const Config& config, const Problem& problem, const Workload& workload,
           std::int64_t rows);

  // "" when the outputs in the workload's host memory are right, else what is wrong.
  std::string verdict(const Workload& workload) const;

 private:
  struct Row {
    std::int64_t b, h, q;
    ReferenceRow exact, unfused;
  };
  DType dtype_;
  std::vector<Row> rows_;
  std::optional<GradientSample> gradients_;  // of a backward problem
};

}  // namespace flashwright
