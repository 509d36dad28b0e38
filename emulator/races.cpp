#include "emulator/races.hpp"

#include <algorithm>
#include <limits>

namespace flashwright::emulator {
namespace {

constexpr std::uint32_t kInFlight = std::numeric_limits<std::uint32_t>::max();

}  // namespace

Races::Races(int threads, int agents, int bytes)
    : threads_(static_cast<std::size_t>(threads)),
      slots_(static_cast<std::size_t>(threads + agents)),
      clocks_(threads_ * slots_, 0),
      completed_(static_cast<std::size_t>(agents), 0),
      granules_(static_cast<std::size_t>(bytes + 15) / 16) {
  for (std::size_t i = 0; i < threads_; ++i) clocks_[i * slots_ + i] = 1;
}

void Races::join(int first, int count) {
  Clock all(slots_, 0);
  for (int i = first; i < first + count; ++i) release(i, all);
  for (int i = first; i < first + count; ++i) acquire(i, all);
}

void Races::release(int thread, Clock& into) {
  const auto row = static_cast<std::size_t>(thread);
  into.resize(slots_, 0);
  for (std::size_t j = 0; j < slots_; ++j) into[j] = std::max(into[j], clocks_[row * slots_ + j]);
  ++clocks_[row * slots_ + row];
}

void Races::acquire(int thread, const Clock& from) {
  std::uint32_t* const mine = &clocks_[static_cast<std::size_t>(thread) * slots_];
  for (std::size_t j = 0; j < from.size(); ++j) mine[j] = std::max(mine[j], from[j]);
}

template <typename Visit>
void Races::each_cell(unsigned address, int bytes, Visit&& visit) {
  Granule& granule = granules_[address / 16];
  if (bytes == 16 && granule.whole) {
    visit(granule.cells[0]);
    return;
  }
  if (granule.whole) {
    for (std::size_t i = 1; i < granule.cells.size(); ++i) granule.cells[i] = granule.cells[0];
    granule.whole = false;
  }
  const unsigned first = address % 16 / 2;
  for (unsigned i = first; i < first + static_cast<unsigned>(bytes) / 2; ++i)
    visit(granule.cells[i]);
}

// A reader that this one knows of is represented by it: whoever knows this one knows the other.
void Races::remember(int thread, Cell& cell, const Access& mine) {
  for (int i = 0; i < cell.count; ++i)
    if (Access& other = cell.reads[static_cast<std::size_t>(i)];
        other.thread == mine.thread || (mine.clock != kInFlight && knows(thread, other))) {
      if (other.clock != kInFlight) other = mine;
      return;
    }
  if (cell.count < kReaders) {
    cell.reads[static_cast<std::size_t>(cell.count++)] = mine;
    return;
  }
  // One that is still reading is kept as long as there are others.
  for (int tries = 1; tries < kReaders; ++tries) {
    if (cell.reads[static_cast<std::size_t>(cell.next)].clock != kInFlight) break;
    cell.next = (cell.next + 1) % kReaders;
  }
  cell.reads[static_cast<std::size_t>(cell.next)] = mine;
  cell.next = (cell.next + 1) % kReaders;
}

const Access* Races::read(int thread, Cell& cell, std::uint32_t site) {
  const Access* race = nullptr;
  if (!knows(thread, cell.write)) {
    found_ = cell.write;
    race = &found_;
  }
  remember(thread, cell, {own(thread), site, static_cast<std::uint16_t>(thread)});
  return race;
}

const Access* Races::write(int thread, Cell& cell, const Access& mine) {
  const Access* race = nullptr;
  const auto check = [&](const Access& access) {
    if (race != nullptr || knows(thread, access)) return;
    found_ = access;
    race = &found_;
  };
  check(cell.write);
  for (int i = 0; i < cell.count; ++i) check(cell.reads[static_cast<std::size_t>(i)]);
  cell.write = mine;
  cell.count = cell.next = 0;
  return race;
}

const Access* Races::read(int thread, unsigned address, int bytes, std::uint32_t site) {
  const Access* race = nullptr;
  each_cell(address, bytes, [&](Cell& cell) {
    if (const Access* const found = read(thread, cell, site)) race = found;
  });
  return race;
}

const Access* Races::write(int thread, unsigned address, int bytes, std::uint32_t site) {
  const Access* race = nullptr;
  each_cell(address, bytes, [&](Cell& cell) {
    if (const Access* const found =
            write(thread, cell, {own(thread), site, static_cast<std::uint16_t>(thread)}))
      race = found;
  });
  if (bytes == 16) granules_[address / 16].whole = true;
  return race;
}

const Access* Races::begin_copy(int thread, unsigned address, int bytes, std::uint32_t site) {
  return begin_write(thread, thread, address, bytes, site);
}

void Races::end_copy(int thread, unsigned address, int bytes) {
  each_cell(address, bytes, [&](Cell& cell) {
    if (cell.write.thread == thread && cell.write.clock == kInFlight)
      cell.write.clock = own(thread);
  });
}

const Access* Races::begin_write(int thread, int agent, unsigned address, int bytes,
                                 std::uint32_t site) {
  const Access* race = nullptr;
  each_cell(address, bytes, [&](Cell& cell) {
    if (const Access* const found =
            write(thread, cell, {kInFlight, site, static_cast<std::uint16_t>(agent)}))
      race = found;
  });
  if (bytes == 16) granules_[address / 16].whole = true;
  return race;
}

void Races::end_write(int agent, unsigned address, int bytes) {
  each_cell(address, bytes, [&](Cell& cell) {
    if (cell.write.thread == agent && cell.write.clock == kInFlight)
      cell.write.clock = completed_[static_cast<std::size_t>(agent) - threads_] + 1;
  });
}

const Access* Races::begin_read(std::span<const int> threads, int agent, unsigned address,
                                int bytes, std::uint32_t site) {
  const Access* race = nullptr;
  each_cell(address, bytes, [&](Cell& cell) {
    for (const int thread : threads)
      if (race == nullptr && !knows(thread, cell.write)) {
        found_ = cell.write;
        race = &found_;
      }
    remember(threads[0], cell, {kInFlight, site, static_cast<std::uint16_t>(agent)});
  });
  return race;
}

// A thread can be the agent of reads of its own.
void Races::end_read(int agent, unsigned address, int bytes) {
  const auto slot = static_cast<std::size_t>(agent);
  const std::uint32_t clock = slot < threads_ ? own(agent) : completed_[slot - threads_] + 1;
  each_cell(address, bytes, [&](Cell& cell) {
    for (int i = 0; i < cell.count; ++i)
      if (Access& access = cell.reads[static_cast<std::size_t>(i)];
          access.thread == agent && access.clock == kInFlight)
        access.clock = clock;
  });
}

void Races::release_agent(int agent, Clock& into) {
  const auto slot = static_cast<std::size_t>(agent);
  into.resize(slots_, 0);
  into[slot] = ++completed_[slot - threads_];
}

Access Races::now(int slot) const {
  const auto at = static_cast<std::size_t>(slot);
  return {at < threads_ ? own(slot) : completed_[at - threads_], 0,
          static_cast<std::uint16_t>(slot)};
}

bool Races::knows_all(int thread, const Clock& clock) const {
  const std::uint32_t* const mine = &clocks_[static_cast<std::size_t>(thread) * slots_];
  for (std::size_t j = 0; j < clock.size(); ++j)
    if (clock[j] > mine[j]) return false;
  return true;
}

bool Races::known_to_some(int first, int count, const Access& access) const {
  for (int thread = first; thread < first + count; ++thread)
    if (knows(thread, access)) return true;
  return false;
}

}  // namespace flashwright::emulator
