#include "runtime/cuda/tensor_map.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"

namespace flashwright::cuda {
namespace {

// Values of enums in cuda.h: CUtensorMapDataType, ...Swizzle and so on.
constexpr int kInterleaveNone = 0, kFillWithZeros = 0;

int type_value(DType dtype) {
  switch (dtype) {
    case DType::fp16:
      return 6;
    case DType::fp32:
      return 7;
    case DType::bf16:
      return 9;
  }
  throw Error(Status::internal, "encode_tensor_map: no such dtype");
}

int swizzle_value(int bytes) { return bytes == 128 ? 3 : bytes == 64 ? 2 : bytes == 32 ? 1 : 0; }

// How much L2 fetches from memory at once: 64, 128 or 256 bytes, the most that no two rows share, as the
// neighbour of a row may be one of another head that is needed much later; or 0, no more than asked for.
int promotion_value(const TensorMapSpec& spec) {
  const std::int64_t row = spec.shape[0] * info(spec.dtype).bytes;
  if (spec.stride_bytes[0] == row) return 3;  // neighbours are of the same head
  auto all = static_cast<std::uint64_t>(row) | reinterpret_cast<std::uintptr_t>(spec.base);
  for (int i = 0; i + 1 < spec.rank; ++i)
    all |= static_cast<std::uint64_t>(spec.stride_bytes[static_cast<std::size_t>(i)]);
  return all % 256 == 0 ? 3 : all % 128 == 0 ? 2 : all % 64 == 0 ? 1 : 0;
}

}  // namespace

void encode_tensor_map(const Driver& driver, const TensorMapSpec& spec, void* map) {
  if (const std::string fault = tensor_map_fault(spec); !fault.empty())
    throw Error(Status::bad_argument, "tensor map: " + fault);
  if (driver.TensorMapEncodeTiled == nullptr)
    throw Error(Status::unavailable,
                "the CUDA driver lacks cuTensorMapEncodeTiled; needed: a driver for CUDA 12.0 or "
                "newer");
  std::array<unsigned long long, TensorMapSpec::kMaxRank> shape{}, strides{};
  std::array<unsigned, TensorMapSpec::kMaxRank> box{}, steps{};
  std::copy(spec.shape.begin(), spec.shape.end(), shape.begin());
  std::copy(spec.stride_bytes.begin(), spec.stride_bytes.end(), strides.begin());
  std::copy(spec.box.begin(), spec.box.end(), box.begin());
  steps.fill(1);
  const Result result = driver.TensorMapEncodeTiled(
      map, type_value(spec.dtype), static_cast<unsigned>(spec.rank), spec.base, shape.data(),
      strides.data(), box.data(), steps.data(), kInterleaveNone, swizzle_value(spec.swizzle),
      promotion_value(spec), kFillWithZeros);
  check(driver, result, "cuTensorMapEncodeTiled");
}

}  // namespace flashwright::cuda
