// What the kernels move beyond the scratch of a worker, against small cases counted by hand.
#include "core/schedule.hpp"
#include "generator/cpu/family_cpu.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

Problem problem_of(Direction direction, DType dtype, Mask::Kind mask) {
  Problem problem;
  problem.direction = direction;
  problem.dtype = dtype;
  problem.head_dim = 8;
  problem.head_dim_v = 16;
  problem.mask = mask;
  problem.target = {BackendKind::cpu, "avx2"};
  return problem;
}

double count(const Problem& problem, const Shape& shape, const char* schedule) {
  const std::optional<double> bytes =
      cpu_family().traffic_bytes(problem, parse_schedule(schedule), shape);
  REQUIRE(bytes);
  return *bytes;
}

constexpr Shape kGroup{3, 4, 2, 12, 12};  // 6 times a key head with its 2 query heads

}  // namespace

TEST_CASE("forward: a tile packs the rows of several heads and reads no key that it does not see") {
  const char* const schedule = "q8.kv32.mk4.md4.u4";
  // 24 rows in 3 tiles, the second of which holds the last row of the first head.
  const double full = 24 * (8 + 16) + 3 * 12 * (8 + 16), lse = 4 * 24;
  CHECK(count(problem_of(Direction::forward, DType::fp32, Mask::Kind::none), kGroup, schedule) ==
        6 * (4 * full + lse));
  CHECK(count(problem_of(Direction::forward, DType::bf16, Mask::Kind::none), kGroup, schedule) ==
        6 * (2 * full + lse));
  const double causal = 24 * (8 + 16) + (8 + 12 + 12) * (8 + 16);
  CHECK(count(problem_of(Direction::forward, DType::fp32, Mask::Kind::causal), kGroup, schedule) ==
        6 * (4 * causal + lse));
}

TEST_CASE("backward: copied keys and their sums come once for several tiles of queries") {
  const Shape shape{1, 1, 1, 64, 40};
  const Problem problem = problem_of(Direction::backward, DType::fp32, Mask::Kind::none);
  const double rows = 4 * (64 * (8 + 16 + 16 + 8) + 64);  // q, o, d_o, dq; lse
  const double key = 4 * (8 + 16);  // a key and its value; as much for their copies and their sums
  const double copied = 40 * 2 * key;
  // 8 tiles of 8 rows in 4 pairs; 2 tasks: cleared, added up, dk and dv stored.
  CHECK(count(problem, shape, "q8.kv32.mk4.md4.u4.tk2.qt2") ==
        rows + copied + 4 * 40 * (key + 2 * key) + 40 * (2 * 2 * key + key));
  // One at a time, and no tasks beside each other.
  CHECK(count(problem, shape, "q8.kv32.mk4.md4.u4.tk1.qt1") ==
        rows + copied + 8 * 40 * (key + 2 * key) + 40 * (2 * key + key));
  // Fewer than 4 tiles for each task: one task.
  CHECK(count(problem, {1, 1, 1, 32, 40}, "q8.kv32.mk4.md4.u4.tk2.qt1") ==
        rows / 2 + copied + 4 * 40 * (key + 2 * key) + 40 * (2 * key + key));
  // Of 16 bits, the copies still are fp32.
  const Problem narrow = problem_of(Direction::backward, DType::bf16, Mask::Kind::none);
  const double narrow_rows = 2 * 64 * (8 + 16 + 16 + 8) + 4 * 64;
  CHECK(count(narrow, shape, "q8.kv32.mk4.md4.u4.tk1.qt1") ==
        narrow_rows + 40 * 1.5 * key + 8 * 40 * (key + 2 * key) + 40 * (2 * key + key / 2));
}

TEST_CASE("windows and block lists are not counted") {
  for (const Mask::Kind mask : {Mask::Kind::window, Mask::Kind::blocks})
    for (const Direction direction : {Direction::forward, Direction::backward})
      CHECK_FALSE(cpu_family().traffic_bytes(problem_of(direction, DType::fp32, mask), {}, kGroup));
}
