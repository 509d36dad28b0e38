#include "core/philox.hpp"

#include <bit>
#include <cmath>

#include "core/arguments.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

using Words = std::array<std::uint32_t, 4>;

// The keep word from its definition: each key draws a byte whose bits are spread over eight words, the highest
// first, and is dropped when the byte is below the threshold.
std::uint32_t keep_word_by_bytes(std::uint64_t key, std::uint32_t head, std::uint32_t query,
                                 std::uint32_t key_word, std::uint32_t threshold) {
  const Words high = philox({query, key_word, head, 0}, key),
              low = philox({query, key_word, head, 1}, key);
  std::uint32_t kept = 0;
  for (unsigned j = 0; j < 32; ++j) {
    std::uint32_t byte = 0;
    for (unsigned i = 0; i < 8; ++i) byte |= ((i < 4 ? high[i] : low[i - 4]) >> j & 1u) << (7 - i);
    kept |= static_cast<std::uint32_t>(byte >= threshold) << j;
  }
  return kept;
}

// The mask of (heads x queries x keys), as keep words.
std::vector<std::uint32_t> mask_of(std::uint64_t seed, std::uint64_t offset, std::uint32_t head,
                                   double dropout) {
  std::vector<std::uint32_t> words;
  const auto threshold = static_cast<std::uint32_t>(drop_threshold(dropout));
  for (std::uint32_t query = 0; query < 256; ++query)
    for (std::uint32_t word = 0; word < 8; ++word)
      words.push_back(keep_word(dropout_key(seed, offset), head, query, word, threshold));
  return words;
}

double kept_share(const std::vector<std::uint32_t>& mask) {
  std::int64_t bits = 0;
  for (const std::uint32_t word : mask) bits += std::popcount(word);
  return static_cast<double>(bits) / (32.0 * static_cast<double>(mask.size()));
}

double differing_share(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b) {
  std::vector<std::uint32_t> differing;
  for (std::size_t i = 0; i < a.size(); ++i) differing.push_back(a[i] ^ b[i]);
  return kept_share(differing);
}

}  // namespace

TEST_CASE("ten rounds give the published answers") {  // case C52
  CHECK(philox({0, 0, 0, 0}, 0, 10) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff, 10) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822, 10) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  CHECK(philox({0, 0, 0, 0}, 0) != philox({0, 0, 0, 0}, 0, 10));
  CHECK(philox({0, 0, 0, 0}, 0) == philox({0, 0, 0, 0}, 0, 7));
}

TEST_CASE("a keep word is 32 comparisons of a byte with the threshold") {
  property("by bytes", [] {
    const auto key = *rc::gen::arbitrary<std::uint64_t>();
    const auto head = *rc::gen::arbitrary<std::uint32_t>(),
               query = *rc::gen::arbitrary<std::uint32_t>();
    const auto word = *rc::gen::arbitrary<std::uint32_t>();
    const auto threshold = *rc::gen::inRange<std::uint32_t>(0, 256);
    RC_ASSERT(keep_word(key, head, query, word, threshold) ==
              keep_word_by_bytes(key, head, query, word, threshold));
  });
}

TEST_CASE("what a small probability drops, every larger one drops too") {
  // The bits belong to the place alone; the probability only moves the threshold.
  std::uint32_t before = ~0u;
  for (std::uint32_t threshold = 0; threshold < 256; ++threshold) {
    const std::uint32_t kept = keep_word(123, 4, 5, 6, threshold);
    CHECK((kept & ~before) == 0);
    before = kept;
  }
  CHECK(keep_word(123, 4, 5, 6, 0) == ~0u);
}

TEST_CASE(
    "equal seed and offset give equal masks; other seeds, offsets and heads give independent "
    "ones") {  // C52
  const auto first = mask_of(7, 0, 0, 0.5);
  CHECK(first == mask_of(7, 0, 0, 0.5));
  for (const auto& other :
       {mask_of(7, 1, 0, 0.5), mask_of(8, 0, 0, 0.5), mask_of(7, 0, 1, 0.5), mask_of(6, 0, 0, 0.5),
        mask_of(7, 2, 0, 0.5), mask_of(7, 0, 2, 0.5), mask_of(8, 1, 0, 0.5)})
    CHECK(std::fabs(differing_share(first, other) - 0.5) < 0.01);
  // Neighbouring queries and words of keys, too.
  std::vector<std::uint32_t> shifted(first.begin() + 8, first.end());
  CHECK(std::fabs(differing_share({first.begin(), first.end() - 8}, shifted) - 0.5) < 0.01);
  std::vector<std::uint32_t> next(first.begin() + 1, first.end());
  CHECK(std::fabs(differing_share({first.begin(), first.end() - 1}, next) - 0.5) < 0.01);
}

TEST_CASE("seed and offset do not trade places") {
  CHECK(dropout_key(0, 1) != dropout_key(1, 0));
  CHECK(dropout_key(1, 2) != dropout_key(2, 1));
  CHECK(dropout_key(5, 0) == 5);
  // A thousand steps of training from a thousand seeds meet no key twice.
  std::vector<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 300; ++seed)
    for (std::uint64_t offset = 0; offset < 300; ++offset)
      keys.push_back(dropout_key(seed, offset));
  std::sort(keys.begin(), keys.end());
  CHECK(std::adjacent_find(keys.begin(), keys.end()) == keys.end());
}

TEST_CASE("the kept share is one minus the probability") {
  for (const double dropout : {0.1, 0.2, 0.5, 0.75, 0.9}) {
    const double expected = 1 - drop_threshold(dropout) / 256.0;
    CHECK(std::fabs(kept_share(mask_of(3, 0, 0, dropout)) - expected) < 0.01);
    CHECK(std::fabs(expected - (1 - dropout)) <= 0.5 / 256);
  }
}

TEST_CASE("a probability becomes a number of byte values, never none and never all") {
  const std::vector<std::pair<double, int>> table = {
      {0, 0},    {1e-9, 1},  {0.001, 1}, {0.002, 1},   {0.0059, 2},
      {0.1, 26}, {0.5, 128}, {0.9, 230}, {0.998, 255}, {0.999999, 255}};
  for (const auto& [dropout, threshold] : table) CHECK(drop_threshold(dropout) == threshold);
}
