// Where threads wait for each other: the barrier of the block, named barriers, mbarriers, clusters, and
// the registers that warpgroups hand over.
#include <fmt/format.h>

#include <algorithm>

#include "emulator/machine.hpp"

namespace flashwright::emulator {

void Machine::synchronize_block(std::uint32_t site) {
  count_step(site);
  Block& block = own_block();
  if (block.at_barrier == 0) block.barrier_site = site;
  if (site != block.barrier_site)
    findings_.add(Kind::divergent_barrier, site, [&] {
      return fmt::format("{} is at {}, while others wait at {}", who(thread_), at(site),
                         at(block.barrier_site));
    });
  if (++block.at_barrier < shape_.threads) return wait_in(State::at_barrier);
  block.at_barrier = 0;
  const int first = block_in_cluster() * shape_.threads;
  if (options_.races) races_.join(first, shape_.threads);
  for (int i = 0; i < shape_.threads; ++i)
    threads_[static_cast<std::size_t>(first + i)].state = State::ready;
  if (options_.mode == Mode::skew) shuffle_priorities();
  maybe_yield();
}

// Counts the thread at a named barrier, whose threads have to agree on how many there are.
Machine::NamedBarrier& Machine::come_to(int number, int threads, std::uint32_t site) {
  const auto wrong = [&](const std::string& why) {
    findings_.add(Kind::divergent_barrier, site,
                  [&] { return fmt::format("{} {}: {}", who(thread_), why, at(site)); });
  };
  const bool exists = number > 0 && number < kNamedBarriers && threads > 0 && threads % 32 == 0 &&
                      threads <= shape_.threads;
  if (!exists) {
    wrong(
        fmt::format("names barrier {} for {} threads; allowed are barriers 1 to {} and whole "
                    "warps, at most {} threads",
                    number, threads, kNamedBarriers - 1, shape_.threads));
    stop();
  }
  NamedBarrier& barrier = own_block().named[static_cast<std::size_t>(number)];
  if (barrier.arrived == 0) {
    barrier.expected = threads;
    barrier.site = site;
    barrier.here.assign(static_cast<std::size_t>(shape_.threads), false);
  }
  if (barrier.expected != threads)
    wrong(fmt::format("expects {} threads at barrier {}, where others expect {}", threads, number,
                      barrier.expected));
  const auto mine = static_cast<std::size_t>(thread_in_block());
  if (barrier.here[mine]) wrong(fmt::format("comes twice to barrier {}", number));
  barrier.here[mine] = true;
  ++barrier.arrived;
  if (options_.races && !races_.knows_all(thread_, barrier.ended))
    wrong(
        fmt::format("comes to barrier {} before it can know that all have come to its last "
                    "meeting, and may be counted there",
                    number));
  if (options_.races) races_.release(thread_, barrier.gathering);
  return barrier;
}

// Everybody has come: those that wait go on.
void Machine::end_named(NamedBarrier& barrier, int number) {
  barrier.arrived = 0;
  barrier.ended = barrier.gathering;
  const int first = block_in_cluster() * shape_.threads;
  for (int i = first; i < first + shape_.threads; ++i) {
    Thread& thread = threads_[static_cast<std::size_t>(i)];
    if (thread.state != State::at_named_barrier || thread.named != number) continue;
    thread.state = State::ready;
    if (options_.races) races_.acquire(i, barrier.gathering);
  }
  if (options_.mode == Mode::skew) shuffle_priorities();
}

void Machine::synchronize_named(int number, int threads, std::uint32_t site) {
  count_step(site);
  NamedBarrier& barrier = come_to(number, threads, site);
  if (barrier.arrived < barrier.expected) {
    self().named = number;
    return wait_in(State::at_named_barrier);
  }
  end_named(barrier, number);
  if (options_.races) races_.acquire(thread_, barrier.gathering);
  maybe_yield();
}

void Machine::arrive_named(int number, int threads, std::uint32_t site) {
  count_step(site);
  NamedBarrier& barrier = come_to(number, threads, site);
  if (barrier.arrived == barrier.expected) end_named(barrier, number);
  maybe_yield();
}

void Machine::synchronize_cluster(std::uint32_t site) {
  count_step(site);
  if (++at_cluster_barrier_ < static_cast<int>(threads_.size()))
    return wait_in(State::at_cluster_barrier);
  at_cluster_barrier_ = 0;
  if (options_.races) races_.join(0, static_cast<int>(threads_.size()));
  for (Thread& thread : threads_) thread.state = State::ready;
  if (options_.mode == Mode::skew) shuffle_priorities();
  maybe_yield();
}

unsigned Machine::address_in_block(unsigned address, unsigned rank, std::uint32_t site) {
  count_step(site);
  if (rank < static_cast<unsigned>(shape_.cluster)) return (rank + 1) << kRemoteShift | address;
  findings_.add(Kind::shared_bounds, site, [&] {
    return fmt::format("{} asks for an address in block {} of a cluster of {}: {}", who(thread_),
                       rank, shape_.cluster, at(site));
  });
  return address;
}

void Machine::misuse(std::uint32_t site, const std::string& text) {
  findings_.add(Kind::barrier_misuse, site,
                [&] { return fmt::format("{} {}: {}", who(thread_), text, at(site)); });
}

void Machine::init_barrier(unsigned address, int count, std::uint32_t site) {
  constexpr int kMostArrivals = (1 << 20) - 1;
  count_step(site);
  const std::optional<unsigned> place = place_of(address, 8, 8, false, site, thread_);
  if (!place) return;
  if (barriers_.contains(*place))
    misuse(site, fmt::format("makes the barrier at {} again", address_text(*place)));
  if (count < 1 || count > kMostArrivals)
    misuse(site,
           fmt::format("makes a barrier for {} arrivals; allowed: 1 to {}", count, kMostArrivals));
  if (options_.races)
    report_race(races_.write(thread_, *place, 8, site), "writes", site, thread_, *place);
  set_bytes(*place, 8, Byte::barrier);
  MemoryBarrier barrier;
  barrier.count = barrier.pending = count;
  barrier.maker = thread_;
  barrier.site = site;
  // Agents of warpgroups come first; with more barriers than agents, some share one.
  const int first = static_cast<int>(warpgroups_.size());
  barrier.agent = static_cast<int>(threads_.size()) + first +
                  static_cast<int>(barriers_.size()) % (kAgents - first);
  barriers_[*place] = barrier;
}

void Machine::publish_barriers(std::uint32_t site) {
  count_step(site);
  for (auto& [place, barrier] : barriers_)
    if (barrier.maker == thread_) barrier.published = true;
}

MemoryBarrier* Machine::barrier_at(unsigned address, bool remote, unsigned& place,
                                   std::uint32_t site) {
  const std::optional<unsigned> found = place_of(address, 8, 8, remote, site, thread_);
  if (!found) return nullptr;
  place = *found;
  const auto at = barriers_.find(place);
  if (at == barriers_.end()) {
    misuse(site, fmt::format("uses {} as a barrier, which nobody has made", address_text(place)));
    return nullptr;
  }
  if (options_.races)
    report_race(races_.read(thread_, place, 8, site), "uses the barrier at", site, thread_, place);
  return &at->second;
}

void Machine::end_phase_if_complete(unsigned place, MemoryBarrier& barrier) {
  if (barrier.pending > 0 || barrier.expected != barrier.delivered) return;
  ++barrier.phase;
  barrier.pending = barrier.count;
  barrier.expected = barrier.delivered = 0;
  barrier.ended = barrier.gathering;
  for (Thread& thread : threads_)
    if (thread.state == State::at_memory_barrier && thread.barrier == place)
      thread.state = State::ready;
}

void Machine::arrive(unsigned address, int bytes, bool remote, std::uint32_t site) {
  constexpr int kMostBytes = (1 << 20) - 1;
  count_step(site);
  unsigned place = 0;
  MemoryBarrier* const barrier = barrier_at(address, remote, place, site);
  if (barrier == nullptr) return;
  const int block = static_cast<int>(place) / std::max(1, shape_.smem_bytes);
  if (block != block_in_cluster()) note_peer(block, thread_, site);
  if (bytes < 0 || bytes > kMostBytes)
    misuse(site, fmt::format("expects {} bytes; allowed: 0 to {}", bytes, kMostBytes));
  barrier->expected += bytes;
  if (barrier->pending == 0) {
    misuse(site, fmt::format("arrives at the barrier at {} once more than its {} times, while its "
                             "phase {} waits for {} bytes",
                             address_text(place), barrier->count, barrier->phase,
                             barrier->expected - barrier->delivered));
    return stop();
  }
  if (options_.races) {
    if (!races_.knows_all(thread_, barrier->ended))
      misuse(site, fmt::format("arrives at the barrier at {} before it can know that phase {} has "
                               "ended, and may be counted there",
                               address_text(place), barrier->phase - 1));
    races_.release(thread_, barrier->gathering);
  }
  --barrier->pending;
  end_phase_if_complete(place, *barrier);
  maybe_yield();
}

void Machine::wait_barrier(unsigned address, unsigned parity, std::uint32_t site) {
  count_step(site);
  unsigned place = 0;
  MemoryBarrier* const barrier = barrier_at(address, false, place, site);
  if (barrier == nullptr) return stop();
  if (parity > 1) {
    misuse(site, fmt::format("waits for parity {}; allowed: 0 and 1", parity));
    return stop();
  }
  while ((barrier->phase & 1) == parity) {
    self().barrier = place;
    self().parity = parity;
    wait_in(State::at_memory_barrier);
  }
  if (options_.races) races_.acquire(thread_, barrier->ended);
  maybe_yield();
}

// A phase whose bytes cannot come any more, or that got too many.
void Machine::report_bytes() {
  for (const auto& [place, barrier] : barriers_) {
    if (barrier.expected == barrier.delivered) continue;
    const unsigned where = place;
    const MemoryBarrier& state = barrier;
    findings_.add(Kind::transaction_bytes, state.site, [&] {
      return fmt::format(
          "the barrier at {} expects {} bytes in phase {}, and copies have brought {}; made by {}",
          address_text(where), state.expected, state.phase, state.delivered, at(state.site));
    });
  }
}

// setmaxnreg: what one warpgroup gives, another can take.
void Machine::set_registers(int registers, bool more, std::uint32_t site) {
  meet_warpgroup(site, nullptr, nullptr);
  Warpgroup& group = warpgroup();
  const auto wrong = [&](const std::string& why) {
    findings_.add(Kind::register_count, site,
                  [&] { return fmt::format("{} {}: {}", who(thread_), why, at(site)); });
  };
  if (registers < 24 || registers > 256 || registers % 8 != 0)
    wrong(fmt::format("asks for {} registers; allowed: multiples of 8 from 24 to 256", registers));
  if (thread_ != warpgroup_begin()) {
    // The first thread speaks for its warpgroup.
    while (group.registers != registers && !stopped_) wait_in(State::at_registers);
    return;
  }
  if (more ? registers < group.registers : registers > group.registers)
    wrong(fmt::format("{} to {} registers, but has {}", more ? "rises" : "goes down", registers,
                      group.registers));
  int& free = own_block().free_registers;
  const int needed = (registers - group.registers) * kWarpgroup;
  while (free < needed) wait_in(State::at_registers);
  free -= needed;
  group.registers = registers;
  const int first = block_in_cluster() * shape_.threads;
  for (int i = first; i < first + shape_.threads; ++i)
    if (threads_[static_cast<std::size_t>(i)].state == State::at_registers)
      threads_[static_cast<std::size_t>(i)].state = State::ready;
}

// Which lane is elected is not for a kernel to know. It is never the first one, so that a kernel that
// means one and names the other is found.
int Machine::elected_lane() const {
  return 1 + static_cast<int>((options_.seed + static_cast<std::uint64_t>(thread_ / 32)) % 31);
}

}  // namespace flashwright::emulator
