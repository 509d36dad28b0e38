// Races on shared memory by vector clocks: every thread has a clock of what it knows of each other
// thread, and a barrier joins them. Two accesses to the same bytes, one of them a write, race when
// neither is known to the thread that makes the other. The verdict does not depend on the order in which
// the emulator happened to run the threads.
//
// What runs beside the threads - the copies that complete on one mbarrier, the products of one
// warpgroup - is an agent: it has a number behind those of the threads and a clock, which counts what it
// has completed. Who waits for it takes over that clock.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace flashwright::emulator {

// An access, as others remember it.
struct Access {
  std::uint32_t clock = 0;  // of its thread or agent; 0: there was none
  std::uint32_t site = 0;
  std::uint16_t thread = 0;
};

// What is known of each thread and agent.
using Clock = std::vector<std::uint32_t>;

class Races {
 public:
  Races() = default;
  Races(int threads, int agents, int bytes);

  // A barrier of `count` threads from `first` on.
  void join(int first, int count);

  // Hands on what `thread` knows, and takes over what was handed on. An empty clock knows nothing.
  void release(int thread, Clock& into);
  void acquire(int thread, const Clock& from);

  // Each gives an earlier access that races with this one, or null. Addresses count from 0.
  const Access* read(int thread, unsigned address, int bytes, std::uint32_t site);
  const Access* write(int thread, unsigned address, int bytes, std::uint32_t site);
  // An asynchronous copy races with everything between its start and its end, even in its own thread.
  const Access* begin_copy(int thread, unsigned address, int bytes, std::uint32_t site);
  void end_copy(int thread, unsigned address, int bytes);

  // Accesses of an agent race in the same way until they end. A write begins with what `thread` knows,
  // a read with what each of `threads` knows.
  const Access* begin_write(int thread, int agent, unsigned address, int bytes, std::uint32_t site);
  void end_write(int agent, unsigned address, int bytes);
  const Access* begin_read(std::span<const int> threads, int agent, unsigned address, int bytes,
                           std::uint32_t site);
  void end_read(int agent, unsigned address, int bytes);
  // What ended so far is handed on.
  void release_agent(int agent, Clock& into);

  // What a thread or an agent does now; whether a thread knows all of a clock; whether one of `count`
  // threads from `first` on knows that an access is done.
  Access now(int slot) const;
  bool knows_all(int thread, const Clock& clock) const;
  bool known_to_some(int first, int count, const Access& access) const;

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
    return access.clock <= clocks_[static_cast<std::size_t>(thread) * slots_ + access.thread];
  }
  std::uint32_t own(int thread) const {
    return clocks_[static_cast<std::size_t>(thread) * slots_ + static_cast<std::size_t>(thread)];
  }
  const Access* read(int thread, Cell& cell, std::uint32_t site);
  const Access* write(int thread, Cell& cell, const Access& mine);
  void remember(int thread, Cell& cell, const Access& mine);
  template <typename Visit>
  void each_cell(unsigned address, int bytes, Visit&& visit);

  std::size_t threads_ = 0, slots_ = 0;   // a slot is a thread or an agent
  std::vector<std::uint32_t> clocks_;     // [thread][of slot]
  std::vector<std::uint32_t> completed_;  // clocks of the agents
  std::vector<Granule> granules_;
  Access found_;  // what was returned
};

}  // namespace flashwright::emulator
