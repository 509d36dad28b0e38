#include "cli/elements.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace cli {
namespace {

using flashwright::DType;

// A binary16 value is (1024 + mantissa) * 2^(exponent - 25), or mantissa * 2^-24 without exponent.
float from_fp16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float value = 0;
  if (exponent == 31) {
    value = mantissa == 0 ? std::numeric_limits<float>::infinity()
                          : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    value = std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

std::uint16_t to_fp16(float value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (magnitude >= 65520.0f)
    return sign | 0x7c00;  // halfway to the first value that does not exist
  // Counted in steps of the type at this magnitude, a value rounds as an integer does. A carry into the
  // next power of two is a carry into the exponent.
  int exponent = magnitude > 0 ? std::ilogb(magnitude) : -15;
  if (exponent < -14) exponent = -15;  // subnormal: the steps are those of 2^-14
  const int step = (exponent < -14 ? -14 : exponent) - 10;
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -step)));
  const int base =
      exponent < -14 ? 0 : (exponent + 14) << 10;  // the leading bit of `steps` adds one more
  return static_cast<std::uint16_t>(sign | (base + steps));
}

float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t to_bf16(float value) {
  if (std::isnan(value)) return static_cast<std::uint16_t>(std::signbit(value) ? 0xffc0 : 0x7fc0);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t odd = bits >> 16 & 1;
  return static_cast<std::uint16_t>((bits + 0x7fff + odd) >> 16);
}

float load(DType type, const void* in, std::size_t i) {
  if (type == DType::fp32) return static_cast<const float*>(in)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(in)[i];
  return type == DType::fp16 ? from_fp16(bits) : from_bf16(bits);
}

}  // namespace

std::size_t bytes_of(DType dtype) { return dtype == DType::fp32 ? 4 : 2; }

void convert(DType from, const void* in, DType to, void* out, std::size_t count) {
  if (from == to) {
    std::memcpy(out, in, count * bytes_of(from));
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const float value = load(from, in, i);
    if (to == DType::fp32) {
      static_cast<float*>(out)[i] = value;
    } else {
      static_cast<std::uint16_t*>(out)[i] = to == DType::fp16 ? to_fp16(value) : to_bf16(value);
    }
  }
}

}  // namespace cli
