// Masks: ranges, alignments, block lists in odd shapes.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/cpu/runner.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

Config config_of(const Mask& mask, int head_dim = 32) {
  Config config;
  config.dtype = DType::fp32;
  config.head_dim = head_dim;
  config.mask = mask;
  return config;
}

}  // namespace

TEST_CASE("positions far outside of the keys") {
  constexpr std::int64_t kFar = (std::int64_t{1} << 30) - 1;  // the largest that is allowed
  for (const Mask& mask :
       {Mask::causal(), Mask::window(3, 2), Mask::window(-1, 0), Mask::window(0, -1)}) {
    for (const std::int64_t position :
         {-kFar, std::int64_t{-500}, std::int64_t{-1}, std::int64_t{40}, kFar}) {
      HostProblem host(config_of(mask), {1, 2, 2, 90, 140}, Layout::rows_of_heads, 3);
      host.arguments.q_position = position;
      CAPTURE(to_string(mask));
      CAPTURE(position);
      CHECK(run_and_judge(host, {}, 90) == "");
    }
  }
}

TEST_CASE("windows of every width around a tile") {
  for (const std::int64_t left : {0, 1, 31, 32, 63, 64, 65, 200}) {
    for (const std::int64_t right : {0, 1, 64, -1}) {
      HostProblem host(config_of(Mask::window(left, right)), {1, 1, 1, 200, 230},
                       Layout::rows_of_heads, 3);
      CAPTURE(left);
      CAPTURE(right);
      CHECK(run_and_judge(host, {}, 60) == "");
    }
  }
}

TEST_CASE("grouped heads share a tile and keep their positions") {
  for (const std::int64_t seq_q : {1, 2, 3, 5, 63, 64, 65}) {
    for (const std::int64_t group : {1, 2, 3, 7}) {
      HostProblem host(config_of(Mask::causal()), {2, 2 * group, 2, seq_q, 70},
                       Layout::rows_of_heads, 3);
      CHECK(run_and_judge(host, {}, 60) == "");
    }
  }
}

TEST_CASE("blocks of any size against any tile") {
  for (const std::int64_t block_q : {1, 3, 64, 100, 128}) {
    for (const std::int64_t block_kv : {1, 31, 64, 65, 300}) {
      HostProblem host(config_of(Mask::blocks()), {2, 2, 1, 129, 150}, Layout::rows_of_heads, 3);
      host.use_random_blocks(block_q, block_kv, block_q == 3, 17);
      CAPTURE(block_q);
      CAPTURE(block_kv);
      CHECK(run_and_judge(host, {}, 60) == "");
    }
  }
}

TEST_CASE("padding columns and empty lists") {
  HostProblem host(config_of(Mask::blocks()), {1, 1, 1, 8, 64}, Layout::rows_of_heads, 3);
  const std::int32_t full_offsets[] = {0, 3, 3},
                     full_columns[] = {-1, 2, 4};  // 64 keys: no block 4
  const std::int32_t partial_offsets[] = {0, 1, 1}, partial_columns[] = {-7};
  const std::uint32_t bits[4] = {~0u, ~0u, ~0u, ~0u};
  BlockLists lists;
  lists.seq_q = 8;
  lists.seq_kv = 64;
  lists.block_q = 4;
  lists.block_kv = 16;
  lists.full_offsets = full_offsets;
  lists.full_columns = full_columns;
  lists.partial_offsets = partial_offsets;
  lists.partial_columns = partial_columns;
  lists.partial_bits = bits;
  host.arguments.blocks = lists;
  CHECK(run_and_judge(host, {}, 8) == "");
  CHECK(std::isfinite(host.lse.at(0, 0, 3, 0)));
  CHECK(host.lse.at(0, 0, 4, 0) == -std::numeric_limits<double>::infinity());
  CHECK(host.o.at(0, 4, 0, 0) == 0);
}
