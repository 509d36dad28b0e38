#include "core/dtype.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace flashwright {
namespace {

constexpr std::array<DTypeInfo, 3> kTable = {{
    {DType::fp16, "fp16", 2, 10, 2, "u16"},
    {DType::bf16, "bf16", 2, 7, 4, "u16"},
    {DType::fp32, "fp32", 4, 23, 2, "float"},
}};

}  // namespace

const DTypeInfo& info(DType dtype) { return kTable[static_cast<std::size_t>(dtype)]; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DTypeInfo& row : kTable)
    if (name == row.name) return row.id;
  return std::nullopt;
}

const char* dtype_names() { return "fp16, bf16, fp32"; }

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN stays NaN, quiet
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude <
      0x38800000u) {  // subnormal: adding 0.5 lets the adder round to multiples of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float bfloat_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t float_to_bfloat(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float to_float(DType dtype, const void* element) {
  if (dtype == DType::fp32) {
    float value;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, element, sizeof bits);
  return dtype == DType::fp16 ? half_to_float(bits) : bfloat_to_float(bits);
}

void from_float(DType dtype, float value, void* element) {
  if (dtype == DType::fp32) {
    std::memcpy(element, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = dtype == DType::fp16 ? float_to_half(value) : float_to_bfloat(value);
  std::memcpy(element, &bits, sizeof bits);
}

double round_to(DType dtype, double value) {
  const float single = static_cast<float>(value);
  switch (dtype) {
    case DType::fp16:
      return half_to_float(float_to_half(single));
    case DType::bf16:
      return bfloat_to_float(float_to_bfloat(single));
    case DType::fp32:
      return single;
  }
  return value;
}

double ulp(DType dtype, double value) {
  const double magnitude = std::fabs(value);
  if (magnitude == 0 || !std::isfinite(magnitude)) return 0x1p-24;
  return std::ldexp(1.0, std::ilogb(magnitude) - info(dtype).mantissa_bits);
}

}  // namespace flashwright
