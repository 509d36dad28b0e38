// Gradients for chosen rows in double precision: the judge of the backward pass, as reference.hpp is of the forward
// one. With P the softmax, D the dropout factors, S' the changed scores and S those before:
//   dV = (P D)^T dO    dP = D (dO V^T)    dS = P (dP - delta) S'/S    dQ = scale dS K    dK = scale dS^T Q
//   delta = row sum of dO * O, less the gradient of the LSE
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/reference_rows.hpp"

namespace flashwright {

// One row of a gradient, and how far rounding of scores in fp32 may move an element of it.
struct GradientRow {
  std::vector<double> values;
  double rounding = 0;
};

// Where LSE and delta of a query come from.
enum class RowStatistics : std::uint8_t {
  exact,  // computed here from q, k and v
  given,  // from the lse and o of the arguments: what the kernel reads, so that few rows can be judged cheaply
};

class GradientReference {
 public:
  // Tensors must lie in host memory and outlive this; the gradients of the arguments are not looked at. With
  // `rounded` every stored intermediate is rounded to that type, as an unfused computation would.
  GradientReference(const Config& config, const Problem& problem, const Arguments& arguments,
                    RowStatistics statistics, std::optional<DType> rounded = std::nullopt);

  // Of query `q` of head `h`. A query that sees no key gives zeros; NaN in a visible input stays NaN.
  GradientRow dq(std::int64_t b, std::int64_t h, std::int64_t q);

  // Of some keys of a key head, summed over the query heads that share it: dk and dv for each.
  struct KeyRows {
    GradientRow dk, dv;
  };
  std::vector<KeyRows> keys(std::int64_t b, std::int64_t head_kv,
                            const std::vector<std::int64_t>& keys);

 private:
  struct Statistics {
    double lse, delta;
  };
  struct Pair;  // what one query and one key contribute
  Statistics statistics_of(const QueryRow& query, const std::vector<double>& d_o, std::int64_t b,
                           std::int64_t h, std::int64_t q);
  Statistics compute(const QueryRow& query, const std::vector<double>& d_o, std::int64_t b) const;
  Pair pair(const QueryRow& query, const std::vector<double>& d_o, const Statistics& row,
            std::int64_t b, std::int64_t kv) const;

  const Config& config_;
  const Problem& problem_;
  const Arguments& args_;
  RowStatistics source_;
  std::optional<DType> rounded_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, Statistics> known_;
};

// How far one gradient may be from the reference, over a set of rows: the rule of Judge with
//   16 bit  3 * (error of the unfused computation in the same precision) + ulp(max|ref| + 0.3)
//   fp32    1e-5 * (1 + max|ref|)
// and what rounding of the scores may cost.
class GradientJudge {
 public:
  explicit GradientJudge(DType dtype) : dtype_(dtype) {}
  void add(const GradientRow& exact, const GradientRow& unfused, const std::vector<double>& given);

  double error() const { return error_; }
  double tolerance() const;
  bool finite() const { return finite_match_; }
  std::int64_t rows() const { return rows_; }
  bool passed() const { return finite_match_ && error_ <= tolerance(); }

 private:
  DType dtype_;
  double error_ = 0, unfused_error_ = 0, largest_ = 0, rounding_ = 0;
  bool finite_match_ = true;
  std::int64_t rows_ = 0;
};

// The rows to judge, computed once and compared with many results: up to `max_rows` of dq, and of dk and dv together.
class GradientSample {
 public:
  GradientSample(const Config& config, const Problem& problem, const Arguments& arguments,
                 RowStatistics statistics, std::int64_t max_rows);

  // One verdict for each gradient that the arguments have.
  struct Verdict {
    const char* name;  // "dq", "dk", "dv"
    GradientJudge judge;
  };
  std::vector<Verdict> verdicts(const Arguments& arguments) const;

 private:
  struct Row {
    std::int64_t b, h, s;
    GradientRow exact, unfused;
  };
  DType dtype_;
  std::vector<Row> dq_, dk_, dv_;
};

// "" when all verdicts passed; otherwise what is wrong with the first that did not.
std::string fault_of(const std::vector<GradientSample::Verdict>& verdicts);

}  // namespace flashwright
