// What the references of both directions know about one query row: which keys it sees, what becomes of its
// scores, and which weights dropout keeps. All in double precision; tensors lie in host memory.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "core/arguments.hpp"
#include "core/mask.hpp"

namespace flashwright {

// One row of a tensor as doubles.
std::vector<double> read_row(const TensorView& tensor, std::int64_t b, std::int64_t s,
                             std::int64_t h);

double rounded_to(std::optional<DType> dtype, double value);

class VisibleKeys {
 public:
  VisibleKeys(const Config& config, const Problem& problem, const Arguments& args, std::int64_t b,
              std::int64_t h, std::int64_t q);
  bool operator()(std::int64_t kv) const;

 private:
  const Config& config_;
  const MaskInfo& mask_;
  const Arguments& args_;
  std::int64_t b_, h_, q_;
  double position_;
};

// The changes that a score goes through, for one row. With `rounded` each operation is stored in that type.
class ScoreChange {
 public:
  ScoreChange(const Config& config, const Problem& problem, const Arguments& args, std::int64_t b,
              std::int64_t h, std::int64_t q, std::optional<DType> rounded);

  double operator()(double score, std::int64_t kv) const;
  double capped(double score) const;  // behind the softcap, before what is added
  double added(std::int64_t kv) const { return slope_ * (static_cast<double>(kv) - position_); }
  // The derivative of the changed score with respect to `score`.
  double derivative(double score, std::int64_t kv) const;

 private:
  double value_of(const Expr& expr, double score, std::int64_t kv,
                  std::optional<DType> rounded) const;

  ExprPtr expr_, capped_, derivative_;
  double softcap_, slope_ = 0;
  std::optional<DType> rounded_;
  double position_;
};

// One query with what its scores need.
class QueryRow {
 public:
  QueryRow(const Config& config, const Problem& problem, const Arguments& args, std::int64_t b,
           std::int64_t h, std::int64_t q, std::optional<DType> rounded);

  struct Score {
    double value = -std::numeric_limits<double>::infinity();  // of a hidden key
    double magnitude = 0;                                     // of the largest partial sum, at most
    double capped = 0;  // behind the softcap, before what is added
    double plain = 0;   // before any change
    bool visible = false;
  };
  Score score(std::int64_t kv) const;
  double derivative(const Score& score, std::int64_t kv) const {
    return change_.derivative(score.plain, kv);
  }
  // How far rounding in a kernel may move a score that it computes; `magnitude` and `capped` may be sums.
  static double rounding(const Problem& problem, double magnitude, double capped);

  // What a weight is multiplied by: 0 when it is dropped, 1 without dropout.
  double dropout_factor(std::int64_t kv) const;

  const std::vector<double>& values() const { return values_; }
  std::int64_t head_kv() const { return head_kv_; }

 private:
  const Arguments& args_;
  bool softcap_;
  std::int64_t b_, q_, head_kv_;
  std::vector<double> values_;
  double scale_;
  VisibleKeys sees_;
  ScoreChange change_;
  std::optional<DType> rounded_;
  std::uint32_t threshold_, head_;
  std::uint64_t key_;
};

}  // namespace flashwright
