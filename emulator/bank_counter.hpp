// Bank conflicts of scalar accesses to shared memory. The lanes of a warp reach an instruction one by one
// here, so the n-th access of each lane at a place counts as one access of the warp.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <unordered_map>

namespace flashwright::emulator {

// Passes over the 32 banks of 4 bytes beyond those that `count` accesses of `bytes` need: a pass serves
// 128 bytes, of 32, 16 or 8 lanes, and equal words once.
int extra_passes(const unsigned* addresses, int count, int bytes);

class BankCounter {
 public:
  // Notes an access of a lane; gives the extra passes when it was the last of its warp, else 0.
  int add(int warp, int lane, std::uint32_t site, unsigned address, int bytes);
  void clear() { sites_.clear(); }

 private:
  struct Round {
    std::array<unsigned, 32> addresses;
    int count = 0;
  };
  struct Site {
    std::array<std::uint32_t, 32> made{};  // accesses of each lane
    std::uint32_t first = 0;               // the number of the front round
    std::deque<Round> rounds;
  };
  std::unordered_map<std::uint64_t, Site> sites_;  // by warp and site
};

}  // namespace flashwright::emulator
