// The traffic between the scratch of a worker and what lies beyond it. A task keeps a tile of queries, forward with
// its outputs, and walks over keys and values.
#include "core/dtype.hpp"
#include "core/expr.hpp"
#include "core/expr_parse.hpp"
#include "core/traffic.hpp"
#include "generator/cpu/backward_ir.hpp"
#include "generator/cpu/family_cpu.hpp"

namespace flashwright {
namespace {

double parts_of(const Problem& problem, const Shape& shape, const Tiling& tiling) {
  const auto value = [&](std::string_view name) {
    return static_cast<double>(name == "batch"      ? shape.batch
                               : name == "heads_q"  ? shape.heads_q
                               : name == "heads_kv" ? shape.heads_kv
                                                    : shape.seq_q);
  };
  return evaluate(*parse_expr(backward_parts_rule(problem, tiling)), value);
}

// Of one key head with the query heads that share it: `rows` queries.
double forward_bytes(const Problem& problem, const Shape& shape, const Tiling& t,
                     std::int64_t rows) {
  const double elements = info(problem.dtype).bytes * (t.head_dim + t.head_dim_v);
  constexpr int kSingleKeys = 1;  // no key behind the last visible one is read
  const double met = keys_met(problem, shape, rows, t.tile_q, kSingleKeys);
  return (static_cast<double>(rows) + met) * elements + 4 * static_cast<double>(rows);
}

double backward_bytes(const Problem& problem, const Shape& shape, const Tiling& t,
                      std::int64_t rows) {
  const double queries = static_cast<double>(rows), keys = static_cast<double>(shape.seq_kv);
  const double element = info(problem.dtype).bytes;
  const double elements = element * (t.head_dim + t.head_dim_v);
  const double sums = 4.0 * (t.width + t.width_v);  // of one key, for its two gradients; its copies
  // q, o, d_o and the LSE in, dq out.
  double bytes = queries * (element * (2 * t.head_dim + 2 * t.head_dim_v) + 4);
  bytes += keys * (elements + sums);
  // Each key that several tiles of queries meet in turn: its copies, and its sums in and out.
  const double met = keys_met(problem, shape, rows, t.tile_q * t.query_tiles, 1);
  bytes += met * (sums + 2 * sums);
  // Sums are cleared, then added up into dk and dv.
  return bytes + keys * (2 * parts_of(problem, shape, t) * sums + elements);
}

}  // namespace

std::optional<double> traffic_of(const Problem& problem, const Shape& shape, const Tiling& tiling) {
  if (!counts_traffic(problem.mask)) return std::nullopt;
  if (shape.heads_kv == 0) return 0;
  const std::int64_t rows = shape.heads_q / shape.heads_kv * shape.seq_q;
  const double one_head = problem.direction == Direction::backward
                              ? backward_bytes(problem, shape, tiling, rows)
                              : forward_bytes(problem, shape, tiling, rows);
  return static_cast<double>(shape.batch * shape.heads_kv) * one_head;
}

}  // namespace flashwright
