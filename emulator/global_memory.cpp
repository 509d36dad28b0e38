#include "emulator/global_memory.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/dtype.hpp"

namespace flashwright::emulator {
namespace {

// Bits of a byte's state.
constexpr std::uint8_t kElement = 1, kInitialised = 2, kWritable = 4;

std::uint8_t first_state(GlobalMemory::Use use) {
  switch (use) {
    case GlobalMemory::Use::input:
      return kElement | kInitialised;
    case GlobalMemory::Use::sums:
      return kElement | kInitialised | kWritable;
    default:
      return kElement | kWritable;
  }
}

}  // namespace

void GlobalMemory::add(const std::string& name, const TensorView& view, Use use) {
  std::array<std::int64_t, 4> shape = {1, 1, 1, 1}, stride{};
  std::int64_t span = 1;
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.ndim); ++i) {
    shape[i] = view.shape[i];
    stride[i] = view.stride[i];
    span += (shape[i] - 1) * stride[i];
    if (shape[i] == 0) return;
  }
  const std::int64_t bytes = info(view.dtype).bytes;
  Region region{name, reinterpret_cast<std::uintptr_t>(view.data),
                std::vector<std::uint8_t>(static_cast<std::size_t>(span * bytes), 0)};
  for (std::int64_t a = 0; a < shape[0]; ++a)
    for (std::int64_t b = 0; b < shape[1]; ++b)
      for (std::int64_t c = 0; c < shape[2]; ++c)
        for (std::int64_t d = 0; d < shape[3]; ++d) {
          const std::int64_t at = a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3];
          std::fill_n(region.state.begin() + at * bytes, bytes, first_state(use));
        }
  regions_.push_back(std::move(region));
}

void GlobalMemory::add(const std::string& name, const void* data, std::size_t bytes, Use use) {
  if (bytes == 0) return;
  regions_.push_back({name, reinterpret_cast<std::uintptr_t>(data),
                      std::vector<std::uint8_t>(bytes, first_state(use))});
}

std::uint8_t* GlobalMemory::find(const void* address, int bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (Region& region : regions_) {
    const std::size_t size = region.state.size();
    if (at < region.begin || at - region.begin >= size) continue;
    const std::size_t offset = at - region.begin;
    return offset + static_cast<std::size_t>(bytes) > size ? nullptr : &region.state[offset];
  }
  return nullptr;
}

GlobalMemory::Fault GlobalMemory::read(const void* address, int bytes) {
  const std::uint8_t* const state = find(address, bytes);
  if (state == nullptr) return Fault::bounds;
  std::uint8_t all = kElement | kInitialised;
  for (int i = 0; i < bytes; ++i) all &= state[i];
  if ((all & kElement) == 0) return Fault::bounds;
  return (all & kInitialised) == 0 ? Fault::uninitialised : Fault::none;
}

GlobalMemory::Fault GlobalMemory::write(const void* address, int bytes) {
  std::uint8_t* const state = find(address, bytes);
  if (state == nullptr) return Fault::bounds;
  for (int i = 0; i < bytes; ++i)
    if ((state[i] & kWritable) == 0) return Fault::bounds;
  for (int i = 0; i < bytes; ++i) state[i] |= kInitialised;
  return Fault::none;
}

std::string GlobalMemory::place_of(const void* address) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::string best = "in no tensor of the launch";
  std::uintptr_t distance = 1 << 20;
  for (const Region& region : regions_) {
    const std::uintptr_t end = region.begin + region.state.size();
    if (at >= region.begin && at < end)
      return fmt::format("byte {} of {}", at - region.begin, region.name);
    const std::uintptr_t away = at < region.begin ? region.begin - at : at - end;
    if (away >= distance) continue;
    distance = away;
    best = at < region.begin ? fmt::format("{} bytes before {}", away, region.name)
                             : fmt::format("{} bytes behind the end of {}", away, region.name);
  }
  return best;
}

}  // namespace flashwright::emulator
