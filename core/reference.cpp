#include "core/reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/block_mask.hpp"
#include "core/dtype.hpp"
#include "core/mask.hpp"
#include "core/philox.hpp"
#include "core/score.hpp"

namespace flashwright {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One row of a tensor as doubles.
std::vector<double> read_row(const TensorView& tensor, std::int64_t b, std::int64_t s,
                             std::int64_t h) {
  const std::int64_t bytes = info(tensor.dtype).bytes;
  const char* const row =
      static_cast<const char*>(tensor.data) +
      (b * tensor.stride[0] + s * tensor.stride[1] + h * tensor.stride[2]) * bytes;
  std::vector<double> out(static_cast<std::size_t>(tensor.shape[3]));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = to_float(tensor.dtype, row + static_cast<std::int64_t>(i) * bytes);
  return out;
}

class VisibleKeys {
 public:
  VisibleKeys(const Config& config, const Problem& problem, const Arguments& args, std::int64_t b,
              std::int64_t h, std::int64_t q)
      : config_(config), mask_(info(problem.mask)), args_(args), b_(b), h_(h), q_(q) {
    position_ =
        static_cast<double>(q + args.q_position.value_or(args.k.shape[1] - args.q.shape[1]));
  }

  bool operator()(std::int64_t kv) const {
    if (mask_.lists) return visible(*args_.blocks, b_, h_, q_, kv);
    return evaluate(*mask_.keep, [&](std::string_view name) -> double {
             if (name == "q") return position_;
             if (name == "kv") return static_cast<double>(kv);
             const std::int64_t side =
                 name == "window_left" ? config_.mask.left : config_.mask.right;
             return static_cast<double>(side < 0 ? kUnboundedWindow : side);
           }) != 0;
  }

 private:
  const Config& config_;
  const MaskInfo& mask_;
  const Arguments& args_;
  std::int64_t b_, h_, q_;
  double position_;
};

double rounded_to(std::optional<DType> dtype, double value) {
  return dtype ? round_to(*dtype, value) : value;
}

// The changes that a score goes through, for one row.
class ScoreChange {
 public:
  ScoreChange(const Config& config, const Problem& problem, const Arguments& args, std::int64_t b,
              std::int64_t h, std::int64_t q, std::optional<DType> rounded)
      : expr_(score_expr(problem)),
        capped_(score_expr(problem.softcap, false)),
        softcap_(config.softcap.value_or(0)),
        rounded_(rounded),
        position_(
            static_cast<double>(q + args.q_position.value_or(args.k.shape[1] - args.q.shape[1]))) {
    if (!problem.alibi) return;
    const TensorView& slopes = *args.alibi_slopes;
    const std::int64_t place =
        slopes.ndim == 2 ? b * slopes.stride[0] + h * slopes.stride[1] : h * slopes.stride[0];
    slope_ = static_cast<const float*>(slopes.data)[place];
  }

  double operator()(double score, std::int64_t kv) const {
    return value_of(*expr_, score, kv, rounded_);
  }
  double capped(double score) const { return value_of(*capped_, score, 0, std::nullopt); }
  double added(std::int64_t kv) const { return slope_ * (static_cast<double>(kv) - position_); }

 private:
  double value_of(const Expr& expr, double score, std::int64_t kv,
                  std::optional<DType> rounded) const {
    const auto lookup = [&](std::string_view name) {
      if (name == "score") return score;
      if (name == "softcap") return softcap_;
      if (name == "slope") return slope_;
      return name == "q" ? position_ : static_cast<double>(kv);
    };
    if (!rounded) return evaluate(expr, lookup);
    // Each operation on scores is stored; what is added to them is not.
    return evaluate(expr, lookup, [&](const Expr& part, double value) {
      const std::vector<std::string> names = variables(part);
      const bool stored = std::find(names.begin(), names.end(), "score") != names.end();
      return stored ? round_to(*rounded, value) : value;
    });
  }

  ExprPtr expr_, capped_;
  double softcap_, slope_ = 0;
  std::optional<DType> rounded_;
  double position_;
};

// The scores of a row, -infinity where a key is hidden.
struct Scores {
  std::vector<double> values, magnitudes;  // magnitudes: of the largest partial sum, at most
  std::vector<double> capped;              // behind the softcap, before what is added; or empty
  double largest = -kInfinity;
  bool broken = false;  // a visible score is NaN or +infinity
};

Scores scores_of(const Config& config, const Problem& problem, const Arguments& args,
                 std::int64_t b, std::int64_t h, std::int64_t q, std::optional<DType> rounded) {
  const std::int64_t seq_kv = args.k.shape[1];
  const std::int64_t head_kv = args.k.shape[2] == 0 ? 0 : h / (args.q.shape[2] / args.k.shape[2]);
  const double scale = softmax_scale(config);
  const VisibleKeys sees(config, problem, args, b, h, q);
  const std::vector<double> query = read_row(args.q, b, q, h);
  const ScoreChange change(config, problem, args, b, h, q, rounded);
  Scores out;
  if (problem.softcap) out.capped.resize(static_cast<std::size_t>(seq_kv));
  out.values.assign(static_cast<std::size_t>(seq_kv), -kInfinity);
  out.magnitudes.resize(out.values.size());
  for (std::int64_t j = 0; j < seq_kv; ++j) {
    if (!sees(j)) continue;
    const std::vector<double> key = read_row(args.k, b, j, head_kv);
    double dot = 0, magnitude = 0;
    for (std::size_t i = 0; i < query.size(); ++i) {
      dot += query[i] * key[i];
      magnitude += std::fabs(query[i] * key[i]);
    }
    const double plain = rounded_to(rounded, rounded_to(rounded, dot) * scale);
    const double score = change(plain, j);
    out.values[static_cast<std::size_t>(j)] = score;
    out.magnitudes[static_cast<std::size_t>(j)] =
        magnitude * std::fabs(scale) + std::fabs(change.added(j));
    if (problem.softcap) out.capped[static_cast<std::size_t>(j)] = change.capped(plain);
    out.largest = std::max(out.largest, score);
    out.broken = out.broken || std::isnan(score) || score == kInfinity;
  }
  return out;
}

// How far rounding may move the scores that the LSE rests on: an error of a score moves it by the share of its weight.
double score_rounding(const Problem& problem, const Scores& scores, double lse) {
  double magnitude = 0, capped = 0;
  for (std::size_t j = 0; j < scores.values.size(); ++j) {
    if (scores.values[j] == -kInfinity) continue;
    const double weight = std::exp(scores.values[j] - lse);
    magnitude += weight * scores.magnitudes[j];
    if (problem.softcap) capped += weight * std::fabs(scores.capped[j]);
  }
  const bool stored_scores =
      problem.algorithm == Algorithm::unfused && problem.dtype != DType::fp32;
  // A hyperbolic tangent has a relative error of 2^-11 in kernels for 16 bits, of a few ulp in others.
  const double cap_error =
      problem.dtype == DType::fp32 ? 4 * ulp(DType::fp32, capped) : 0x1p-11 * capped;
  return 4 * ulp(DType::fp32, magnitude) + cap_error +
         (stored_scores ? ulp(problem.dtype, magnitude) / 2 : 0);
}

}  // namespace

ReferenceRow reference_row(const Config& config, const Problem& problem, const Arguments& args,
                           std::int64_t b, std::int64_t h, std::int64_t q,
                           std::optional<DType> rounded) {
  const Scores scores = scores_of(config, problem, args, b, h, q, rounded);
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
  for (const double score : scores.values) row_sum += std::exp(score - scores.largest);
  row.lse = scores.largest + std::log(row_sum);
  row.score_rounding = score_rounding(problem, scores, row.lse);

  const std::uint32_t threshold = static_cast<std::uint32_t>(drop_threshold(config.dropout));
  const double keep_scale = 256.0 / (256.0 - threshold);
  const std::uint64_t key = args.rng_state != nullptr
                                ? dropout_key(args.rng_state[0], args.rng_state[1])
                                : dropout_key(args.seed, args.offset);
  const auto head = static_cast<std::uint32_t>(b * args.q.shape[2] + h);
  std::uint32_t kept = 0;
  const std::int64_t seq_kv = args.k.shape[1], head_kv = h / (args.q.shape[2] / args.k.shape[2]);
  for (std::int64_t j = 0; j < seq_kv; ++j) {
    const double score = scores.values[static_cast<std::size_t>(j)];
    double weight = rounded_to(rounded, std::exp(score - scores.largest) / row_sum);
    if (threshold != 0) {
      if (j % 32 == 0)
        kept = keep_word(key, head, static_cast<std::uint32_t>(q),
                         static_cast<std::uint32_t>(j / 32), threshold);
      weight = (kept >> (j % 32) & 1u) != 0 ? rounded_to(rounded, weight * keep_scale) : 0;
    }
    if (weight == 0) continue;  // an invisible value must not turn the row into NaN
    const std::vector<double> value = read_row(args.v, b, j, head_kv);
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

std::vector<RowIndex> sample_rows(const Arguments& args, std::int64_t max_rows) {
  const std::int64_t batch = args.q.shape[0], seq = args.q.shape[1], heads = args.q.shape[2];
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
