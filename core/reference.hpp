// Attention for chosen rows in double precision: the judge for every backend. Also the same row as
// an unfused computation in the problem's own precision would give it, whose error sets the
// tolerance.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/arguments.hpp"

namespace flashwright {

struct ReferenceRow {
  std::vector<double> o;  // head_dim_v values
  double lse = 0;         // natural log; -inf when no key is visible
  // What rounding of the scores may add to the error of the LSE: sums of q * k in fp32 and, with the
  // unfused passes, the stored scores.
  double score_rounding = 0;
};

// Row `q` of head `h` in batch entry `b`. The tensors must lie in host memory. With `rounded`,
// every stored intermediate (scores, weights, output) is rounded to that type. A row without
// visible keys gives zeros and -inf; NaN in a visible input stays NaN.
ReferenceRow reference_row(const Config& config, const Problem& problem, const Arguments& arguments,
                           std::int64_t b, std::int64_t h, std::int64_t q,
                           std::optional<DType> rounded = std::nullopt);

// How far results may be from the reference, over a set of rows. The rule is the one of the
// FlashAttention test suites, made numeric:
//   O, 16 bit  2 * (error of the unfused computation in the same precision) + ulp(max|ref| + 0.3)
//   O, fp32    1e-5 * (1 + max|ref|)
//   LSE        1e-5 + 4 ulp(fp32) of the reference and of sum_j p_j sum_d |q_d k_jd scale|, since a sum
//              in fp32 is as exact as its largest part
class Judge {
 public:
  explicit Judge(DType dtype) : dtype_(dtype) {}

  // Adds one row: the exact values, the unfused ones, and what the kernel gave (lse may be absent).
  void add(const ReferenceRow& exact, const ReferenceRow& unfused, const std::vector<double>& o,
           std::optional<double> lse);

  double error() const { return error_; }
  double tolerance() const;
  double lse_excess() const {
    return lse_excess_;
  }                                              // largest LSE error over its own bound; 1 is at it
  bool finite() const { return finite_match_; }  // NaN and infinity stand where they should
  std::int64_t rows() const { return rows_; }
  bool passed() const { return finite_match_ && error_ <= tolerance() && lse_excess_ <= 1; }

 private:
  DType dtype_;
  double error_ = 0, unfused_error_ = 0, largest_ = 0, lse_excess_ = 0;
  bool finite_match_ = true;
  std::int64_t rows_ = 0;
};

// A query row, and what a kernel wrote for it.
struct RowIndex {
  std::int64_t b, h, q;
};
struct OutputRow {
  std::vector<double> o;
  std::optional<double> lse;
};

// Up to `max_rows` rows spread over batch, heads and queries; the very last row is always among
// them.
std::vector<RowIndex> sample_rows(const TensorView& tensor, std::int64_t max_rows);
inline std::vector<RowIndex> sample_rows(const Arguments& arguments, std::int64_t max_rows) {
  return sample_rows(arguments.q, max_rows);
}
OutputRow read_output(const Arguments& arguments, const RowIndex& row);

// Which of "q", "k", "v", "d_o" hold NaN or infinity, in host memory. Kernels multiply what a mask hides by 0,
// so in v it shows in rows that the reference finds finite.
std::vector<std::string> non_finite_inputs(const Arguments& arguments);

// Judges up to `max_rows` rows. The outputs in `arguments` are the kernel's, in host memory.
Judge judge(const Config& config, const Problem& problem, const Arguments& arguments,
            std::int64_t max_rows);

}  // namespace flashwright
