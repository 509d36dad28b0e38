// The counts of core/traffic against small cases counted by hand.
#include "core/traffic.hpp"

#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

Problem problem_of(Direction direction, DType dtype, int head_dim, int head_dim_v,
                   Mask::Kind mask = Mask::Kind::none) {
  Problem problem;
  problem.direction = direction;
  problem.dtype = dtype;
  problem.head_dim = head_dim;
  problem.head_dim_v = head_dim_v;
  problem.mask = mask;
  problem.target = {BackendKind::cuda, "sm_80"};
  return problem;
}

Problem unfused(Problem problem) {
  problem.algorithm = Algorithm::unfused;
  return problem;
}

constexpr Shape kSmall{1, 2, 1, 3, 5};  // 2 query heads share 1 key head; 3 queries, 5 keys

}  // namespace

TEST_CASE("products: two forward, five backward, four where the weights are stored") {
  const Problem forward = problem_of(Direction::forward, DType::fp16, 8, 16);
  const Problem backward = problem_of(Direction::backward, DType::fp16, 8, 16);
  // 2 heads, 4 of the 15 pairs; a multiplication and an addition for each dim.
  CHECK(product_flops(forward, kSmall, 4) == 2 * 4 * 2 * (8 + 16));
  CHECK(product_flops(backward, kSmall, 4) == 2 * 4 * 2 * (8 + 16 + 16 + 8 + 8));
  // All pairs are computed, hidden or not.
  CHECK(product_flops(unfused(forward), kSmall, 4) == 2 * 15 * 2 * (8 + 16));
  CHECK(product_flops(unfused(backward), kSmall, 4) == 2 * 15 * 2 * (16 + 16 + 8 + 8));
}

TEST_CASE("tensors: each element once") {
  // q 2*3*8, k 5*8, v 5*16, o 2*3*16: 264 elements; an LSE of 6 rows.
  CHECK(tensor_bytes(problem_of(Direction::forward, DType::fp16, 8, 16), kSmall) == 2 * 264 + 24);
  CHECK(tensor_bytes(problem_of(Direction::forward, DType::fp32, 8, 16), kSmall) == 4 * 264 + 24);
  // Every tensor and its gradient.
  CHECK(tensor_bytes(problem_of(Direction::backward, DType::fp16, 8, 16), kSmall) == 2 * 528 + 24);
}

TEST_CASE("unfused: scores to memory and back") {
  Problem forward = problem_of(Direction::forward, DType::fp16, 8, 16);
  Problem backward = problem_of(Direction::backward, DType::fp16, 8, 16);
  // 30 scores: written, read, weights written, read.
  CHECK(unfused_bytes(forward, kSmall) == 4 * 30 * 2 + 552);
  // dV: P, dO. dP: dO, V, written. dS: P, dP, written. dQ: dS, K. dK: dS, Q.
  const int products =
      96 + (96 + 80) + (40 + 48) + (48 + 40) + 80;  // the dense operands and results
  CHECK(unfused_bytes(backward, kSmall) == 7 * 30 * 2 + 2 * products);
  // On a CPU scores are fp32 whatever the tensors hold.
  forward.target = {BackendKind::cpu, "avx2"};
  CHECK(unfused_bytes(forward, kSmall) == 4 * 30 * 4 + 552);
  // A mask saves nothing.
  const Problem causal = problem_of(Direction::forward, DType::fp16, 8, 16, Mask::Kind::causal);
  CHECK(unfused_bytes(causal, kSmall) == 4 * 30 * 2 + 552);
}

TEST_CASE("keys that tiles of queries meet") {
  const Problem full = problem_of(Direction::forward, DType::fp16, 8, 8);
  const Problem causal = problem_of(Direction::forward, DType::fp16, 8, 8, Mask::Kind::causal);
  const Shape square{1, 1, 1, 10, 10};
  CHECK(keys_met(full, square, 10, 4, 4) == 3 * 10);
  CHECK(keys_met(causal, square, 10, 4, 1) == 4 + 8 + 10);
  CHECK(keys_met(causal, square, 10, 4, 3) == 6 + 9 + 10);  // whole tiles, but none behind the end
  CHECK(keys_met(causal, {1, 1, 1, 4, 10}, 4, 2, 1) == 8 + 10);  // queries stand at the end
  CHECK(keys_met(causal, {1, 1, 1, 10, 4}, 10, 5, 1) == 0 + 4);  // the first see nothing
  // Three heads of 3 queries in tiles of 4: the first two tiles reach into the next head.
  CHECK(keys_met(causal, {1, 3, 1, 3, 3}, 9, 4, 1) == 3 + 3 + 3);
  CHECK(keys_met(causal, {1, 3, 1, 3, 3}, 9, 2, 1) == 2 + 3 + 3 + 2 + 3);
  CHECK(keys_met(causal, {1, 1, 1, 0, 4}, 0, 4, 1) == 0);
  CHECK(keys_met(full, {1, 1, 1, 0, 4}, 0, 4, 1) == 0);
}

TEST_CASE("a block keeps its queries and reads the keys that it sees") {
  const Problem causal = problem_of(Direction::forward, DType::bf16, 8, 16, Mask::Kind::causal);
  const Shape shape{2, 4, 2, 10, 10};  // 8 query heads
  // Of a head: q 10 rows of 8, o 10 of 16, and 6 + 9 + 10 keys and values; 10 numbers of the LSE.
  CHECK(*forward_block_bytes(causal, shape, 4, 3) == 8 * (2 * (10 + 25) * (8 + 16) + 40));
  // Twice the tile halves what a long sequence reads.
  const Problem full = problem_of(Direction::forward, DType::bf16, 64, 64);
  const Shape longer{1, 1, 1, 4096, 4096};
  const double own = 4096 * (2 * 128 + 4);
  CHECK(*forward_block_bytes(full, longer, 64, 64) - own ==
        2 * (*forward_block_bytes(full, longer, 128, 64) - own));
}

TEST_CASE("queries that tiles of keys meet") {
  const Problem full = problem_of(Direction::backward, DType::fp16, 8, 8);
  const Problem causal = problem_of(Direction::backward, DType::fp16, 8, 8, Mask::Kind::causal);
  const Shape square{1, 1, 1, 10, 10};
  CHECK(queries_met(full, square, 4, 3) == 3 * 10);
  CHECK(queries_met(causal, square, 4, 1) == 10 + 6 + 2);
  CHECK(queries_met(causal, square, 4, 3) == 10 + 7 + 4);  // from 0, 3 and 6 on: whole tiles
  CHECK(queries_met(causal, {1, 1, 1, 4, 10}, 4, 1) == 4 + 4 + 2);  // queries stand at the end
  CHECK(queries_met(causal, {1, 1, 1, 10, 4}, 4, 1) == 4);          // the first see nothing
  for (const Problem& problem : {full, causal}) {
    CHECK(queries_met(problem, {1, 1, 1, 0, 4}, 4, 1) == 0);
    CHECK(queries_met(problem, {1, 1, 1, 4, 0}, 4, 1) == 0);
  }
}

TEST_CASE("gradients: some blocks keep queries and read keys, others the other way round") {
  const Problem full = problem_of(Direction::backward, DType::bf16, 8, 16);
  const Problem causal = problem_of(Direction::backward, DType::bf16, 8, 16, Mask::Kind::causal);
  const Shape shape{2, 4, 2, 10, 10};  // 8 query heads, 4 key heads
  BackwardBlocks blocks;
  blocks.queries = 4, blocks.key_step = 3;
  blocks.keys = 5, blocks.query_step = 2;
  blocks.row_bytes = 16;
  const double pair = 2 * (8 + 16);  // a row of q and d_o, or of k and v
  // o, d_o, LSE in and 16 bytes out; those, q and d_o in and dq out.
  const double rows = 10 * (2 * 2 * 16 + 4 + 16) + 10 * (16 + pair + 2 * 8);
  const double own_keys = 10 * 2 * pair;
  CHECK(*backward_block_bytes(full, shape, blocks) ==
        8 * (rows + 3 * 10 * pair + 2 * 10 * (pair + 16)) + 4 * own_keys);
  // Tiles of queries meet 6, 9 and 10 keys; tiles of keys 10 queries and those from 4 on.
  CHECK(*backward_block_bytes(causal, shape, blocks) ==
        8 * (rows + 25 * pair + 16 * (pair + 16)) + 4 * own_keys);
  // A kernel for dK and one for dV: both read, one writes.
  blocks.query_walks = 2;
  CHECK(*backward_block_bytes(causal, shape, blocks) ==
        8 * (rows + 25 * pair + 2 * 16 * (pair + 16)) + 4 * 10 * 3 * pair);
}

TEST_CASE("gradients: sums of dQ in memory are cleared, added to at each meeting, and converted") {
  const Problem full = problem_of(Direction::backward, DType::bf16, 8, 16);
  BackwardBlocks blocks;
  blocks.queries = blocks.keys = 5;
  blocks.key_step = blocks.query_step = 2;
  blocks.row_bytes = 8;
  blocks.adds_queries = true;
  const double pair = 2 * (8 + 16), sum = 4 * 8;
  CHECK(*backward_block_bytes(full, {1, 1, 1, 10, 10}, blocks) ==
        10 * (2 * 2 * 16 + 4 + 8 + sum) + 10 * (sum + 2 * 8) + 2 * 10 * (pair + 8 + sum) +
            10 * 2 * pair);
  // Long sequences: the products of lengths are left, for each pair of tiles.
  const Problem wide = problem_of(Direction::backward, DType::bf16, 64, 64);
  blocks.queries = blocks.keys = 128;
  const double n = 1 << 20;
  const double adding = *backward_block_bytes(wide, {1, 1, 1, 1 << 20, 1 << 20}, blocks);
  CHECK(adding == doctest::Approx(n * n / 128 * (2 * 128 + 8 + 4 * 64)).epsilon(1e-3));
}

TEST_CASE("what is not known is not counted") {
  for (const Mask::Kind mask : {Mask::Kind::window, Mask::Kind::blocks}) {
    CHECK_FALSE(forward_block_bytes(problem_of(Direction::forward, DType::bf16, 8, 8, mask), kSmall,
                                    64, 64));
    CHECK_FALSE(backward_block_bytes(problem_of(Direction::backward, DType::bf16, 8, 8, mask),
                                     kSmall, {64, 64, 64, 64}));
  }
  CHECK_FALSE(
      forward_block_bytes(problem_of(Direction::backward, DType::bf16, 8, 8), kSmall, 64, 64));
  CHECK_FALSE(backward_block_bytes(problem_of(Direction::forward, DType::bf16, 8, 8), kSmall,
                                   {64, 64, 64, 64}));
}
