#include "core/reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/dtype.hpp"
#include "core/reference_rows.hpp"

namespace flashwright {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The scores of a row.
struct Scores {
  std::vector<QueryRow::Score> keys;
  double largest = -kInfinity;
  bool broken = false;  // a visible score is NaN or +infinity
};

Scores scores_of(const QueryRow& query, std::int64_t seq_kv) {
  Scores out;
  for (std::int64_t j = 0; j < seq_kv; ++j) {
    out.keys.push_back(query.score(j));
    const double score = out.keys.back().value;
    out.largest = std::max(out.largest, score);
    out.broken = out.broken || std::isnan(score) || score == kInfinity;
  }
  return out;
}

// How far rounding may move the scores that the LSE rests on: an error of a score moves it by the share of its weight.
double score_rounding(const Problem& problem, const Scores& scores, double lse) {
  double magnitude = 0, capped = 0;
  for (const QueryRow::Score& score : scores.keys) {
    if (score.value == -kInfinity) continue;
    const double weight = std::exp(score.value - lse);
    magnitude += weight * score.magnitude;
    capped += weight * std::fabs(score.capped);
  }
  return QueryRow::rounding(problem, magnitude, capped);
}

}  // namespace

ReferenceRow reference_row(const Config& config, const Problem& problem, const Arguments& args,
                           std::int64_t b, std::int64_t h, std::int64_t q,
                           std::optional<DType> rounded) {
  const QueryRow query(config, problem, args, b, h, q, rounded);
  const std::int64_t seq_kv = args.k.shape[1];
  const Scores scores = scores_of(query, seq_kv);
  ReferenceRow row;
  row.o.assign(static_cast<std::size_t>(problem.head_dim_v), 0.0);
  if (scores.broken) {
    std::fill(row.o.begin(), row.o.end(), std::nan(""));
    row.lse = std::nan("");
    return row;
  }
  row.lse = -kInfinity;
  if (scores.largest == -kInfinity) return row;

  double row_sum = 0;
  for (const QueryRow::Score& score : scores.keys)
    row_sum += std::exp(score.value - scores.largest);
  row.lse = scores.largest + std::log(row_sum);
  row.score_rounding = score_rounding(problem, scores, row.lse);
  for (std::int64_t j = 0; j < seq_kv; ++j) {
    const double score = scores.keys[static_cast<std::size_t>(j)].value;
    double weight = rounded_to(rounded, std::exp(score - scores.largest) / row_sum);
    if (config.dropout > 0) weight = rounded_to(rounded, weight * query.dropout_factor(j));
    if (weight == 0) continue;  // an invisible value must not turn the row into NaN
    const std::vector<double> value = read_row(args.v, b, j, query.head_kv());
    for (std::size_t i = 0; i < row.o.size(); ++i) row.o[i] += weight * value[i];
  }
  for (double& value : row.o) value = rounded_to(rounded, value);
  return row;
}

void Judge::add(const ReferenceRow& exact, const ReferenceRow& unfused,
                const std::vector<double>& o, std::optional<double> lse) {
  ++rows_;
  for (std::size_t i = 0; i < exact.o.size(); ++i) {
    if (!std::isfinite(exact.o[i])) {
      finite_match_ = finite_match_ && !std::isfinite(o[i]);
      continue;
    }
    finite_match_ = finite_match_ && std::isfinite(o[i]);
    error_ = std::max(error_, std::fabs(o[i] - exact.o[i]));
    largest_ = std::max(largest_, std::fabs(exact.o[i]));
    // An unfused computation that overflows is no yardstick.
    if (std::isfinite(unfused.o[i]))
      unfused_error_ = std::max(unfused_error_, std::fabs(unfused.o[i] - exact.o[i]));
  }
  if (!lse) return;
  if (!std::isfinite(exact.lse)) {
    finite_match_ = finite_match_ && (std::isnan(exact.lse) ? std::isnan(*lse) : *lse == exact.lse);
    return;
  }
  finite_match_ = finite_match_ && std::isfinite(*lse);
  const double bound = 1e-5 + 4 * ulp(DType::fp32, exact.lse) + exact.score_rounding;
  lse_excess_ = std::max(lse_excess_, std::fabs(*lse - exact.lse) / bound);
}

double Judge::tolerance() const {
  if (dtype_ == DType::fp32) return 1e-5 * (1 + largest_);
  return 2 * unfused_error_ + ulp(dtype_, largest_ + 0.3);
}

std::vector<RowIndex> sample_rows(const TensorView& tensor, std::int64_t max_rows) {
  const std::int64_t batch = tensor.shape[0], seq = tensor.shape[1], heads = tensor.shape[2];
  const std::int64_t total = batch * seq * heads;
  const std::int64_t count = std::min(total, std::max<std::int64_t>(max_rows, 1));
  // A stride coprime with the number of rows meets no row twice and mixes batches, heads and
  // positions.
  std::int64_t step = std::max<std::int64_t>(1, total / std::max<std::int64_t>(count, 1));
  while (std::gcd(step, total) > 1) ++step;
  std::vector<RowIndex> rows;
  for (std::int64_t i = 0; i < count; ++i) {
    // From the last row backwards, so that the ragged end is among them.
    const std::int64_t index = total - 1 - i * step % total;
    rows.push_back({index / seq / heads, index / seq % heads, index % seq});
  }
  return rows;
}

OutputRow read_output(const Arguments& args, const RowIndex& row) {
  OutputRow out;
  out.o = read_row(args.o, row.b, row.q, row.h);
  if (!args.lse) return out;
  const TensorView& l = *args.lse;
  out.lse = static_cast<const float*>(
      l.data)[row.b * l.stride[0] + row.h * l.stride[1] + row.q * l.stride[2]];
  return out;
}

std::vector<std::string> non_finite_inputs(const Arguments& args) {
  const auto finite = [](const TensorView& tensor) {
    for (std::int64_t b = 0; b < tensor.shape[0]; ++b)
      for (std::int64_t s = 0; s < tensor.shape[1]; ++s)
        for (std::int64_t h = 0; h < tensor.shape[2]; ++h)
          for (const double value : read_row(tensor, b, s, h))
            if (!std::isfinite(value)) return false;
    return true;
  };
  std::vector<std::string> names;
  if (!finite(args.q)) names.emplace_back("q");
  if (!finite(args.k)) names.emplace_back("k");
  if (!finite(args.v)) names.emplace_back("v");
  if (args.d_o && !finite(*args.d_o)) names.emplace_back("d_o");
  return names;
}

Judge judge(const Config& config, const Problem& problem, const Arguments& args,
            std::int64_t max_rows) {
  Judge judge(problem.dtype);
  for (const RowIndex& row : sample_rows(args, max_rows)) {
    const ReferenceRow exact = reference_row(config, problem, args, row.b, row.h, row.q);
    const ReferenceRow unfused =
        problem.dtype == DType::fp32
            ? exact
            : reference_row(config, problem, args, row.b, row.h, row.q, problem.dtype);
    const OutputRow got = read_output(args, row);
    judge.add(exact, unfused, got.o, got.lse);
  }
  return judge;
}

}  // namespace flashwright
