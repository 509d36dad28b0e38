// The backward pass through the public interface alone.
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "flashwright/flashwright.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright::testing;

namespace {

constexpr std::int64_t kKeys = 3;

// Two queries, three keys, one head of 8 dims, all scores 0: every weight is 1/3.
struct Tiny {
  std::array<float, 16> q{}, o{}, d_o{}, dq{};
  std::array<float, 24> k{}, v{}, dk{}, dv{};
  std::array<float, 2> lse{std::log(3.0f), std::log(3.0f)};

  Tiny() {
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / 8);
    for (std::size_t i = 0; i < k.size(); ++i) k[i] = i % 8 == 0 ? static_cast<float>(i / 8) : 0;
    o.fill(1);  // the mean of 0, 1, 2
    d_o.fill(1);
  }

  flashwright::Arguments arguments() {
    using flashwright::DType;
    using flashwright::Tensor;
    const auto tensor = [](auto& values, std::int64_t rows) {
      return Tensor(values.data(), DType::fp32, {1, rows, 1, 8});
    };
    flashwright::Arguments out{tensor(q, 2), tensor(k, kKeys), tensor(v, kKeys), tensor(o, 2),
                               Tensor(lse.data(), DType::fp32, {1, 1, 2})};
    out.d_o = tensor(d_o, 2);
    out.dq = tensor(dq, 2);
    out.dv = tensor(dv, kKeys);
    return out;
  }
};

std::string check(flashwright::Arguments arguments, flashwright_status expected) {
  const flashwright_arguments args = arguments.get();
  flashwright::Config config;
  config.direction = "backward";
  config.dtype = flashwright::DType::fp32;
  config.head_dim = 8;
  char* report = nullptr;
  CHECK(flashwright_check(to_json(config).c_str(), &args, 10, &report) == expected);
  return expected == FLASHWRIGHT_OK ? flashwright::take(report) : flashwright_last_error();
}

}  // namespace

TEST_CASE("gradients are checked against float64") {
  Tiny tiny;
  // dP is 8 v, delta 8: dS = (8 v - 8) / 3, and dQ = dS K / sqrt(8) in its first dim.
  for (int row = 0; row < 2; ++row)
    tiny.dq[static_cast<std::size_t>(row * 8)] =
        static_cast<float>((8.0 * 0 + 0.0 * 1 + 8.0 * 2) / 3 / std::sqrt(8.0));
  tiny.dv.fill(2.0f / 3);
  CHECK(contains(check(tiny.arguments(), FLASHWRIGHT_OK), "\"passed\":true"));
  tiny.dv[5] = 0.7f;
  const std::string report = check(tiny.arguments(), FLASHWRIGHT_OK);
  CHECK(contains(report, "\"dv\":{\"error\":0.03"));
  CHECK(contains(report, "\"passed\":false"));
  CHECK(!contains(report, "\"dk\""));
}

TEST_CASE("what a backward call lacks is named") {
  Tiny tiny;
  flashwright::Arguments arguments = tiny.arguments();
  arguments.d_o.reset();
  CHECK(contains(check(arguments, FLASHWRIGHT_BAD_ARGUMENT), "d_o: given no tensor"));
  arguments = tiny.arguments();
  arguments.dq.reset();
  arguments.dv.reset();
  CHECK(contains(check(arguments, FLASHWRIGHT_BAD_ARGUMENT), "dq, dk, dv: given none"));
}

TEST_CASE("lists by rows get their lists by keys") {
  const std::int32_t offsets[] = {0, 2, 3}, columns[] = {0, 2, 2}, none[] = {0, 0, 0};
  flashwright_blocks lists{};
  lists.size = sizeof lists;
  lists.seq_q = 8;
  lists.seq_kv = 12;
  lists.block_q = lists.block_kv = 4;
  lists.batch = lists.heads = 1;
  lists.full_offsets = offsets;
  lists.full_columns = columns;
  lists.partial_offsets = none;
  flashwright_blocks* both = nullptr;
  REQUIRE(flashwright_blocks_transpose(&lists, &both) == FLASHWRIGHT_OK);
  CHECK(both->full_columns != columns);
  CHECK(std::vector<std::int32_t>(both->full_query_offsets, both->full_query_offsets + 4) ==
        std::vector<std::int32_t>{0, 1, 1, 3});
  CHECK(std::vector<std::int32_t>(both->full_query_rows, both->full_query_rows + 3) ==
        std::vector<std::int32_t>{0, 0, 1});
  flashwright_blocks_free(both);
  lists.size = 3;
  CHECK(flashwright_blocks_transpose(&lists, &both) == FLASHWRIGHT_BAD_ARGUMENT);
  CHECK(contains(flashwright_last_error(), "blocks: given size 3"));
}

TEST_CASE("gradients are supported on every GPU target, with all features") {
  for (const char* target : {"sm_80", "sm_86", "sm_90a", "sm_120"})
    for (const int head_dim : {8, 64, 256}) {
      flashwright::Config config;
      config.direction = "backward";
      config.head_dim = head_dim;
      config.dropout = 0.1;
      config.softcap = 30;
      config.alibi = true;
      config.deterministic = true;
      config.target = target;
      CHECK(flashwright::supports(config) == "[]");
    }
}
