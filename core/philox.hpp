// The dropout bits: a function of (seed, offset, batch, head, query, key) and of nothing else, so
// they are the same on every backend and under every schedule, forward and backward.
//
// The unit is one 32-bit keep word for 32 neighbouring keys of one query. Two Philox 4x32 calls
// give eight words; bit j of word i is bit 7-i of the byte drawn for key 32*(kv/32)+j. A weight is
// dropped when its byte is below the threshold.
//
// Philox: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// 2011. Seven rounds, the fewest for which that paper reports no failure of the BigCrush battery.
#pragma once

#include <array>
#include <cstdint>

namespace flashwright {

constexpr std::uint32_t kPhiloxMul0 = 0xD2511F53u, kPhiloxMul1 = 0xCD9E8D57u;
constexpr std::uint32_t kPhiloxKey0 = 0x9E3779B9u, kPhiloxKey1 = 0xBB67AE85u;
constexpr int kPhiloxRounds = 7;

constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                              std::uint64_t key, int rounds = kPhiloxRounds) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t a = std::uint64_t{kPhiloxMul0} * counter[0];
    const std::uint64_t b = std::uint64_t{kPhiloxMul1} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ k1,
               static_cast<std::uint32_t>(a)};
    k0 += kPhiloxKey0;
    k1 += kPhiloxKey1;
  }
  return counter;
}

// (seed, offset) as one Philox key. The odd factor keeps neighbouring offsets far from neighbouring
// seeds.
constexpr std::uint64_t dropout_key(std::uint64_t seed, std::uint64_t offset) {
  return seed + offset * 0x9E3779B97F4A7C15u;
}

// Bit j is set when key 32 * key_word + j is kept for this query. `head` counts over batch and
// heads: batch_index * heads_q + head_index.
constexpr std::uint32_t keep_word(std::uint64_t key, std::uint32_t head, std::uint32_t query,
                                  std::uint32_t key_word, std::uint32_t threshold) {
  const std::array<std::uint32_t, 4> high = philox({query, key_word, head, 0}, key);
  const std::array<std::uint32_t, 4> low = philox({query, key_word, head, 1}, key);
  // byte < threshold, for 32 bytes at once: the borrow of byte - threshold, lowest bit first.
  std::uint32_t borrow = 0;
  for (int bit = 0; bit < 8; ++bit) {
    const std::uint32_t plane =
        bit < 4 ? low[static_cast<std::size_t>(3 - bit)] : high[static_cast<std::size_t>(7 - bit)];
    const std::uint32_t limit = (threshold >> bit & 1u) != 0 ? ~0u : 0u;
    borrow = (~plane & limit) | (~plane & borrow) | (limit & borrow);
  }
  return ~borrow;
}

}  // namespace flashwright
