#include "cli/device_memory.hpp"

#include <cstring>
#include <utility>

namespace cli {

using flashwright::check;
using flashwright::DType;

DeviceMemory::DeviceMemory(const Place& place, std::size_t bytes) : place_(place), bytes_(bytes) {
  if (bytes > 0) check(flashwright_allocate(place_.engine, place_.name(), bytes, &memory_));
}

DeviceMemory::~DeviceMemory() {
  // What fails here has failed before, and said so.
  if (memory_ != nullptr) (void)flashwright_deallocate(place_.engine, place_.name(), memory_);
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(place_, other.place_);
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void DeviceMemory::copy_in(const void* host) const {
  if (bytes_ > 0)
    check(flashwright_copy_to_device(place_.engine, place_.name(), memory_, host, bytes_));
}

void DeviceMemory::copy_out(void* host) const {
  if (bytes_ > 0)
    check(flashwright_copy_to_host(place_.engine, place_.name(), host, memory_, bytes_));
}

std::size_t Tensor::elements() const {
  std::size_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
  return count;
}

void Tensor::allocate() {
  host = HostBuffer(elements() * bytes_of(dtype));
  std::memset(host.data(), 0xff, host.size());
}

void Tensor::to_device(const Place& place) {
  if (place.on_host) return;
  device = DeviceMemory(place, host.size());
  device.copy_in(host.data());
}

void Tensor::from_device(const Place& place) {
  if (!place.on_host) device.copy_out(host.data());
}

flashwright_tensor Tensor::host_view() {
  flashwright_tensor view{};
  view.data = host.data();
  view.device_type = 1;
  view.ndim = static_cast<std::int32_t>(shape.size());
  view.type_code = dtype == DType::bf16 ? 4 : 2;
  view.type_bits = static_cast<std::uint8_t>(8 * bytes_of(dtype));
  view.type_lanes = 1;
  view.shape = shape.data();
  return view;
}

flashwright_tensor Tensor::view(const Place& place) {
  flashwright_tensor out = host_view();
  if (place.on_host) return out;
  out.data = device.get();
  out.device_type = 2;
  out.device_id = place.device_index;
  return out;
}

PlacedBlocks::PlacedBlocks(const Place& place, const flashwright_blocks& host) : view_(host) {
  if (place.on_host) return;
  const auto copy = [&](const auto* data, std::int64_t count) {
    memory_.emplace_back(place, static_cast<std::size_t>(count) * sizeof *data);
    memory_.back().copy_in(data);
    return static_cast<decltype(data)>(memory_.back().get());
  };
  const std::int64_t rows =
      host.batch * host.heads * ((host.seq_q + host.block_q - 1) / host.block_q);
  const std::int64_t words = (host.block_kv + 31) / 32;
  view_.full_offsets = copy(host.full_offsets, rows + 1);
  view_.full_columns = copy(host.full_columns, host.full_offsets[rows]);
  view_.partial_offsets = copy(host.partial_offsets, rows + 1);
  view_.partial_columns = copy(host.partial_columns, host.partial_offsets[rows]);
  view_.partial_bits = copy(host.partial_bits, host.partial_offsets[rows] * host.block_q * words);
  if (host.full_query_offsets == nullptr) return;
  const std::int64_t columns =
      host.batch * host.heads * ((host.seq_kv + host.block_kv - 1) / host.block_kv);
  view_.full_query_offsets = copy(host.full_query_offsets, columns + 1);
  view_.full_query_rows = copy(host.full_query_rows, host.full_query_offsets[columns]);
  view_.partial_query_offsets = copy(host.partial_query_offsets, columns + 1);
  const std::int64_t partial = host.partial_query_offsets[columns];
  view_.partial_query_rows = copy(host.partial_query_rows, partial);
  view_.partial_query_places = copy(host.partial_query_places, partial);
}

}  // namespace cli
