#include "tuner/verify.hpp"

#include <fmt/format.h>

#include "core/dtype.hpp"

namespace flashwright {

Verifier::Verifier(const Config& config, const Problem& problem, const Workload& workload,
                   std::int64_t rows)
    : dtype_(problem.dtype) {
  const Arguments& args = workload.host();
  if (problem.direction == Direction::backward) {
    gradients_.emplace(config, problem, args, RowStatistics::given, rows);
    return;
  }
  for (const RowIndex& row : sample_rows(args, rows)) {
    Row out{row.b, row.h, row.q, reference_row(config, problem, args, row.b, row.h, row.q), {}};
    out.unfused = dtype_ == DType::fp32
                      ? out.exact
                      : reference_row(config, problem, args, row.b, row.h, row.q, dtype_);
    rows_.push_back(std::move(out));
  }
}

std::string Verifier::verdict(const Workload& workload) const {
  const Arguments& args = workload.host();
  if (gradients_) {
    const std::string fault = fault_of(gradients_->verdicts(args));
    return fault.empty() ? fault : "wrong result: " + fault;
  }
  Judge judge(dtype_);
  for (const Row& row : rows_) {
    const OutputRow got = read_output(args, {row.b, row.h, row.q});
    judge.add(row.exact, row.unfused, got.o, got.lse);
  }
  if (judge.passed()) return {};
  return fmt::format(
      "wrong result: error {:.3g}, allowed {:.3g}; LSE off by {:.3g} of its bound; {}",
      judge.error(), judge.tolerance(), judge.lse_excess(),
      judge.finite() ? "finite where it should be" : "not finite where it should be");
}

}  // namespace flashwright
