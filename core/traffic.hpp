// What attention computes and what it moves, counted: the IO model of FlashAttention with the tiles of a schedule.
// A kernel moves data between the memory that a block (GPU) or a task (CPU) has on the chip and what lies beyond, where
// caches may serve a part. Padding is not counted.
#pragma once

#include <optional>

#include "core/arguments.hpp"
#include "core/problem.hpp"

namespace flashwright {

// Windows and block lists are values of a launch, so the traffic of other masks alone is known.
bool counts_traffic(Mask::Kind mask);

// Multiplications and additions of the matrix products. Tiled: two of them, backward five, as the scores are computed
// again, over `pairs` of query and key. Unfused: two, backward four, over all pairs, as it computes hidden scores too.
double product_flops(const Problem& problem, const Shape& shape, double pairs);

// Bytes of inputs and outputs, each once: what any computation moves.
double tensor_bytes(const Problem& problem, const Shape& shape);

// Bytes of the computation that stores all scores, with every operand of a product once: Theta(N d + N^2).
double unfused_bytes(const Problem& problem, const Shape& shape);

// Keys that the query tiles of one key head meet, added up; those of a tile end with a whole tile of keys. A tile holds
// `tile_q` of `rows` query rows, which are those of one head or of several, one head after the other.
double keys_met(const Problem& problem, const Shape& shape, std::int64_t rows, int tile_q,
                int tile_kv);

// Bytes of a forward pass on a GPU, where a block keeps a tile of queries and walks over keys and values:
// Theta(N^2 d^2 / M). Nothing where it is not counted.
std::optional<double> forward_block_bytes(const Problem& problem, const Shape& shape, int tile_q,
                                          int tile_kv);

// Queries of one head that its tiles of keys meet, added up; they begin with a whole tile of queries.
double queries_met(const Problem& problem, const Shape& shape, int tile_kv, int tile_q);

// How the backward kernels of a GPU divide their work. A first one leaves numbers of each query in the workspace.
struct BackwardBlocks {
  int queries = 0,
      key_step = 0;  // of a block that sums dQ: its queries, and the keys that it meets at a time
  int keys = 0, query_step = 0;  // of a block that sums dK and dV, the other way round
  int query_walks = 1;           // 2 where dK and dV have kernels of their own
  bool adds_queries =
      false;          // blocks with keys add up dQ in fp32 in the workspace; none owns queries
  int row_bytes = 0;  // of a query in the workspace
};

// Bytes of a backward pass on a GPU with all gradients wanted. Nothing where it is not counted.
std::optional<double> backward_block_bytes(const Problem& problem, const Shape& shape,
                                           const BackwardBlocks& blocks);

}  // namespace flashwright
