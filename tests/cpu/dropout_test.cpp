// Dropout bits as they come out of whole kernels: those of core/philox, whatever the schedule.
#include <doctest/doctest.h>

#include <cmath>

#include "core/philox.hpp"
#include "tests/cpu/runner.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

constexpr std::int64_t kKeys = 200;

// All scores equal and values that pick one key each: output j of a query is not 0 exactly when key j is
// kept.
struct Observed {
  HostProblem host;
  Observed(const Config& config, const Shape& shape, Layout layout)
      : host(config, shape, layout, 21) {
    host.q.fill(0);
    host.v.fill(0);
    for (std::int64_t b = 0; b < shape.batch; ++b)
      for (std::int64_t h = 0; h < shape.heads_kv; ++h)
        for (std::int64_t j = 0; j < shape.seq_kv; ++j) host.v.set(b, j, h, j, 1);
  }

  // How many elements disagree with the generator for this key of the bits.
  int differences(std::uint64_t key) const {
    const auto threshold = static_cast<std::uint32_t>(drop_threshold(host.config.dropout));
    int wrong = 0;
    for (std::int64_t b = 0; b < host.shape.batch; ++b)
      for (std::int64_t h = 0; h < host.shape.heads_q; ++h)
        for (std::int64_t i = 0; i < host.shape.seq_q; ++i)
          for (std::int64_t j = 0; j < host.shape.seq_kv; ++j) {
            const auto head = static_cast<std::uint32_t>(b * host.shape.heads_q + h);
            const std::uint32_t word = keep_word(key, head, static_cast<std::uint32_t>(i),
                                                 static_cast<std::uint32_t>(j / 32), threshold);
            wrong += (host.o.at(b, i, h, j) != 0) != ((word >> (j % 32) & 1u) != 0);
          }
    return wrong;
  }
};

Config dropout_config(double probability) {
  Config config;
  config.dtype = DType::fp32;
  config.head_dim = 16;
  config.head_dim_v = static_cast<int>(kKeys);
  config.dropout = probability;
  return config;
}

const Shape kShape{2, 4, 2, 70, kKeys};

}  // namespace

TEST_CASE("the mask is that of the generator") {
  for (const double probability : {0.01, 0.5, 0.9}) {
    Observed seen(dropout_config(probability), kShape, Layout::rows_of_heads);
    seen.host.arguments.seed = 0x123456789abcdefu;
    seen.host.arguments.offset = 77;
    run(seen.host.config, seen.host.arguments);
    CHECK(seen.differences(dropout_key(0x123456789abcdefu, 77)) == 0);
    CHECK(seen.differences(dropout_key(0x123456789abcdefu, 78)) > 100);
    CHECK(seen.host.fault(problem_for(seen.host.config), 30) == "");
  }
}

TEST_CASE("a state in memory wins over seed and offset") {
  Observed seen(dropout_config(0.3), kShape, Layout::rows_of_heads);
  const std::uint64_t state[2] = {5, 9};
  seen.host.arguments.rng_state = state;
  run(seen.host.config, seen.host.arguments);
  CHECK(seen.differences(dropout_key(5, 9)) == 0);
}

TEST_CASE("no schedule and no instruction set changes the mask") {
  const Config config = dropout_config(0.4);
  std::vector<How> ways;
  for (std::uint64_t draw = 0; draw < 6; ++draw) {
    How how;
    how.schedule = any_schedule(problem_for(config), kShape, draw * 7919);
    ways.push_back(how);
  }
  if (can_run("avx2")) {
    ways.emplace_back();
    ways.back().rung = "avx2";
  }
  for (const How& how : ways) {
    Observed seen(config, kShape, Layout::heads_of_rows);
    run(config, seen.host.arguments, how);
    CHECK(seen.differences(dropout_key(seen.host.arguments.seed, seen.host.arguments.offset)) == 0);
  }
}

TEST_CASE("block lists keep the mask, also where blocks begin inside a word") {
  Config config = dropout_config(0.4);
  config.mask = Mask::blocks();
  for (const std::int64_t block_kv : {7, 32, 50}) {
    Observed seen(config, kShape, Layout::rows_of_heads);
    const std::vector<std::uint8_t> all(static_cast<std::size_t>(kShape.seq_q * kShape.seq_kv), 1);
    seen.host.mask =
        block_mask_from_dense(all.data(), 1, 1, kShape.seq_q, kShape.seq_kv, 24, block_kv);
    seen.host.arguments.blocks = seen.host.mask.lists;
    run(config, seen.host.arguments);
    CHECK(seen.differences(dropout_key(seen.host.arguments.seed, seen.host.arguments.offset)) == 0);
  }
}

TEST_CASE("dropout with a window that begins inside a tile") {
  Config config = dropout_config(0.4);
  config.head_dim_v = 24;
  config.mask = Mask::window(37, 5);
  HostProblem host(config, {1, 2, 1, 300, 300}, Layout::rows_of_heads, 4);
  CHECK(run_and_judge(host) == "");
}
