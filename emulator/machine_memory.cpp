// Shared and global memory of a block: the rules of every access, and asynchronous copies.
#include <fmt/format.h>

#include <cstring>

#include "emulator/machine.hpp"

namespace flashwright::emulator {

bool Machine::check_shared(unsigned address, int bytes, std::uint32_t site, int thread) {
  if (address % static_cast<unsigned>(bytes) != 0) {
    findings_.add(Kind::shared_alignment, site, [&] {
      return fmt::format("{} uses shared address {} for {} bytes: {}", who(thread),
                         static_cast<std::int64_t>(address) - kSharedBegin, bytes, at(site));
    });
    return false;
  }
  if (address >= kSharedBegin &&
      address - kSharedBegin + static_cast<std::size_t>(bytes) <= shared_.size())
    return true;
  findings_.add(Kind::shared_bounds, site, [&] {
    return fmt::format("{} uses {} bytes at shared address {} of {}: {}", who(thread), bytes,
                       static_cast<std::int64_t>(address) - kSharedBegin, shared_.size(), at(site));
  });
  return false;
}

// Whether what is read has been written, and is not about to be.
void Machine::check_values(unsigned offset, int bytes, std::uint32_t site, int thread) {
  for (unsigned i = offset; i < offset + static_cast<unsigned>(bytes); ++i) {
    if (bytes_[i] == Byte::initialised) continue;
    const bool flying = bytes_[i] == Byte::in_flight;
    findings_.add(flying ? Kind::copy_in_flight : Kind::shared_uninitialised, site, [&] {
      return fmt::format(
          "{} reads shared address {}, {}: {}", who(thread), i,
          flying ? "which a copy that was not waited for is writing" : "which nobody has written",
          at(site));
    });
    return;
  }
}

void Machine::report_race(const Access* earlier, const char* access, std::uint32_t site, int thread,
                          unsigned address) {
  if (earlier == nullptr) return;
  const Access other = *earlier;
  findings_.add(Kind::race, std::uint64_t{other.site} << 32 | site, [&] {
    return fmt::format("{} {} shared address {} by {}, with no barrier since thread {}'s {}",
                       who(thread), access, address, at(site), other.thread, at(other.site));
  });
}

void Machine::load_shared(void* value, unsigned address, int bytes, std::uint32_t site,
                          int thread) {
  std::memset(value, 0xff, static_cast<std::size_t>(bytes));
  if (!check_shared(address, bytes, site, thread)) return;
  const unsigned offset = address - kSharedBegin;
  check_values(offset, bytes, site, thread);
  if (options_.races)
    report_race(races_.read(thread, offset, bytes, site), "reads", site, thread, offset);
  std::memcpy(value, &shared_[offset], static_cast<std::size_t>(bytes));
}

void Machine::store_shared(unsigned address, const void* value, int bytes, std::uint32_t site) {
  if (!check_shared(address, bytes, site, thread_)) return;
  const unsigned offset = address - kSharedBegin;
  if (options_.races)
    report_race(races_.write(thread_, offset, bytes, site), "writes", site, thread_, offset);
  std::memcpy(&shared_[offset], value, static_cast<std::size_t>(bytes));
  std::fill_n(bytes_.begin() + offset, bytes, Byte::initialised);
}

bool Machine::check_global(const void* address, int bytes, std::uint32_t site, bool write) {
  const char* const verb = write ? "writes" : "reads";
  if (reinterpret_cast<std::uintptr_t>(address) % static_cast<unsigned>(bytes) != 0) {
    findings_.add(Kind::global_alignment, site, [&] {
      return fmt::format("{} {} {} bytes at a misaligned address, {}: {}", who(thread_), verb,
                         bytes, memory_.place_of(address), at(site));
    });
    return false;
  }
  const GlobalMemory::Fault fault =
      write ? memory_.write(address, bytes) : memory_.read(address, bytes);
  if (fault == GlobalMemory::Fault::none) return true;
  const bool bounds = fault == GlobalMemory::Fault::bounds;
  findings_.add(bounds ? Kind::global_bounds : Kind::global_uninitialised, site, [&] {
    return fmt::format("{} {} {} bytes that {}, {}: {}", who(thread_), verb, bytes,
                       !bounds ? "nobody has written"
                       : write ? "are no element of an output"
                               : "are no element of a tensor",
                       memory_.place_of(address), at(site));
  });
  return false;
}

void Machine::load_global(void* value, const void* address, int bytes, std::uint32_t site) {
  if (check_global(address, bytes, site, false)) {
    std::memcpy(value, address, static_cast<std::size_t>(bytes));
  } else {
    std::memset(value, 0xff, static_cast<std::size_t>(bytes));
  }
}

void Machine::store_global(void* address, const void* value, int bytes, std::uint32_t site) {
  if (check_global(address, bytes, site, true))
    std::memcpy(address, value, static_cast<std::size_t>(bytes));
}

void Machine::copy_async(unsigned shared, const void* global, bool valid, std::uint32_t site) {
  constexpr int kBytes = 16;
  if (!check_shared(shared, kBytes, site, thread_)) return;
  if (valid && !check_global(global, kBytes, site, false)) return;
  const unsigned offset = shared - kSharedBegin;
  if (options_.races)
    report_race(races_.begin_copy(thread_, offset, kBytes, site), "starts to write", site, thread_,
                offset);
  // A NaN of every type, until the copy arrives.
  std::memset(&shared_[offset], 0xff, kBytes);
  std::fill_n(bytes_.begin() + offset, kBytes, Byte::in_flight);
  Copy copy{offset, valid ? global : nullptr, site, false};
  if (options_.mode == Mode::early || (options_.mode == Mode::random && random_() % 2 == 0))
    arrive(copy);
  self().open.push_back(copy);
}

void Machine::arrive(Copy& copy) {
  if (copy.arrived) return;
  copy.arrived = true;
  if (copy.global != nullptr) {
    std::memcpy(&shared_[copy.shared], copy.global, 16);
  } else {
    std::memset(&shared_[copy.shared], 0, 16);
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
    std::fill_n(bytes_.begin() + copy.shared, 16, Byte::initialised);
    if (options_.races) races_.end_copy(thread_, copy.shared, 16);
  }
  thread.groups.pop_front();
}

void Machine::wait_copies(int pending, std::uint32_t site) {
  count_step(site);
  while (static_cast<int>(self().groups.size()) > pending) complete_oldest(self());
  if (options_.mode != Mode::random) return;
  for (std::vector<Copy>& group : self().groups)
    for (Copy& copy : group)
      if (random_() % 4 == 0) arrive(copy);
}

}  // namespace flashwright::emulator
