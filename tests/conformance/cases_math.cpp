// Arithmetic: math.cuh.
#include <fmt/format.h>

#include <cmath>

#include "tests/conformance/case.hpp"
#include "tests/conformance/values.hpp"

namespace flashwright::conformance {
namespace {

using Words = std::vector<std::uint32_t>;

// A kernel that maps `count` inputs to outputs, one after another.
Case map_case(const std::string& name, const std::string& covers, std::size_t count,
              const std::string& statements) {
  Case c;
  c.group = "math";
  c.name = name;
  c.covers = covers;
  c.threads = 64;
  c.body = fmt::format("for (int i = thread_index(); i < {}; i += kThreads) {{\n{}}}", count,
                       statements);
  return c;
}

Case integers() {
  constexpr std::size_t kCount = 512;
  Case c = map_case("integers", "smaller larger majority", kCount, R"(
  const u32 a = input_word(params, 3 * i), b = input_word(params, 3 * i + 1);
  output_word(params, 3 * i, smaller(static_cast<int>(a), static_cast<int>(b)));
  output_word(params, 3 * i + 1, larger(static_cast<int>(a), static_cast<int>(b)));
  output_word(params, 3 * i + 2, majority(a, b, input_word(params, 3 * i + 2)));
)");
  const Words in = random_words(1, 3 * kCount);
  Words out;
  for (std::size_t i = 0; i < in.size(); i += 3) {
    const bool less = static_cast<std::int32_t>(in[i]) < static_cast<std::int32_t>(in[i + 1]);
    out.push_back(less ? in[i] : in[i + 1]);
    out.push_back(less ? in[i + 1] : in[i]);
    std::uint32_t most = 0;
    for (int bit = 0; bit < 32; ++bit)
      if ((in[i] >> bit & 1u) + (in[i + 1] >> bit & 1u) + (in[i + 2] >> bit & 1u) >= 2)
        most |= 1u << bit;
    out.push_back(most);
  }
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

Case picked_bytes() {
  constexpr std::size_t kCount = 1024;
  Case c = map_case("pick_bytes", "pick_bytes", kCount,
                    "  output_word(params, i, pick_bytes(input_word(params, 3 * i), "
                    "input_word(params, 3 * i + 1), input_word(params, 3 * i + 2)));\n");
  Words in = random_words(2, 3 * kCount), out;
  for (std::uint32_t i = 0; i < 16; ++i) in[3 * i + 2] = i * 0x1111u;  // each choice in each place
  for (std::size_t i = 0; i < in.size(); i += 3) {
    std::uint8_t source[8], picked[4];
    std::memcpy(source, &in[i], 8);
    for (int byte = 0; byte < 4; ++byte) {
      const std::uint32_t choice = in[i + 2] >> 4 * byte & 15u;
      const std::uint8_t value = source[choice % 8];
      picked[byte] = choice < 8 ? value : value >= 0x80 ? 0xff : 0;
    }
    out.push_back(value_at<std::uint32_t>(Bytes(picked, picked + 4), 0));
  }
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

// Operands in threes: all pairs of interesting floats, the third drawn. Those with a NaN in any result,
// or all others.
Words float_operands(bool with_nan) {
  Words values = interesting_floats(), chosen;
  const Words nans = interesting_nans();
  values.insert(values.end(), nans.begin(), nans.end());
  const Words draws = random_words(3, values.size() * values.size());
  std::size_t draw = 0;
  for (const std::uint32_t a : values)
    for (const std::uint32_t b : values) {
      const std::uint32_t word = draws[draw++];
      const std::uint32_t c = word % 4 == 0 ? values[word / 4 % values.size()] : word;
      const float product = float_of(a) * float_of(b);
      const bool nan = is_nan(a) || is_nan(b) || std::isnan(product) ||
                       std::isnan(std::fma(float_of(a), float_of(b), float_of(c)));
      if (nan == with_nan) chosen.insert(chosen.end(), {a, b, c});
    }
  return chosen;
}

std::uint32_t with_one_nan(float value) { return std::isnan(value) ? kNan : bits_of(value); }

// max.f32: a number beats a NaN, and +0 is larger than -0.
std::uint32_t larger_of(std::uint32_t a, std::uint32_t b) {
  if (is_nan(a) && is_nan(b)) return kNan;
  if (is_nan(a)) return b;
  if (is_nan(b)) return a;
  if (float_of(a) == float_of(b)) return (a & 0x80000000u) != 0 ? b : a;
  return float_of(a) > float_of(b) ? a : b;
}

Case float_arithmetic(bool with_nan) {
  const Words in = float_operands(with_nan);
  Case c =
      map_case(with_nan ? "nan_results" : "float_arithmetic",
               "multiply fused_multiply_add larger_float float_bits bits_float", in.size() / 3, R"(
  const float a = input_float(params, 3 * i), b = input_float(params, 3 * i + 1);
  output_float(params, 3 * i, multiply(a, b));
  output_float(params, 3 * i + 1, fused_multiply_add(a, b, input_float(params, 3 * i + 2)));
  output_float(params, 3 * i + 2, larger_float(a, b));
)");
  Words out;
  for (std::size_t i = 0; i < in.size(); i += 3) {
    const float a = float_of(in[i]), b = float_of(in[i + 1]);
    // The product of two floats is exact in a double.
    out.push_back(with_one_nan(static_cast<float>(static_cast<double>(a) * b)));
    out.push_back(with_one_nan(std::fma(a, b, float_of(in[i + 2]))));
    out.push_back(larger_of(in[i], in[i + 1]));
  }
  if (with_nan) c.nan_bytes = 4;
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

Case bits_and_signs() {
  Words in = interesting_floats();
  const Words nans = interesting_nans();
  in.insert(in.end(), nans.begin(), nans.end());
  Case c = map_case("bits_and_signs", "float_bits bits_float magnitude infinity", in.size(), R"(
  const float value = bits_float(input_word(params, i));
  output_word(params, 2 * i, float_bits(value));
  output_word(params, 2 * i + 1, magnitude(value) < infinity() ? 1 : 0);
)");
  Words out;
  for (const std::uint32_t bits : in) {
    out.push_back(bits);
    out.push_back((bits & 0x7fffffffu) < 0x7f800000u ? 1 : 0);
  }
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

Words conversion_inputs() {
  Words in = interesting_floats();
  for (const std::uint32_t word : random_words(4, 400))
    if (!is_nan(word)) in.push_back(word);
  // Numbers around the range of fp16, where a random float seldom falls.
  for (const std::uint32_t word : random_words(5, 400))
    in.push_back(0x32000000u + word % 0x16000000u);
  return in;
}

// Every value beside another one, so that the order of a pair shows.
Case packed(DType dtype, bool nan) {
  Words in = conversion_inputs();
  if (nan) in = interesting_nans();
  const std::size_t count = in.size();
  Case c = map_case(fmt::format("to_element_{}{}", info(dtype).name, nan ? "_nan" : ""),
                    "pack_pair pack_pair_positive to_element", count,
                    fmt::format(R"(
  const float first = input_float(params, i), second = input_float(params, (i * 7 + 3) % {});
  output_word(params, 3 * i, pack_pair(first, second));
  output_word(params, 3 * i + 1, pack_pair_positive(first, second));
  output_word(params, 3 * i + 2, to_element(first));
)",
                                count));
  c.dtype = dtype;
  Words out;
  for (std::size_t i = 0; i < count; ++i) {
    const float one = float_of(in[i]), other = float_of(in[(i * 7 + 3) % count]);
    const std::uint32_t first = encode(dtype, one), second = encode(dtype, other);
    out.push_back(first | second << 16);
    out.push_back((one <= 0 ? 0 : first) | (other <= 0 ? 0 : second) << 16);
    out.push_back(first);
  }
  if (nan) c.nan_bytes = 2;
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

// Every code of a type that is a number, or some of those that are not. A NaN of bf16 is only moved.
Case unpacked(DType dtype, bool nan) {
  Words in, out;
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const double value = decode(dtype, static_cast<std::uint16_t>(code));
    if (std::isnan(value) != nan || (nan && code % 61 > 2)) continue;
    in.push_back(code);
    out.push_back(dtype == DType::bf16 ? code << 16 : with_one_nan(static_cast<float>(value)));
  }
  Case c = map_case(
      fmt::format("to_float_{}{}", info(dtype).name, nan ? "_nan" : ""), "to_float", in.size(),
      "  output_float(params, i, to_float(static_cast<u16>(input_word(params, i))));\n");
  c.dtype = dtype;
  if (nan && dtype == DType::fp16) c.nan_bytes = 4;
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

// The manual does not say what becomes of a NaN. Measured on an H200: its lower 13 bits are cut off, so
// one that has no others becomes an infinity.
Case rounded_tf32(bool nan) {
  const Words in = nan ? interesting_nans() : conversion_inputs();
  Case c =
      map_case(nan ? "round_tf32_nan" : "round_tf32", "round_tf32 to_element to_float", in.size(),
               "  output_word(params, i, round_tf32(to_float(to_element("
               "input_float(params, i)))));\n");
  c.dtype = DType::fp32;
  Words out;
  for (const std::uint32_t bits : in) {
    if (is_nan(bits) || std::isinf(float_of(bits))) {
      out.push_back(bits & 0xffffe000u);
      continue;
    }
    // Ten bits behind the point, halves away from zero; a denormal has fewer.
    int exponent = 0;
    std::frexp(float_of(bits), &exponent);
    const int unit = std::max(exponent, -125) - 11;
    const double value = std::ldexp(std::round(std::ldexp(float_of(bits), -unit)), unit);
    out.push_back(bits_of(static_cast<float>(value)));
  }
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

// 2^-22 is what the manual promises of the device; the emulator's function is nearly exact.
constexpr double kApproximation = 1.25 * 0x1p-22;

Case powers() {
  Words in;
  for (int i = -1280; i <= 1280; ++i) in.push_back(bits_of(static_cast<float>(i) * 0.109375f));
  for (const double value : random_fractions(6, 1000))
    in.push_back(bits_of(static_cast<float>(value * 30)));
  for (const std::uint32_t bits : interesting_floats()) in.push_back(bits);
  Case c = map_case("exp2", "exp2_approx", in.size(),
                    "  output_float(params, i, exp2_approx(input_float(params, i)));\n");
  Words out;
  for (const std::uint32_t bits : in) {
    const double exact = std::exp2(static_cast<double>(float_of(bits)));
    const bool tiny = exact < 0x1p-126, infinite = exact >= 0x1p128;
    out.push_back(tiny ? 0 : bits_of(infinite ? HUGE_VALF : static_cast<float>(exact)));
    c.bound.push_back(tiny || infinite ? 0 : exact * kApproximation);
  }
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

Words tangent_arguments() {
  Words in;
  for (int i = -640; i <= 640; ++i) in.push_back(bits_of(static_cast<float>(i) * 0.0171875f));
  for (const double value : random_fractions(9, 1000))
    in.push_back(bits_of(static_cast<float>(std::ldexp(value, static_cast<int>(value * 90)))));
  for (const std::uint32_t bits : interesting_floats()) in.push_back(bits);
  return in;
}

// The manual promises a relative error of 2^-11 of the instruction; the function for fp32 is ours, and
// has a few units in the last place besides those of the power in it.
Case tangents(bool exact) {
  const Words in = tangent_arguments();
  const std::string name = exact ? "tanh_exact" : "tanh_approx";
  Case c = map_case(exact ? "tanh_fp32" : "tanh", name, in.size(),
                    "  output_float(params, i, " + name + "(input_float(params, i)));\n");
  Words out;
  for (const std::uint32_t bits : in) {
    const double value = std::tanh(static_cast<double>(float_of(bits)));
    out.push_back(bits_of(static_cast<float>(value)));
    c.bound.push_back(std::fabs(value) * (exact ? 8 * 0x1p-24 : 0x1p-11) + 0x1p-149);
  }
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

Case logarithms() {
  Words in = random_words(7, 1000);
  for (std::uint32_t& word : in) word &= 0x7fffffffu;
  for (const double value : random_fractions(8, 1000))
    in.push_back(bits_of(static_cast<float>(1 + 0.9 * value)));
  for (int exponent = -140; exponent < 128; exponent += 7)
    in.push_back(bits_of(std::ldexp(1.0f, exponent)));
  std::erase_if(in, is_nan);
  for (const std::uint32_t bits : interesting_floats())
    if ((bits & 0x80000000u) == 0 || bits == 0x80000000u) in.push_back(bits);
  Case c = map_case("log2", "log2_approx", in.size(),
                    "  output_float(params, i, log2_approx(input_float(params, i)));\n");
  Words out;
  for (const std::uint32_t bits : in) {
    const double value = float_of(bits), exact = std::log2(value);
    out.push_back(bits_of(static_cast<float>(exact)));
    const bool near_one = value > 0.5 && value < 2;
    c.bound.push_back(std::isinf(exact) ? 0 : kApproximation * (near_one ? 1 : std::fabs(exact)));
  }
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

// Subnormal numbers count as zeros.
Case reciprocals() {
  Words in = random_words(9, 1000);
  for (const double value : random_fractions(10, 1000))
    in.push_back(bits_of(static_cast<float>(1 + 4096 * std::fabs(value))));
  for (int exponent = -149; exponent < 128; exponent += 3)
    in.push_back(bits_of(std::ldexp(1.0f, exponent)));
  std::erase_if(in, is_nan);
  for (const std::uint32_t bits : interesting_floats()) in.push_back(bits);
  Case c = map_case("reciprocal", "reciprocal_approx", in.size(),
                    "  output_float(params, i, reciprocal_approx(input_float(params, i)));\n");
  Words out;
  for (const std::uint32_t bits : in) {
    const double value = float_of(bits);
    const bool subnormal = std::fabs(value) < 0x1p-126;
    const double exact = 1 / (subnormal ? std::copysign(0.0, value) : value);
    const bool tiny = std::fabs(exact) < 0x1p-126;
    out.push_back(bits_of(static_cast<float>(tiny ? std::copysign(0.0, value) : exact)));
    c.bound.push_back(tiny || std::isinf(exact) ? 0 : std::fabs(exact) * kApproximation);
  }
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

Case approximated_nan() {
  Words in = interesting_nans();
  for (const float negative : {-1.0f, -0x1p-140f, -HUGE_VALF}) in.push_back(bits_of(negative));
  Case c = map_case("exp2_log2_nan", "exp2_approx log2_approx", in.size(), R"(
  output_float(params, 2 * i, exp2_approx(input_float(params, i)));
  output_float(params, 2 * i + 1, log2_approx(input_float(params, i)));
)");
  Words out;
  for (const std::uint32_t bits : in) {
    const float power = std::exp2(float_of(bits));
    out.insert(out.end(), {with_one_nan(power), kNan});
    c.bound.insert(c.bound.end(), {std::isnan(power) ? 0 : power * kApproximation, 0});
  }
  c.nan_bytes = 4;
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

}  // namespace

std::vector<Case> math_cases() {
  std::vector<Case> cases = {integers(),
                             picked_bytes(),
                             float_arithmetic(false),
                             float_arithmetic(true),
                             bits_and_signs(),
                             packed(DType::bf16, false),
                             packed(DType::fp16, false),
                             packed(DType::bf16, true),
                             packed(DType::fp16, true),
                             unpacked(DType::bf16, false),
                             unpacked(DType::bf16, true),
                             unpacked(DType::fp16, false),
                             unpacked(DType::fp16, true),
                             rounded_tf32(false),
                             rounded_tf32(true),
                             powers(),
                             tangents(false),
                             tangents(true),
                             logarithms(),
                             reciprocals(),
                             approximated_nan()};
  for (Case& c : cases)
    if (c.output.empty()) c.output = untouched(c.expected.size());
  return cases;
}

}  // namespace flashwright::conformance
