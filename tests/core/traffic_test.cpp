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

TEST_CASE("what is not known is not counted") {
  for (const Mask::Kind mask : {Mask::Kind::window, Mask::Kind::blocks})
    CHECK_FALSE(forward_block_bytes(problem_of(Direction::forward, DType::bf16, 8, 8, mask), kSmall,
                                    64, 64));
  CHECK_FALSE(
      forward_block_bytes(problem_of(Direction::backward, DType::bf16, 8, 8), kSmall, 64, 64));
}
