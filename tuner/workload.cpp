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

double score_deviation(const Config& config) {
  const double plain =
      std::fabs(softmax_scale(config)) * std::sqrt(static_cast<double>(config.head_dim));
  return std::min(plain, config.softcap.value_or(plain));
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
                   std::uint64_t seed, double score_deviation)
    : shape_(shape), backend_(backend), device_index_(device_index) {
  Arguments& h = host_arguments_;
  h.q = make(q_, problem.dtype, {shape.batch, shape.seq_q, shape.heads_q, problem.head_dim},
             seed + 1, true);
  h.k = make(k_, problem.dtype, {shape.batch, shape.seq_kv, shape.heads_kv, problem.head_dim},
             seed + 2, true);
  h.v = make(v_, problem.dtype, {shape.batch, shape.seq_kv, shape.heads_kv, problem.head_dim_v},
             seed + 3, true);
  const bool backward = problem.direction == Direction::backward;
  h.o = make(o_, problem.dtype, {shape.batch, shape.seq_q, shape.heads_q, problem.head_dim_v},
             seed + 4, backward);
  TensorView lse = make(lse_, DType::fp32, {shape.batch, shape.heads_q, shape.seq_q, 1}, 0, false);
  lse.ndim = 3;
  h.lse = lse;
  h.seed = seed;
  outputs_ = {&o_, &lse_};
  if (problem.mask == Mask::Kind::blocks) make_blocks(seed, backward);
  if (problem.alibi) make_slopes();
  if (backward) make_gradients(problem, seed, score_deviation);
  use_device();
  if (h.blocks) copy_blocks(backward);
}

void Workload::make_gradients(const Problem& problem, std::uint64_t seed, double deviation) {
  Arguments& h = host_arguments_;
  h.d_o = make(d_o_, problem.dtype, h.o.shape, seed + 5, true);
  h.dq = make(dq_, problem.dtype, h.q.shape, 0, false);
  h.dk = make(dk_, problem.dtype, h.k.shape, 0, false);
  h.dv = make(dv_, problem.dtype, h.v.shape, 0, false);
  outputs_ = {&dq_, &dk_, &dv_};
  fill_lse(problem, deviation);
}

// About the logarithm of the sum of the exponentials of so many normal scores, so that weights sum to about 1.
void Workload::fill_lse(const Problem& problem, double deviation) {
  const double keys = static_cast<double>(std::max<std::int64_t>(shape_.seq_kv, 1));
  const double largest = std::sqrt(2 * std::log(keys));  // of the scores, in standard deviations
  const double expected =
      deviation < largest ? std::log(keys) + deviation * deviation / 2 : deviation * largest;
  auto* const lse = static_cast<float*>(host_arguments_.lse->data);
  for (std::int64_t i = 0; i < shape_.batch * shape_.heads_q * shape_.seq_q; ++i) {
    double value = expected;
    if (problem.alibi) {
      const std::int64_t h = i / shape_.seq_q % shape_.heads_q, q = i % shape_.seq_q;
      const double slope = static_cast<const float*>(host_arguments_.alibi_slopes->data)[h];
      // Slopes are above 0: the last key gets the most.
      value += std::max(0.0, slope * static_cast<double>(shape_.seq_q - 1 - q));
    }
    lse[i] = static_cast<float>(value);
  }
  backend_.copy_in(device_index_, lse_.device.address(), lse_.host.data(), lse_.host.size());
}

void Workload::use_device() {
  Arguments& d = device_arguments_ = host_arguments_;
  const auto on_device = [&](TensorView& view, const Buffer& buffer) {
    view.data = buffer.device.address();
    view.device = backend_.kind();
    view.device_index = device_index_;
  };
  on_device(d.q, q_);
  on_device(d.k, k_);
  on_device(d.v, v_);
  on_device(d.o, o_);
  on_device(*d.lse, lse_);
  if (d.alibi_slopes) on_device(*d.alibi_slopes, slopes_);
  if (!d.d_o) return;
  on_device(*d.d_o, d_o_);
  on_device(*d.dq, dq_);
  on_device(*d.dk, dk_);
  on_device(*d.dv, dv_);
}

void Workload::copy_blocks(bool by_keys) {
  const auto copy = [&](const auto& values) {
    const std::size_t bytes = values.size() * sizeof values[0];
    void* const memory = mask_memory_.emplace_back(backend_, device_index_, bytes).address();
    backend_.copy_in(device_index_, memory, values.data(), bytes);
    return static_cast<decltype(values.data())>(memory);
  };
  BlockLists& lists = *device_arguments_.blocks;
  lists.full_offsets = copy(mask_.full_offsets);
  lists.full_columns = copy(mask_.full_columns);
  lists.partial_offsets = copy(mask_.partial_offsets);
  lists.partial_columns = copy(mask_.partial_columns);
  lists.partial_bits = copy(mask_.partial_bits);
  if (!by_keys) return;
  lists.full_query_offsets = copy(mask_.full_query_offsets);
  lists.full_query_rows = copy(mask_.full_query_rows);
  lists.partial_query_offsets = copy(mask_.partial_query_offsets);
  lists.partial_query_rows = copy(mask_.partial_query_rows);
  lists.partial_query_places = copy(mask_.partial_query_places);
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
  for (Buffer* buffer : outputs_) {
    std::memset(buffer->host.data(), 0xff, buffer->host.size());  // a NaN in every element type
    backend_.copy_in(device_index_, buffer->device.address(), buffer->host.data(),
                     buffer->host.size());
  }
}

void Workload::fetch_outputs() {
  for (Buffer* buffer : outputs_)
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
