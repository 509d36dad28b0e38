#include "tuner/workload.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/log.hpp"

namespace flashwright {
namespace {

// splitmix64 (S. Vigna): one well-mixed word for each index.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

void fill_normal(DType dtype, void* elements, std::int64_t count, std::uint64_t seed) {
  const int bytes = info(dtype).bytes;
  auto* out = static_cast<unsigned char*>(elements);
  // Drawing is slow: what follows repeats. An odd period, so that no two rows or tiles are alike.
  constexpr std::int64_t kPeriod = (1 << 20) - 3;
  const std::int64_t drawn = std::min(count, kPeriod);
  // Box and Muller's two normal numbers from two uniform ones.
  for (std::int64_t i = 0; i < drawn; i += 2) {
    const std::uint64_t word = mix(seed * 0xD1342543DE82EF95u + static_cast<std::uint64_t>(i));
    const float u = static_cast<float>((word >> 40) + 1) * 0x1p-24f;
    const float angle =
        static_cast<float>(word & 0xffffff) * (0x1p-24f * 2 * std::numbers::pi_v<float>);
    const float radius = std::sqrt(-2 * std::log(u));
    from_float(dtype, radius * std::cos(angle), out + i * bytes);
    if (i + 1 < drawn) from_float(dtype, radius * std::sin(angle), out + (i + 1) * bytes);
  }
  for (std::int64_t i = drawn; i < count; i += drawn)
    std::memcpy(out + i * bytes, out, static_cast<std::size_t>(std::min(drawn, count - i) * bytes));
}

Shape bounded_shape(const Problem& problem, const Shape& shape, std::int64_t max_elements) {
  Shape out = shape;
  const std::int64_t dim = std::max(problem.head_dim, problem.head_dim_v);
  const auto elements = [&] {
    return std::max(out.batch * out.seq_q * out.heads_q, out.batch * out.seq_kv * out.heads_kv) *
           dim;
  };
  while (elements() > max_elements && out.batch > 1) out.batch = (out.batch + 1) / 2;
  while (elements() > max_elements && out.heads_kv > 1) {
    const std::int64_t group = out.heads_q / out.heads_kv;
    out.heads_kv = (out.heads_kv + 1) / 2;
    out.heads_q = out.heads_kv * group;
  }
  return out;
}

DeviceMemory::DeviceMemory(Backend& backend, int device_index, std::size_t bytes)
    : backend_(&backend),
      device_index_(device_index),
      address_(backend.allocate(device_index, bytes)),
      bytes_(bytes) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(backend_, other.backend_);
  std::swap(device_index_, other.device_index_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void DeviceMemory::release() noexcept {
  if (address_ == nullptr) return;
  try {
    backend_->deallocate(device_index_, address_);
  } catch (const Error& error) {  // a device that has failed keeps its memory
    log(LogLevel::warn, "device memory: " + error.message);
  }
  address_ = nullptr;
  bytes_ = 0;
}

Workload::Workload(const Problem& problem, const Shape& shape, Backend& backend, int device_index,
                   std::uint64_t seed)
    : shape_(shape), backend_(backend), device_index_(device_index) {
  Arguments& h = host_arguments_;
  h.q = make(q_, problem.dtype, {shape.batch, shape.seq_q, shape.heads_q, problem.head_dim},
             seed + 1, true);
  h.k = make(k_, problem.dtype, {shape.batch, shape.seq_kv, shape.heads_kv, problem.head_dim},
             seed + 2, true);
  h.v = make(v_, problem.dtype, {shape.batch, shape.seq_kv, shape.heads_kv, problem.head_dim_v},
             seed + 3, true);
  h.o = make(o_, problem.dtype, {shape.batch, shape.seq_q, shape.heads_q, problem.head_dim_v}, 0,
             false);
  TensorView lse = make(lse_, DType::fp32, {shape.batch, shape.heads_q, shape.seq_q, 1}, 0, false);
  lse.ndim = 3;
  h.lse = lse;
  h.seed = seed;
  if (problem.mask == Mask::Kind::blocks)
    make_blocks(seed, problem.direction == Direction::backward);
  if (problem.alibi) make_slopes();
  device_arguments_ = h;
  const auto on_device = [&](TensorView& view, const Buffer& buffer) {
    view.data = buffer.device.address();
    view.device = backend_.kind();
    view.device_index = device_index_;
  };
  on_device(device_arguments_.q, q_);
  on_device(device_arguments_.k, k_);
  on_device(device_arguments_.v, v_);
  on_device(device_arguments_.o, o_);
  on_device(*device_arguments_.lse, lse_);
  if (h.alibi_slopes) on_device(*device_arguments_.alibi_slopes, slopes_);
  if (!h.blocks) return;
  const auto copy = [&](const auto& values) {
    const std::size_t bytes = values.size() * sizeof values[0];
    void* const memory = mask_memory_.emplace_back(backend_, device_index_, bytes).address();
    backend_.copy_in(device_index_, memory, values.data(), bytes);
    return memory;
  };
  BlockLists& lists = *device_arguments_.blocks;
  lists.full_offsets = static_cast<const std::int32_t*>(copy(mask_.full_offsets));
  lists.full_columns = static_cast<const std::int32_t*>(copy(mask_.full_columns));
  lists.partial_offsets = static_cast<const std::int32_t*>(copy(mask_.partial_offsets));
  lists.partial_columns = static_cast<const std::int32_t*>(copy(mask_.partial_columns));
  lists.partial_bits = static_cast<const std::uint32_t*>(copy(mask_.partial_bits));
  if (problem.direction == Direction::forward) return;
  lists.full_query_offsets = static_cast<const std::int32_t*>(copy(mask_.full_query_offsets));
  lists.full_query_rows = static_cast<const std::int32_t*>(copy(mask_.full_query_rows));
  lists.partial_query_offsets = static_cast<const std::int32_t*>(copy(mask_.partial_query_offsets));
  lists.partial_query_rows = static_cast<const std::int32_t*>(copy(mask_.partial_query_rows));
  lists.partial_query_places = static_cast<const std::int32_t*>(copy(mask_.partial_query_places));
}

TensorView Workload::make(Buffer& buffer, DType dtype, std::array<std::int64_t, 4> extents,
                          std::uint64_t seed, bool random) {
  const std::int64_t count = extents[0] * extents[1] * extents[2] * extents[3];
  buffer.host.resize(static_cast<std::size_t>(count * info(dtype).bytes));
  if (random) fill_normal(dtype, buffer.host.data(), count, seed);
  buffer.device = DeviceMemory(backend_, device_index_, buffer.host.size());
  bytes_ += static_cast<std::int64_t>(buffer.host.size());
  if (random)
    backend_.copy_in(device_index_, buffer.device.address(), buffer.host.data(),
                     buffer.host.size());
  return dense_view(buffer.host.data(), dtype, extents);
}

void Workload::make_slopes() {
  TensorView slopes = make(slopes_, DType::fp32, {1, 1, 1, shape_.heads_q}, 0, false);
  slopes.ndim = 1;
  slopes.shape = {shape_.heads_q, 1, 1, 1};
  slopes.stride = {1, 1, 1, 1};
  for (std::int64_t h = 0; h < shape_.heads_q; ++h)
    static_cast<float*>(slopes.data)[h] =
        std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(shape_.heads_q));
  backend_.copy_in(device_index_, slopes_.device.address(), slopes_.host.data(),
                   slopes_.host.size());
  host_arguments_.alibi_slopes = slopes;
}

void Workload::make_blocks(std::uint64_t seed, bool by_keys) {
  constexpr std::int64_t kBlock = 128;
  BlockLists& l = mask_.lists;
  l.seq_q = shape_.seq_q;
  l.seq_kv = shape_.seq_kv;
  l.block_q = l.block_kv = kBlock;
  mask_.full_offsets.push_back(0);
  mask_.partial_offsets.push_back(0);
  const std::int64_t columns = (shape_.seq_kv + kBlock - 1) / kBlock;
  for (std::int64_t row = 0; row < l.query_blocks(); ++row) {
    for (std::int64_t column = 0; column < columns; ++column)
      if (row == column || mix(seed + static_cast<std::uint64_t>(row * columns + column)) % 4 == 0)
        mask_.full_columns.push_back(static_cast<std::int32_t>(column));
    mask_.full_offsets.push_back(static_cast<std::int32_t>(mask_.full_columns.size()));
    mask_.partial_offsets.push_back(0);
  }
  l.full_offsets = mask_.full_offsets.data();
  l.full_columns = mask_.full_columns.data();
  l.partial_offsets = mask_.partial_offsets.data();
  l.partial_columns = mask_.partial_columns.data();
  l.partial_bits = mask_.partial_bits.data();
  if (by_keys) mask_ = transposed_lists(l);
  host_arguments_.blocks = mask_.lists;
}

void Workload::poison_outputs() {
  for (Buffer* buffer : {&o_, &lse_}) {
    std::memset(buffer->host.data(), 0xff, buffer->host.size());  // a NaN in every element type
    backend_.copy_in(device_index_, buffer->device.address(), buffer->host.data(),
                     buffer->host.size());
  }
}

void Workload::fetch_outputs() {
  for (Buffer* buffer : {&o_, &lse_})
    backend_.copy_out(device_index_, buffer->host.data(), buffer->device.address(),
                      buffer->host.size());
}

void* Workload::workspace(std::size_t bytes) {
  if (bytes > workspace_.bytes()) {
    workspace_.release();  // room for the larger one
    workspace_ = DeviceMemory(backend_, device_index_, bytes);
  }
  return workspace_.address();
}

}  // namespace flashwright
