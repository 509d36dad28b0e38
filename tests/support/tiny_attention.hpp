// Attention straight from its definition, for tests: no tensors, no strides, no table of masks, nothing of the
// library. Sums in the order of the keys, in double precision.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace flashwright::testing {

struct TinyAttention {
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seq_q = 0, seq_kv = 0, head_dim = 0,
               head_dim_v = 0;
  double scale = 1;
  using Element =
      std::function<double(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d)>;
  Element q, k, v;
  // What becomes of a score; empty: it stays.
  std::function<double(double score, std::int64_t b, std::int64_t h, std::int64_t i,
                       std::int64_t j)>
      change;
  // Whether query i of head h sees key j, and by what the weight is multiplied; empty: always, and 1.
  std::function<bool(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j)> sees;
  std::function<double(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j)> factor;
};

struct TinyRow {
  std::vector<double> o;
  double lse = 0;
};
TinyRow tiny_row(const TinyAttention& what, std::int64_t b, std::int64_t h, std::int64_t i);

// The online form: keys come tile by tile, and what was summed so far is rescaled when the maximum grows.
class OnlineSoftmax {
 public:
  explicit OnlineSoftmax(std::size_t head_dim_v) : sum_of_values_(head_dim_v) {}
  // One tile: its scores and, for each of them, a row of values.
  void add(const std::vector<double>& scores, const std::vector<std::vector<double>>& values);
  double max() const { return max_; }
  double sum() const { return sum_; }
  TinyRow result() const;

 private:
  double max_ = -1.0 / 0.0, sum_ = 0;
  std::vector<double> sum_of_values_;
};

}  // namespace flashwright::testing
