// Races on shared memory by vector clocks: every thread has a clock of what it knows of each other
// thread, and a barrier joins them. Two accesses to the same bytes, one of them a write, race when
// neither is known to the thread that makes the other. The verdict does not depend on the order in which
// the emulator happened to run the threads.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace flashwright::emulator {

// An access, as others remember it.
struct Access {
  std::uint32_t clock = 0;  // of its thread; 0: there was none
  std::uint32_t site = 0;
  std::uint16_t thread = 0;
};

class Races {
 public:
  Races() = default;
  Races(int threads, int bytes);

  // A barrier of `count` threads from `first` on.
  void join(int first, int count);

  // Each gives an earlier access that races with this one, or null. Addresses count from 0.
  const Access* read(int thread, unsigned address, int bytes, std::uint32_t site);
  const Access* write(int thread, unsigned address, int bytes, std::uint32_t site);
  // An asynchronous copy races with everything between its start and its end, even in its own thread.
  const Access* begin_copy(int thread, unsigned address, int bytes, std::uint32_t site);
  void end_copy(int thread, unsigned address, int bytes);

 private:
  static constexpr int kReaders = 8;  // remembered for each cell; more push out the oldest
  struct Cell {
    Access write;
    std::array<Access, kReaders> reads;
    int count = 0, next = 0;
  };
  // Sixteen bytes; one cell while all accesses were to all of them, else eight of two bytes.
  struct Granule {
    std::array<Cell, 8> cells;
    bool whole = true;
  };

  bool knows(int thread, const Access& access) const {
    return access.clock <= clocks_[static_cast<std::size_t>(thread) * threads_ + access.thread];
  }
  std::uint32_t own(int thread) const {
    return clocks_[static_cast<std::size_t>(thread) * threads_ + static_cast<std::size_t>(thread)];
  }
  const Access* read(int thread, Cell& cell, std::uint32_t site);
  const Access* write(int thread, Cell& cell, std::uint32_t clock, std::uint32_t site);
  template <typename Visit>
  void each_cell(unsigned address, int bytes, Visit&& visit);

  std::size_t threads_ = 0;
  std::vector<std::uint32_t> clocks_;  // [thread][of thread]
  std::vector<Granule> granules_;
  Access found_;  // what was returned
};

}  // namespace flashwright::emulator
