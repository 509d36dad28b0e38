#include "emulator/races.hpp"

#include <algorithm>
#include <limits>

namespace flashwright::emulator {
namespace {

constexpr std::uint32_t kInFlight = std::numeric_limits<std::uint32_t>::max();

}  // namespace

Races::Races(int threads, int bytes)
    : threads_(static_cast<std::size_t>(threads)),
      clocks_(threads_ * threads_, 0),
      granules_(static_cast<std::size_t>(bytes + 15) / 16) {
  for (std::size_t i = 0; i < threads_; ++i) clocks_[i * threads_ + i] = 1;
}

void Races::join(int first, int count) {
  const auto begin = static_cast<std::size_t>(first), members = static_cast<std::size_t>(count);
  std::vector<std::uint32_t> all(threads_, 0);
  for (std::size_t i = begin; i < begin + members; ++i)
    for (std::size_t j = 0; j < threads_; ++j) all[j] = std::max(all[j], clocks_[i * threads_ + j]);
  for (std::size_t i = begin; i < begin + members; ++i) {
    std::copy(all.begin(), all.end(), clocks_.begin() + static_cast<std::ptrdiff_t>(i * threads_));
    ++clocks_[i * threads_ + i];
  }
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

const Access* Races::read(int thread, Cell& cell, std::uint32_t site) {
  const Access* race = nullptr;
  if (!knows(thread, cell.write)) {
    found_ = cell.write;
    race = &found_;
  }
  const Access mine{own(thread), site, static_cast<std::uint16_t>(thread)};
  // A reader that this one knows of is represented by it: whoever knows this one knows the other.
  for (int i = 0; i < cell.count; ++i)
    if (knows(thread, cell.reads[static_cast<std::size_t>(i)])) {
      cell.reads[static_cast<std::size_t>(i)] = mine;
      return race;
    }
  if (cell.count < kReaders) {
    cell.reads[static_cast<std::size_t>(cell.count++)] = mine;
  } else {
    cell.reads[static_cast<std::size_t>(cell.next)] = mine;
    cell.next = (cell.next + 1) % kReaders;
  }
  return race;
}

const Access* Races::write(int thread, Cell& cell, std::uint32_t clock, std::uint32_t site) {
  const Access* race = nullptr;
  const auto check = [&](const Access& access) {
    if (race != nullptr || knows(thread, access)) return;
    found_ = access;
    race = &found_;
  };
  check(cell.write);
  for (int i = 0; i < cell.count; ++i) check(cell.reads[static_cast<std::size_t>(i)]);
  cell.write = {clock, site, static_cast<std::uint16_t>(thread)};
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
    if (const Access* const found = write(thread, cell, own(thread), site)) race = found;
  });
  if (bytes == 16) granules_[address / 16].whole = true;
  return race;
}

const Access* Races::begin_copy(int thread, unsigned address, int bytes, std::uint32_t site) {
  const Access* race = nullptr;
  each_cell(address, bytes, [&](Cell& cell) {
    if (const Access* const found = write(thread, cell, kInFlight, site)) race = found;
  });
  if (bytes == 16) granules_[address / 16].whole = true;
  return race;
}

void Races::end_copy(int thread, unsigned address, int bytes) {
  each_cell(address, bytes, [&](Cell& cell) {
    if (cell.write.thread == thread && cell.write.clock == kInFlight)
      cell.write.clock = own(thread);
  });
}

}  // namespace flashwright::emulator
