// The rule that the conversions are held against: the value of a code from its three fields, and the nearest code
// found by searching all of them.
#include "core/dtype.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <random>

#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

struct Format {
  const char* name;
  int exponent_bits, mantissa_bits;
  float (*decode)(std::uint16_t);
  std::uint16_t (*encode)(float);
  int infinity() const { return ((1 << exponent_bits) - 1) << mantissa_bits; }
};
constexpr std::array<Format, 2> kFormats = {{{"fp16", 5, 10, &half_to_float, &float_to_half},
                                             {"bf16", 8, 7, &bfloat_to_float, &float_to_bfloat}}};

// Of a code without its sign. The code of infinity counts as the number that would come next.
double value_of(const Format& f, int code) {
  const int exponent = code >> f.mantissa_bits, mantissa = code & ((1 << f.mantissa_bits) - 1);
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  if (exponent == 0) return std::ldexp(mantissa, 1 - bias - f.mantissa_bits);
  return std::ldexp(mantissa + (1 << f.mantissa_bits), exponent - bias - f.mantissa_bits);
}

// The code nearest to a magnitude, the even one of two that are equally near.
int nearest_code(const Format& f, double magnitude) {
  int below = 0, above = f.infinity();
  if (magnitude >= value_of(f, above)) return above;
  while (above - below > 1) {
    const int middle = (below + above) / 2;
    (value_of(f, middle) <= magnitude ? below : above) = middle;
  }
  const double down = magnitude - value_of(f, below), up = value_of(f, above) - magnitude;
  if (down != up) return down < up ? below : above;
  return below % 2 == 0 ? below : above;
}

bool encodes_to_nearest(const Format& f, float value) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const int code = f.encode(value);
  if (std::isnan(value)) return (code & 0x7fff) > f.infinity() && (code & 0x8000) == sign;
  return code == (sign | nearest_code(f, std::fabs(static_cast<double>(value))));
}

}  // namespace

TEST_CASE("every code of fp16 and bf16 is read as the number it stands for") {
  for (const Format& f : kFormats) {
    INFO(f.name);
    int wrong = 0;
    for (int code = 0; code < 0x10000; ++code) {
      const float value = f.decode(static_cast<std::uint16_t>(code));
      const int magnitude = code & 0x7fff;
      if (std::signbit(value) != (code >= 0x8000)) ++wrong;
      if (magnitude > f.infinity()) {
        wrong += !std::isnan(value);
      } else if (magnitude == f.infinity()) {
        wrong += !std::isinf(value);
      } else {
        wrong += std::fabs(static_cast<double>(value)) != value_of(f, magnitude);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("every code of fp16 and bf16 survives the way to a float and back") {
  for (const Format& f : kFormats) {
    INFO(f.name);
    int changed = 0;
    for (int code = 0; code < 0x10000; ++code) {
      const int back = f.encode(f.decode(static_cast<std::uint16_t>(code)));
      const bool nan = (code & 0x7fff) > f.infinity();
      changed += nan ? (back & 0x7fff) <= f.infinity() : back != code;
    }
    CHECK(changed == 0);
  }
}

TEST_CASE(
    "floats at, just below and just above the middle of two codes round to the nearest, ties to "
    "even") {
  for (const Format& f : kFormats) {
    INFO(f.name);
    int wrong = 0;
    for (int code = 0; code < f.infinity(); ++code) {
      const auto middle = static_cast<float>((value_of(f, code) + value_of(f, code + 1)) / 2);
      for (const float value :
           {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, INFINITY)})
        for (const float sign : {1.0f, -1.0f}) wrong += !encodes_to_nearest(f, sign * value);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("random floats round to the nearest code") {
  std::mt19937_64 random(test_seed());
  for (const Format& f : kFormats) {
    INFO(f.name);
    int wrong = 0;
    for (int i = 0; i < 400000; ++i) {
      // Half of them over all bit patterns, half in the range of both types.
      const auto bits = static_cast<std::uint32_t>(random());
      const float any = std::bit_cast<float>(bits);
      const float near = std::ldexp(static_cast<float>(bits & 0xffffff) - 0x800000,
                                    static_cast<int>(bits >> 24) % 48 - 48);
      wrong += !encodes_to_nearest(f, i % 2 == 0 ? any : near);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("the table of types agrees with the conversions") {
  for (const DType dtype : {DType::fp16, DType::bf16, DType::fp32}) {
    const DTypeInfo& row = info(dtype);
    CHECK(row.id == dtype);
    CHECK(std::string(row.name) == to_string(dtype));
    CHECK(parse_dtype(row.name) == dtype);
    CHECK(contains(dtype_names(), row.name));
    for (const float value : {0.0f, 1.0f, -1.2345678f, 3e-6f, 70000.0f, -INFINITY}) {
      unsigned char element[4] = {};
      from_float(dtype, value, element);
      CHECK(static_cast<double>(to_float(dtype, element)) == round_to(dtype, value));
    }
    // The next number after 1 is one unit away, and half a unit is lost to the even neighbour.
    CHECK(ulp(dtype, 1.0) == std::ldexp(1.0, -row.mantissa_bits));
    CHECK(ulp(dtype, -1.9) == ulp(dtype, 1.0));
    CHECK(ulp(dtype, 2.0) == 2 * ulp(dtype, 1.0));
    CHECK(round_to(dtype, 1 + ulp(dtype, 1.0)) == 1 + ulp(dtype, 1.0));
    CHECK(round_to(dtype, 1 + ulp(dtype, 1.0) / 2) == 1);
    CHECK(ulp(dtype, 0) == std::ldexp(1.0, -24));
  }
  CHECK(!parse_dtype("fp64"));
  CHECK(!parse_dtype(""));
}
