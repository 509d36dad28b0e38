#include "core/reference_rows.hpp"

#include <algorithm>
#include <cmath>

#include "core/block_mask.hpp"
#include "core/dtype.hpp"
#include "core/philox.hpp"
#include "core/score.hpp"

namespace flashwright {
namespace {

double position_of(const Arguments& args, std::int64_t q) {
  return static_cast<double>(q + args.q_position.value_or(args.k.shape[1] - args.q.shape[1]));
}

}  // namespace

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

double rounded_to(std::optional<DType> dtype, double value) {
  return dtype ? round_to(*dtype, value) : value;
}

VisibleKeys::VisibleKeys(const Config& config, const Problem& problem, const Arguments& args,
                         std::int64_t b, std::int64_t h, std::int64_t q)
    : config_(config),
      mask_(info(problem.mask)),
      args_(args),
      b_(b),
      h_(h),
      q_(q),
      position_(position_of(args, q)) {}

bool VisibleKeys::operator()(std::int64_t kv) const {
  if (mask_.lists) return visible(*args_.blocks, b_, h_, q_, kv);
  return evaluate(*mask_.keep, [&](std::string_view name) -> double {
           if (name == "q") return position_;
           if (name == "kv") return static_cast<double>(kv);
           const std::int64_t side = name == "window_left" ? config_.mask.left : config_.mask.right;
           return static_cast<double>(side < 0 ? kUnboundedWindow : side);
         }) != 0;
}

ScoreChange::ScoreChange(const Config& config, const Problem& problem, const Arguments& args,
                         std::int64_t b, std::int64_t h, std::int64_t q,
                         std::optional<DType> rounded)
    : expr_(score_expr(problem)),
      capped_(score_expr(problem.softcap, false)),
      derivative_(score_derivative(problem)),
      softcap_(config.softcap.value_or(0)),
      rounded_(rounded),
      position_(position_of(args, q)) {
  if (!problem.alibi) return;
  const TensorView& slopes = *args.alibi_slopes;
  const std::int64_t place =
      slopes.ndim == 2 ? b * slopes.stride[0] + h * slopes.stride[1] : h * slopes.stride[0];
  slope_ = static_cast<const float*>(slopes.data)[place];
}

double ScoreChange::operator()(double score, std::int64_t kv) const {
  return value_of(*expr_, score, kv, rounded_);
}
double ScoreChange::capped(double score) const {
  return value_of(*capped_, score, 0, std::nullopt);
}
double ScoreChange::derivative(double score, std::int64_t kv) const {
  return value_of(*derivative_, score, kv, std::nullopt);
}

double ScoreChange::value_of(const Expr& expr, double score, std::int64_t kv,
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

QueryRow::QueryRow(const Config& config, const Problem& problem, const Arguments& args,
                   std::int64_t b, std::int64_t h, std::int64_t q, std::optional<DType> rounded)
    : args_(args),
      softcap_(problem.softcap),
      b_(b),
      q_(q),
      head_kv_(args.k.shape[2] == 0 ? 0 : h / (args.q.shape[2] / args.k.shape[2])),
      values_(read_row(args.q, b, q, h)),
      scale_(softmax_scale(config)),
      sees_(config, problem, args, b, h, q),
      change_(config, problem, args, b, h, q, rounded),
      rounded_(rounded),
      threshold_(static_cast<std::uint32_t>(drop_threshold(config.dropout))),
      head_(static_cast<std::uint32_t>(b * args.q.shape[2] + h)),
      key_(args.rng_state != nullptr ? dropout_key(args.rng_state[0], args.rng_state[1])
                                     : dropout_key(args.seed, args.offset)) {}

QueryRow::Score QueryRow::score(std::int64_t kv) const {
  Score out;
  if (!sees_(kv)) return out;
  out.visible = true;
  const std::vector<double> key = read_row(args_.k, b_, kv, head_kv_);
  double dot = 0, magnitude = 0;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    dot += values_[i] * key[i];
    magnitude += std::fabs(values_[i] * key[i]);
  }
  out.plain = rounded_to(rounded_, rounded_to(rounded_, dot) * scale_);
  out.value = change_(out.plain, kv);
  out.magnitude = magnitude * std::fabs(scale_) + std::fabs(change_.added(kv));
  if (softcap_) out.capped = change_.capped(out.plain);
  return out;
}

double QueryRow::rounding(const Problem& problem, double magnitude, double capped) {
  const bool stored_scores =
      problem.algorithm == Algorithm::unfused && problem.dtype != DType::fp32;
  // A hyperbolic tangent has a relative error of 2^-11 in kernels for 16 bits, of a few ulp in others.
  const double cap_error =
      problem.dtype == DType::fp32 ? 4 * ulp(DType::fp32, capped) : 0x1p-11 * capped;
  return 4 * ulp(DType::fp32, magnitude) + cap_error +
         (stored_scores ? ulp(problem.dtype, magnitude) / 2 : 0);
}

double QueryRow::dropout_factor(std::int64_t kv) const {
  if (threshold_ == 0) return 1;
  const std::uint32_t kept = keep_word(key_, head_, static_cast<std::uint32_t>(q_),
                                       static_cast<std::uint32_t>(kv / 32), threshold_);
  return (kept >> (kv % 32) & 1u) != 0 ? 256.0 / (256.0 - threshold_) : 0;
}

}  // namespace flashwright
