#include "core/tensor_map.hpp"

#include <fmt/format.h>

namespace flashwright {
namespace {

constexpr std::int64_t kMaxExtent = std::int64_t{1} << 32, kMaxStride = std::int64_t{1} << 40;
constexpr int kMaxBox = 256, kAlignment = 16;

std::string dimension_fault(const TensorMapSpec& spec, int i) {
  const auto at = static_cast<std::size_t>(i);
  if (spec.shape[at] < 1 || spec.shape[at] > kMaxExtent)
    return fmt::format("shape[{}] is {}; allowed: 1 to 2^32", i, spec.shape[at]);
  if (spec.box[at] < 1 || spec.box[at] > kMaxBox)
    return fmt::format("box[{}] is {}; allowed: 1 to {}", i, spec.box[at], kMaxBox);
  if (i == 0) return {};
  const std::int64_t stride = spec.stride_bytes[at - 1];
  if (stride < 0 || stride >= kMaxStride || stride % kAlignment != 0)
    return fmt::format("stride_bytes[{}] is {}; allowed: multiples of {} below 2^40", i - 1, stride,
                       kAlignment);
  return {};
}

}  // namespace

std::string tensor_map_fault(const TensorMapSpec& spec) {
  if (spec.rank < 1 || spec.rank > TensorMapSpec::kMaxRank)
    return fmt::format("rank is {}; allowed: 1 to {}", spec.rank, TensorMapSpec::kMaxRank);
  if (spec.base == nullptr || reinterpret_cast<std::uintptr_t>(spec.base) % kAlignment != 0)
    return fmt::format("base is {}; allowed: multiples of {} other than 0", spec.base, kAlignment);
  if (spec.swizzle != 0 && spec.swizzle != 32 && spec.swizzle != 64 && spec.swizzle != 128)
    return fmt::format("swizzle is {}; allowed: 0, 32, 64, 128", spec.swizzle);
  for (int i = 0; i < spec.rank; ++i)
    if (std::string fault = dimension_fault(spec, i); !fault.empty()) return fault;
  const int row = spec.box[0] * info(spec.dtype).bytes;
  if (row % kAlignment != 0)
    return fmt::format("box[0] is {} bytes; allowed: multiples of {}", row, kAlignment);
  if (spec.swizzle != 0 && row > spec.swizzle)
    return fmt::format("box[0] is {} bytes; allowed with swizzle {}: at most {}", row, spec.swizzle,
                       spec.swizzle);
  return {};
}

std::int64_t box_bytes(const TensorMapSpec& spec) {
  std::int64_t bytes = info(spec.dtype).bytes;
  for (int i = 0; i < spec.rank; ++i) bytes *= spec.box[static_cast<std::size_t>(i)];
  return bytes;
}

}  // namespace flashwright
