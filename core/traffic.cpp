#include "core/traffic.hpp"

#include <algorithm>

#include "core/dtype.hpp"

namespace flashwright {
namespace {

constexpr double kLseBytes = 4;

// Elements of a tensor with the length and the heads of the queries, and of the keys, by head dim.
struct Elements {
  double q, o;  // as dq; as d_o
  double k, v;  // as dk; as dv
};
Elements elements_of(const Problem& problem, const Shape& shape) {
  const double queries = static_cast<double>(shape.batch * shape.heads_q * shape.seq_q);
  const double keys = static_cast<double>(shape.batch * shape.heads_kv * shape.seq_kv);
  return {queries * problem.head_dim, queries * problem.head_dim_v, keys * problem.head_dim,
          keys * problem.head_dim_v};
}

double lse_bytes(const Shape& shape) {
  return kLseBytes * static_cast<double>(shape.batch * shape.heads_q * shape.seq_q);
}

}  // namespace

bool counts_traffic(Mask::Kind mask) {
  return mask == Mask::Kind::none || mask == Mask::Kind::causal;
}

double product_flops(const Problem& problem, const Shape& shape, double pairs) {
  const bool backward = problem.direction == Direction::backward;
  const bool tiled = problem.algorithm == Algorithm::tiled;
  // Q K^T, P V; backward P^T dO, dO V^T, dS K, dS^T Q, and tiled Q K^T once more.
  const int dims = !backward ? problem.head_dim + problem.head_dim_v
                             : (tiled ? 3 : 2) * problem.head_dim + 2 * problem.head_dim_v;
  const double all = static_cast<double>(shape.seq_q) * static_cast<double>(shape.seq_kv);
  return 2 * static_cast<double>(shape.batch * shape.heads_q) * (tiled ? pairs : all) * dims;
}

double tensor_bytes(const Problem& problem, const Shape& shape) {
  const Elements size = elements_of(problem, shape);
  const double forward = size.q + size.k + size.v + size.o;
  // q, k, v, o, d_o in; dq, dk, dv out.
  const double elements = problem.direction == Direction::backward ? 2 * forward : forward;
  return elements * info(problem.dtype).bytes + lse_bytes(shape);
}

double unfused_bytes(const Problem& problem, const Shape& shape) {
  const Elements size = elements_of(problem, shape);
  const double bytes = info(problem.dtype).bytes;
  const double score_bytes = problem.target.backend == BackendKind::cpu ? 4 : bytes;
  const double scores = static_cast<double>(shape.batch * shape.heads_q) *
                        static_cast<double>(shape.seq_q) * static_cast<double>(shape.seq_kv);
  // Forward: scores written and read by the softmax, weights written and read by the product with the values.
  // Backward: weights read for dV and for dS; their gradients written and read; dS written, and read for dQ and dK.
  if (problem.direction == Direction::forward)
    return 4 * scores * score_bytes + tensor_bytes(problem, shape);
  const double elements = 2 * (size.o + size.q + size.k + size.v);  // d_o twice, o not at all
  return 7 * scores * score_bytes + elements * bytes;
}

double keys_met(const Problem& problem, const Shape& shape, std::int64_t rows, int tile_q,
                int tile_kv) {
  if (problem.mask == Mask::Kind::none || rows == 0)
    return static_cast<double>((rows + tile_q - 1) / tile_q * shape.seq_kv);
  std::int64_t met = 0;
  for (std::int64_t first = 0; first < rows; first += tile_q) {
    const std::int64_t last = std::min(first + tile_q, rows) - 1;
    // A tile that reaches into the next head holds the last query of the one before.
    const bool one_head = first / shape.seq_q == last / shape.seq_q;
    const std::int64_t query = one_head ? last % shape.seq_q : shape.seq_q - 1;
    const std::int64_t end = std::max<std::int64_t>(0, query + 1 + shape.seq_kv - shape.seq_q);
    met += std::min((end + tile_kv - 1) / tile_kv * tile_kv, shape.seq_kv);
  }
  return static_cast<double>(met);
}

std::optional<double> forward_block_bytes(const Problem& problem, const Shape& shape, int tile_q,
                                          int tile_kv) {
  if (problem.direction != Direction::forward || !counts_traffic(problem.mask)) return std::nullopt;
  const double heads = static_cast<double>(shape.batch * shape.heads_q);
  const double rows =
      static_cast<double>(shape.seq_q) + keys_met(problem, shape, shape.seq_q, tile_q, tile_kv);
  const double row_bytes = (problem.head_dim + problem.head_dim_v) * info(problem.dtype).bytes;
  return heads * rows * row_bytes + lse_bytes(shape);
}

double queries_met(const Problem& problem, const Shape& shape, int tile_kv, int tile_q) {
  if (problem.mask == Mask::Kind::none)
    return static_cast<double>((shape.seq_kv + tile_kv - 1) / tile_kv * shape.seq_q);
  std::int64_t met = 0;
  for (std::int64_t key = 0; key < shape.seq_kv; key += tile_kv) {
    const std::int64_t first = std::max<std::int64_t>(0, key + shape.seq_q - shape.seq_kv);
    met += shape.seq_q - first / tile_q * tile_q;
  }
  return static_cast<double>(met);
}

std::optional<double> backward_block_bytes(const Problem& problem, const Shape& shape,
                                           const BackwardBlocks& blocks) {
  if (problem.direction != Direction::backward || !counts_traffic(problem.mask))
    return std::nullopt;
  const double element = info(problem.dtype).bytes;
  const double dim = problem.head_dim * element, dim_v = problem.head_dim_v * element;
  const double sum = blocks.adds_queries ? 4.0 * problem.head_dim : 0;  // of one query
  const double queries = static_cast<double>(shape.seq_q), keys = static_cast<double>(shape.seq_kv);
  // Of a query head. First o, d_o and the LSE of each query in, numbers and cleared sums out.
  double query_head = queries * (2 * dim_v + kLseBytes + blocks.row_bytes + sum);
  // dq: sums in, or q, d_o and those numbers, and the keys and values that they meet.
  query_head += queries * (sum + dim);
  if (!blocks.adds_queries)
    query_head +=
        queries * (dim + dim_v + blocks.row_bytes) +
        keys_met(problem, shape, shape.seq_q, blocks.queries, blocks.key_step) * (dim + dim_v);
  // q, d_o and the numbers of each query that keys meet. What is added to its sums goes out alone: the memory adds.
  query_head += queries_met(problem, shape, blocks.keys, blocks.query_step) *
                (blocks.query_walks * (dim + dim_v + blocks.row_bytes) + sum);
  const double key_head = keys * (blocks.query_walks + 1) * (dim + dim_v);  // k, v; dk, dv
  return static_cast<double>(shape.batch) * (static_cast<double>(shape.heads_q) * query_head +
                                             static_cast<double>(shape.heads_kv) * key_head);
}

}  // namespace flashwright
