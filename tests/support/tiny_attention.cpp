#include "tests/support/tiny_attention.hpp"

#include <cmath>
#include <limits>

namespace flashwright::testing {

TinyRow tiny_row(const TinyAttention& a, std::int64_t b, std::int64_t h, std::int64_t i) {
  const std::int64_t head_kv = h * a.heads_kv / a.heads_q;
  double total = 0;
  std::vector<double> weights;
  for (std::int64_t j = 0; j < a.seq_kv; ++j) {
    double score = 0;
    for (std::int64_t d = 0; d < a.head_dim; ++d) score += a.q(b, i, h, d) * a.k(b, j, head_kv, d);
    score *= a.scale;
    if (a.change) score = a.change(score, b, h, i, j);
    // Tests keep scores small enough for a plain exponential.
    weights.push_back(!a.sees || a.sees(b, h, i, j) ? std::exp(score) : 0.0);
    total += weights.back();
  }
  TinyRow row{std::vector<double>(static_cast<std::size_t>(a.head_dim_v)), std::log(total)};
  if (total == 0) return row;
  for (std::int64_t j = 0; j < a.seq_kv; ++j) {
    double weight = weights[static_cast<std::size_t>(j)] / total;
    if (a.factor) weight *= a.factor(b, h, i, j);
    for (std::int64_t d = 0; d < a.head_dim_v; ++d)
      row.o[static_cast<std::size_t>(d)] += weight * a.v(b, j, head_kv, d);
  }
  return row;
}

void OnlineSoftmax::add(const std::vector<double>& scores,
                        const std::vector<std::vector<double>>& values) {
  double larger = max_;
  for (const double score : scores) larger = std::max(larger, score);
  if (larger == -std::numeric_limits<double>::infinity()) return;  // nothing visible so far
  const double rescale = std::exp(max_ - larger);
  sum_ *= rescale;
  for (double& value : sum_of_values_) value *= rescale;
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const double weight = std::exp(scores[j] - larger);
    sum_ += weight;
    for (std::size_t d = 0; d < sum_of_values_.size(); ++d)
      sum_of_values_[d] += weight * values[j][d];
  }
  max_ = larger;
}

TinyRow OnlineSoftmax::result() const {
  TinyRow row{sum_of_values_, max_ + std::log(sum_)};
  for (double& value : row.o) value = sum_ == 0 ? 0 : value / sum_;
  return row;
}

}  // namespace flashwright::testing
