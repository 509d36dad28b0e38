// Shared and global memory of a block: the rules of every access, and asynchronous copies.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "emulator/machine.hpp"

namespace flashwright::emulator {

std::optional<unsigned> Machine::place_of(unsigned address, int bytes, int alignment, bool remote,
                                          std::uint32_t site, int thread) {
  auto block = static_cast<unsigned>(thread / shape_.threads);
  const unsigned rank = address >> kRemoteShift;
  if (remote && rank != 0 && rank <= static_cast<unsigned>(shape_.cluster)) {
    block = rank - 1;
    address &= (1u << kRemoteShift) - 1;
  }
  if (address % static_cast<unsigned>(alignment) != 0) {
    findings_.add(Kind::shared_alignment, site, [&] {
      return fmt::format("{} uses shared address {} for {} bytes, no multiple of {}: {}",
                         who(thread), static_cast<std::int64_t>(address) - shared_begin_, bytes,
                         alignment, at(site));
    });
    return {};
  }
  const auto size = static_cast<std::size_t>(shape_.smem_bytes);
  if (address >= shared_begin_ && address - shared_begin_ + static_cast<std::size_t>(bytes) <= size)
    return address - shared_begin_ + block * static_cast<unsigned>(shape_.smem_bytes);
  findings_.add(Kind::shared_bounds, site, [&] {
    return fmt::format("{} uses {} bytes at shared address {} of {}: {}", who(thread), bytes,
                       static_cast<std::int64_t>(address) - shared_begin_, size, at(site));
  });
  return {};
}

// Whether what is read has been written, and is not about to be.
void Machine::check_values(unsigned place, int bytes, std::uint32_t site, int thread) {
  for (unsigned i = place; i < place + static_cast<unsigned>(bytes); ++i) {
    if (bytes_[i] == Byte::initialised || bytes_[i] == Byte::barrier) continue;
    const bool flying = bytes_[i] == Byte::in_flight;
    findings_.add(flying ? Kind::copy_in_flight : Kind::shared_uninitialised, site, [&] {
      return fmt::format(
          "{} reads {}, {}: {}", who(thread), address_text(i),
          flying ? "which a copy that was not waited for is writing" : "which nobody has written",
          at(site));
    });
    return;
  }
}

// A barrier is no data.
bool Machine::check_no_barrier(unsigned place, int bytes, std::uint32_t site, int thread) {
  const auto begin = bytes_.begin() + place;
  if (barriers_.empty() || std::find(begin, begin + bytes, Byte::barrier) == begin + bytes)
    return true;
  findings_.add(Kind::barrier_misuse, site, [&] {
    return fmt::format("{} uses {}, where a barrier is, as data: {}", who(thread),
                       address_text(place), at(site));
  });
  return false;
}

void Machine::report_race(const Access* earlier, const char* access, std::uint32_t site, int thread,
                          unsigned place) {
  if (earlier == nullptr) return;
  const Access other = *earlier;
  findings_.add(Kind::race, std::uint64_t{other.site} << 32 | site, [&] {
    const std::string whose = other.thread < threads_.size()
                                  ? fmt::format("thread {}'s ", other.thread % shape_.threads)
                                  : std::string("the asynchronous ");
    return fmt::format("{} {} {} by {}, with no barrier since {}{}", who(thread), access,
                       address_text(place), at(site), whose, at(other.site));
  });
}

void Machine::set_bytes(unsigned place, int bytes, Byte state) {
  std::fill_n(bytes_.begin() + place, bytes, state);
}

// Notes an ordinary write, which TMA and wgmma see only behind a fence of its thread.
void Machine::wrote(unsigned place, int bytes, int thread) {
  set_bytes(place, bytes, Byte::initialised);
  if (unfenced_.empty()) return;
  std::fill_n(unfenced_.begin() + place, bytes, static_cast<std::uint16_t>(thread + 1));
  threads_[static_cast<std::size_t>(thread)].unfenced.emplace_back(place, bytes);
}

void Machine::count_banks(unsigned address, int bytes, std::uint32_t site) {
  if (const int passes = banks_.add(thread_ / 32, thread_ % 32, site, address, bytes); passes > 0)
    add_conflicts(site, passes);
}

void Machine::load_shared(void* value, unsigned address, int bytes, std::uint32_t site,
                          int thread) {
  std::memset(value, 0xff, static_cast<std::size_t>(bytes));
  const std::optional<unsigned> place = place_of(address, bytes, bytes, false, site, thread);
  if (!place || !check_no_barrier(*place, bytes, site, thread)) return;
  check_values(*place, bytes, site, thread);
  if (options_.races)
    report_race(races_.read(thread, *place, bytes, site), "reads", site, thread, *place);
  std::memcpy(value, &shared_[*place], static_cast<std::size_t>(bytes));
}

void Machine::store_shared(unsigned address, const void* value, int bytes, std::uint32_t site,
                           int thread) {
  const std::optional<unsigned> place = place_of(address, bytes, bytes, false, site, thread);
  if (!place || !check_no_barrier(*place, bytes, site, thread)) return;
  if (options_.races)
    report_race(races_.write(thread, *place, bytes, site), "writes", site, thread, *place);
  std::memcpy(&shared_[*place], value, static_cast<std::size_t>(bytes));
  wrote(*place, bytes, thread);
}

bool Machine::check_global(const void* address, int bytes, std::uint32_t site, Use use) {
  if (reinterpret_cast<std::uintptr_t>(address) % static_cast<unsigned>(bytes) == 0)
    return check_range(address, bytes, site, use);
  findings_.add(Kind::global_alignment, site, [&] {
    return fmt::format("{} uses {} bytes at a misaligned address, {}: {}", who(thread_), bytes,
                       memory_.place_of(address), at(site));
  });
  return false;
}

bool Machine::check_range(const void* address, int bytes, std::uint32_t site, Use use) {
  GlobalMemory::Fault fault = GlobalMemory::Fault::none;
  if (use != Use::write) fault = memory_.read(address, bytes);
  if (use != Use::read && fault == GlobalMemory::Fault::none) fault = memory_.write(address, bytes);
  if (fault == GlobalMemory::Fault::none) return true;
  const bool bounds = fault == GlobalMemory::Fault::bounds;
  findings_.add(bounds ? Kind::global_bounds : Kind::global_uninitialised, site, [&] {
    return fmt::format("{} {} {} bytes that {}, {}: {}", who(thread_),
                       use == Use::read ? "reads" : "writes", bytes,
                       !bounds            ? "nobody has written"
                       : use == Use::read ? "are no element of a tensor"
                                          : "are no element of an output",
                       memory_.place_of(address), at(site));
  });
  return false;
}

void Machine::load_global(void* value, const void* address, int bytes, std::uint32_t site) {
  if (check_global(address, bytes, site, Use::read)) {
    std::memcpy(value, address, static_cast<std::size_t>(bytes));
  } else {
    std::memset(value, 0xff, static_cast<std::size_t>(bytes));
  }
}

void Machine::store_global(void* address, const void* value, int bytes, std::uint32_t site) {
  if (check_global(address, bytes, site, Use::write))
    std::memcpy(address, value, static_cast<std::size_t>(bytes));
}

std::uint64_t Machine::compare_and_swap(unsigned long long* address, std::uint64_t expected,
                                        std::uint64_t value, std::uint32_t site) {
  const auto lock = memory_.lock();
  if (!check_global(address, sizeof *address, site, Use::both)) return ~std::uint64_t{0};
  const std::uint64_t old = *address;
  if (old == expected) *address = value;
  return old;
}

std::uint32_t Machine::increment_within(std::uint32_t* address, std::uint32_t last,
                                        std::uint32_t site) {
  const auto lock = memory_.lock();
  if (!check_global(address, sizeof *address, site, Use::both)) return ~std::uint32_t{0};
  const std::uint32_t old = *address;
  *address = old >= last ? 0 : old + 1;
  return old;
}

void Machine::copy_async(unsigned shared, const void* global, bool valid, std::uint32_t site) {
  constexpr int kBytes = 16;
  const std::optional<unsigned> place = place_of(shared, kBytes, kBytes, false, site, thread_);
  if (!place || !check_no_barrier(*place, kBytes, site, thread_)) return;
  if (valid && !check_global(global, kBytes, site, Use::read)) return;
  if (options_.races)
    report_race(races_.begin_copy(thread_, *place, kBytes, site), "starts to write", site, thread_,
                *place);
  // A NaN of every type, until the copy arrives.
  std::memset(&shared_[*place], 0xff, kBytes);
  set_bytes(*place, kBytes, Byte::in_flight);
  Copy copy{*place, valid ? global : nullptr, site, false};
  if (options_.mode == Mode::early || (options_.mode == Mode::random && chance(2))) arrive(copy);
  self().open.push_back(copy);
}

void Machine::arrive(Copy& copy) {
  if (copy.arrived) return;
  copy.arrived = true;
  if (copy.global != nullptr) {
    std::memcpy(&shared_[copy.place], copy.global, 16);
  } else {
    std::memset(&shared_[copy.place], 0, 16);
  }
}

void Machine::commit_copies(std::uint32_t site) {
  count_step(site);
  self().groups.push_back(std::move(self().open));
  self().open.clear();
}

void Machine::complete_oldest(Thread& thread) {
  for (Copy& copy : thread.groups.front()) {
    arrive(copy);
    wrote(copy.place, 16, thread_);
    if (options_.races) races_.end_copy(thread_, copy.place, 16);
  }
  thread.groups.pop_front();
}

void Machine::wait_copies(int pending, std::uint32_t site) {
  count_step(site);
  while (static_cast<int>(self().groups.size()) > pending) complete_oldest(self());
  if (options_.mode != Mode::random) return;
  for (std::vector<Copy>& group : self().groups)
    for (Copy& copy : group)
      if (chance(4)) arrive(copy);
}

}  // namespace flashwright::emulator
