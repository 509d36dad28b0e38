#include "emulator/bank_counter.hpp"

#include <algorithm>

namespace flashwright::emulator {
namespace {

constexpr int kBanks = 32, kBankBytes = 4;
// Lanes that never come, as in a branch, leave their rounds open: only so many are kept.
constexpr std::size_t kOpenRounds = 64;

}  // namespace

int extra_passes(const unsigned* addresses, int count, int bytes) {
  const int words = std::max(1, bytes / kBankBytes), lanes = kBanks / words;
  int passes = 0;
  for (int begin = 0; begin < count; begin += lanes) {
    const int end = std::min(count, begin + lanes);
    std::array<int, kBanks> different{};
    int most = 1;
    std::array<unsigned, kBanks> seen;
    int seen_count = 0;
    for (int lane = begin; lane < end; ++lane)
      for (int i = 0; i < words; ++i) {
        const unsigned word = addresses[lane] / kBankBytes + static_cast<unsigned>(i);
        if (std::find(seen.begin(), seen.begin() + seen_count, word) != seen.begin() + seen_count)
          continue;
        seen[static_cast<std::size_t>(seen_count++)] = word;
        most = std::max(most, ++different[word % kBanks]);
      }
    passes += most - 1;
  }
  return passes;
}

int BankCounter::add(int warp, int lane, std::uint32_t site, unsigned address, int bytes) {
  Site& at = sites_[static_cast<std::uint64_t>(warp) << 32 | site];
  const std::uint32_t number = at.made[static_cast<std::size_t>(lane)]++;
  if (number < at.first) return 0;
  while (at.first + at.rounds.size() <= number) at.rounds.emplace_back();
  Round& round = at.rounds[number - at.first];
  round.addresses[static_cast<std::size_t>(lane)] = address;
  if (++round.count < 32) {
    if (at.rounds.size() > kOpenRounds) {
      at.rounds.pop_front();
      ++at.first;
    }
    return 0;
  }
  const int passes = extra_passes(round.addresses.data(), 32, bytes);
  while (!at.rounds.empty() && at.rounds.front().count == 32) {
    at.rounds.pop_front();
    ++at.first;
  }
  return passes;
}

}  // namespace flashwright::emulator
