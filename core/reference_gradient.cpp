#include "core/reference_gradient.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/dtype.hpp"
#include "core/reference.hpp"

namespace flashwright {
namespace {

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// row += factor * values, and the share of rounding that comes with the factor.
void add_scaled(GradientRow& row, std::vector<double>& rounding, double factor, double error,
                const std::vector<double>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    row.values[i] += factor * values[i];
    rounding[i] += error * std::fabs(values[i]);
  }
}

double largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

double number_at(const TensorView& tensor, std::int64_t b, std::int64_t h, std::int64_t q) {
  return static_cast<const float*>(
      tensor.data)[b * tensor.stride[0] + h * tensor.stride[1] + q * tensor.stride[2]];
}

}  // namespace

struct GradientReference::Pair {
  double weight = 0;     // after dropout: what dO adds to dV with
  double d_score = 0;    // gradient of the plain product of query and key, softmax_scale included
  double error = 0;      // relative, of the undropped weight, from the rounding of its score
  double magnitude = 0;  // of d_score before differences cancel
  bool visible = false;
};

GradientReference::GradientReference(const Config& config, const Problem& problem,
                                     const Arguments& arguments, RowStatistics statistics,
                                     std::optional<DType> rounded)
    : config_(config),
      problem_(problem),
      args_(arguments),
      source_(statistics),
      rounded_(rounded) {}

GradientReference::Statistics GradientReference::compute(const QueryRow& query,
                                                         const std::vector<double>& d_o,
                                                         std::int64_t b) const {
  const std::int64_t seq_kv = args_.k.shape[1];
  std::vector<double> scores;
  double top = -std::numeric_limits<double>::infinity(), sum = 0, delta = 0;
  for (std::int64_t j = 0; j < seq_kv; ++j) {
    scores.push_back(query.score(j).value);
    top = std::isnan(scores.back()) ? scores.back() : std::max(top, scores.back());
    if (std::isnan(top)) return {top, top};
  }
  if (!std::isfinite(top)) return {top > 0 ? std::nan("") : top, 0};
  for (const double score : scores) sum += std::exp(score - top);
  for (std::int64_t j = 0; j < seq_kv; ++j) {
    double weight = rounded_to(rounded_, std::exp(scores[static_cast<std::size_t>(j)] - top) / sum);
    if (config_.dropout > 0) weight = rounded_to(rounded_, weight * query.dropout_factor(j));
    if (weight == 0) continue;
    delta += weight * rounded_to(rounded_, dot(d_o, read_row(args_.v, b, j, query.head_kv())));
  }
  return {top + std::log(sum), delta};
}

GradientReference::Statistics GradientReference::statistics_of(const QueryRow& query,
                                                               const std::vector<double>& d_o,
                                                               std::int64_t b, std::int64_t h,
                                                               std::int64_t q) {
  const auto known = known_.find({b, h, q});
  if (known != known_.end()) return known->second;
  Statistics row =
      source_ == RowStatistics::given
          ? Statistics{number_at(*args_.lse, b, h, q), dot(d_o, read_row(args_.o, b, q, h))}
          : compute(query, d_o, b);
  if (args_.d_lse) row.delta -= number_at(*args_.d_lse, b, h, q);
  return known_[{b, h, q}] = row;
}

GradientReference::Pair GradientReference::pair(const QueryRow& query,
                                                const std::vector<double>& d_o,
                                                const Statistics& row, std::int64_t b,
                                                std::int64_t kv) const {
  Pair out;
  const QueryRow::Score score = query.score(kv);
  if (!score.visible || row.lse == -std::numeric_limits<double>::infinity()) return out;
  out.visible = true;
  const double weight = rounded_to(rounded_, std::exp(score.value - row.lse));
  const double factor = query.dropout_factor(kv);
  out.weight = factor == 1 ? weight : rounded_to(rounded_, weight * factor);
  out.error = QueryRow::rounding(problem_, score.magnitude, std::fabs(score.capped)) +
              2 * ulp(DType::fp32, row.lse);
  const double d_weight =
      factor == 0
          ? 0
          : factor * rounded_to(rounded_, dot(d_o, read_row(args_.v, b, kv, query.head_kv())));
  const double scale = softmax_scale(config_), slope = query.derivative(score, kv);
  const double d_changed = rounded_to(rounded_, weight * (d_weight - row.delta));
  out.d_score = rounded_to(rounded_, d_changed * slope) * scale;
  out.magnitude = weight * (std::fabs(d_weight) + std::fabs(row.delta)) * std::fabs(slope * scale);
  return out;
}

GradientRow GradientReference::dq(std::int64_t b, std::int64_t h, std::int64_t q) {
  const QueryRow query(config_, problem_, args_, b, h, q, rounded_);
  const std::vector<double> d_o = read_row(*args_.d_o, b, q, h);
  const Statistics row = statistics_of(query, d_o, b, h, q);
  GradientRow out;
  out.values.assign(static_cast<std::size_t>(problem_.head_dim), 0.0);
  std::vector<double> rounding(out.values.size());
  for (std::int64_t j = 0; j < args_.k.shape[1]; ++j) {
    const Pair part = pair(query, d_o, row, b, j);
    if (!part.visible) continue;
    add_scaled(out, rounding, part.d_score, part.magnitude * part.error,
               read_row(args_.k, b, j, query.head_kv()));
  }
  for (double& value : out.values) value = rounded_to(rounded_, value);
  out.rounding = largest(rounding);
  return out;
}

std::vector<GradientReference::KeyRows> GradientReference::keys(
    std::int64_t b, std::int64_t head_kv, const std::vector<std::int64_t>& keys) {
  std::vector<KeyRows> out(keys.size());
  std::vector<std::vector<double>> dk_rounding(keys.size()), dv_rounding(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    out[i].dk.values.assign(static_cast<std::size_t>(problem_.head_dim), 0.0);
    out[i].dv.values.assign(static_cast<std::size_t>(problem_.head_dim_v), 0.0);
    dk_rounding[i].resize(out[i].dk.values.size());
    dv_rounding[i].resize(out[i].dv.values.size());
  }
  const std::int64_t group = args_.q.shape[2] / std::max<std::int64_t>(args_.k.shape[2], 1);
  for (std::int64_t h = head_kv * group; h < (head_kv + 1) * group; ++h) {
    for (std::int64_t q = 0; q < args_.q.shape[1]; ++q) {
      const QueryRow query(config_, problem_, args_, b, h, q, rounded_);
      const std::vector<double> d_o = read_row(*args_.d_o, b, q, h);
      const Statistics row = statistics_of(query, d_o, b, h, q);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const Pair part = pair(query, d_o, row, b, keys[i]);
        if (!part.visible) continue;
        add_scaled(out[i].dk, dk_rounding[i], part.d_score, part.magnitude * part.error,
                   query.values());
        if (part.weight != 0)
          add_scaled(out[i].dv, dv_rounding[i], part.weight, part.weight * part.error, d_o);
      }
    }
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (double& value : out[i].dk.values) value = rounded_to(rounded_, value);
    for (double& value : out[i].dv.values) value = rounded_to(rounded_, value);
    out[i].dk.rounding = largest(dk_rounding[i]);
    out[i].dv.rounding = largest(dv_rounding[i]);
  }
  return out;
}

void GradientJudge::add(const GradientRow& exact, const GradientRow& unfused,
                        const std::vector<double>& given) {
  ++rows_;
  rounding_ = std::max(rounding_, std::isfinite(exact.rounding) ? exact.rounding : 0);
  for (std::size_t i = 0; i < exact.values.size(); ++i) {
    const double value = exact.values[i];
    finite_match_ = finite_match_ && std::isfinite(value) == std::isfinite(given[i]);
    if (!std::isfinite(value)) continue;
    error_ = std::max(error_, std::fabs(given[i] - value));
    largest_ = std::max(largest_, std::fabs(value));
    // An unfused computation that overflows is no yardstick.
    if (std::isfinite(unfused.values[i]))
      unfused_error_ = std::max(unfused_error_, std::fabs(unfused.values[i] - value));
  }
}

double GradientJudge::tolerance() const {
  if (dtype_ == DType::fp32) return 1e-5 * (1 + largest_) + rounding_;
  return 3 * unfused_error_ + ulp(dtype_, largest_ + 0.3) + rounding_;
}

GradientSample::GradientSample(const Config& config, const Problem& problem, const Arguments& args,
                               RowStatistics statistics, std::int64_t max_rows)
    : dtype_(problem.dtype) {
  GradientReference exact(config, problem, args, statistics);
  GradientReference unfused(config, problem, args, statistics, problem.dtype);
  const bool same = problem.dtype == DType::fp32;
  if (args.dq)
    for (const RowIndex& row : sample_rows(args.q, max_rows)) {
      GradientRow right = exact.dq(row.b, row.h, row.q);
      GradientRow stored = same ? right : unfused.dq(row.b, row.h, row.q);
      dq_.push_back({row.b, row.h, row.q, std::move(right), std::move(stored)});
    }
  if (!args.dk && !args.dv) return;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int64_t>> by_head;
  for (const RowIndex& row : sample_rows(args.k, max_rows))
    by_head[{row.b, row.h}].push_back(row.q);
  for (const auto& [head, keys] : by_head) {
    const auto right = exact.keys(head.first, head.second, keys);
    const auto stored = same ? right : unfused.keys(head.first, head.second, keys);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      dk_.push_back({head.first, head.second, keys[i], right[i].dk, stored[i].dk});
      dv_.push_back({head.first, head.second, keys[i], right[i].dv, stored[i].dv});
    }
  }
}

std::vector<GradientSample::Verdict> GradientSample::verdicts(const Arguments& args) const {
  std::vector<Verdict> out;
  const auto judge = [&](const char* name, const std::optional<TensorView>& tensor,
                         const std::vector<Row>& rows) {
    if (!tensor) return;
    out.push_back({name, GradientJudge(dtype_)});
    for (const Row& row : rows)
      out.back().judge.add(row.exact, row.unfused, read_row(*tensor, row.b, row.s, row.h));
  };
  judge("dq", args.dq, dq_);
  judge("dk", args.dk, dk_);
  judge("dv", args.dv, dv_);
  return out;
}

std::string fault_of(const std::vector<GradientSample::Verdict>& verdicts) {
  for (const auto& [name, judge] : verdicts)
    if (!judge.passed())
      return fmt::format(
          "{}: error {:.3g}, allowed {:.3g}; {}", name, judge.error(), judge.tolerance(),
          judge.finite() ? "finite where it should be" : "not finite where it should be");
  return {};
}

}  // namespace flashwright
