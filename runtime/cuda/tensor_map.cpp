#include "runtime/cuda/tensor_map.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"

namespace flashwright::cuda {
namespace {

// Values of enums in cuda.h: CUtensorMapDataType, ...Swizzle and so on.
constexpr int kInterleaveNone = 0, kPromoteTo256Bytes = 3, kFillWithZeros = 0;

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
      kPromoteTo256Bytes, kFillWithZeros);
  check(driver, result, "cuTensorMapEncodeTiled");
}

}  // namespace flashwright::cuda
