#include "generator/cpu/math_ir.hpp"

#include <array>

#include "core/philox.hpp"

namespace flashwright::ir {
namespace {

int lanes_of_rows(const Values& rows) { return static_cast<int>(rows.size()); }

// Shuffle mask of two vectors: in each group of four lanes, `quad` picks 0..3 from the first vector and
// 4..7 from the second.
std::vector<int> in_quads(int lanes, const std::array<int, 4>& quad) {
  std::vector<int> mask;
  for (int base = 0; base < lanes; base += 4)
    for (const int pick : quad) mask.push_back(base + (pick < 4 ? pick : lanes + pick - 4));
  return mask;
}

// Shuffle mask that gathers blocks of `size` lanes: the low or high block of each pair, from both vectors.
std::vector<int> in_blocks(int lanes, int size, bool high) {
  std::vector<int> mask;
  for (int i = 0; i < lanes; ++i) {
    const bool second = (i & size) != 0;
    const int lane = high ? (second ? i : i + size) : (second ? i - size : i);
    mask.push_back(second ? lanes + lane : lane);
  }
  return mask;
}

}  // namespace

V exp2_negative(V x, int degree) {
  Builder& ir = *x.builder;
  // Minimax polynomials of 2^f on [0, 1) with value 1 at 0, highest power first; the longer one takes the
  // rounding of its coefficients, of f and of the evaluation into account.
  static const std::vector<double> kDegree4 = {0.01342668425064992, 0.05224247426912157,
                                               0.24128020472272363, 0.6930448449081497};
  static const std::vector<double> kDegree5 = {0.0019030399853363633, 0.008928433991968632,
                                               0.05587580427527428, 0.24013856053352356,
                                               0.6931540966033936};
  const std::vector<double>& terms = degree == 4 ? kDegree4 : kDegree5;
  const int lanes = lanes_of(x);
  const auto all = [&](double value) { return ir.number(Type{Kind::f32, lanes}, value); };
  const auto series = [&](V part) {
    V sum = all(terms[0]);
    for (std::size_t i = 1; i < terms.size(); ++i)
      sum = fma(sum, part, all(terms[i])).named("series");
    return fma(sum, part, all(1)).named("series");
  };
  // Results below the normal range are flushed to 0 by the control word the kernel sets.
  if (lanes == 16) return scale512(series(fraction512(x)), x).named("exp2");

  const V clamped = larger_float(all(-127), x).named("power");
  const V whole = floor(clamped).named("power.whole");
  // Adding 1.5 * 2^23 + 127 leaves the number, with the exponent's bias, in the low bits.
  const V biased = bits_as(whole + all(12582912.0 + 127.0), Kind::i32);
  const V scale = bits_as(shift_left(biased, 23), Kind::f32).named("power.scale");
  return (series(clamped - whole) * scale).named("exp2");
}

V tanh(V x) {
  // Near 0 an odd polynomial, since the quotient would cancel.
  static const std::vector<double> kTerms = {-0.006269119679927826, 0.021110959351062775,
                                             -0.053873948752880096, 0.13332915306091309,
                                             -0.3333333134651184};
  constexpr double kBorder = 0.6, kTwoLog2E = 2.8853900817779268;
  Builder& ir = *x.builder;
  const auto all = [&](double value) { return ir.number(Type{Kind::f32, lanes_of(x)}, value); };
  const V square = (x * x).named("square");
  V series = all(kTerms[0]);
  for (std::size_t i = 1; i < kTerms.size(); ++i)
    series = fma(series, square, all(kTerms[i])).named("series");
  const V near = fma(series * square, x, x).named("tanh.near");
  const V size = larger_float(x, all(-0.0) - x).named("size");
  const V power = exp2_negative(size * all(-kTwoLog2E), 5);
  const V far = divide_float(all(1) - power, all(1) + power).named("tanh.far");
  const V signed_far = select(less(x, all(0)), all(-0.0) - far, far);
  return select(less(size, all(kBorder)), near, signed_far).named("tanh");
}

V log2_positive(V x) {
  Builder& ir = *x.builder;
  const int lanes = lanes_of(x);
  const auto all = [&](double value) { return ir.number(Type{Kind::f32, lanes}, value); };
  const V bits = bits_as(x, Kind::i32);
  // Splits x into 2^e * m with m in [sqrt(1/2), sqrt(2)).
  constexpr std::int64_t kRootHalf = 0x3f3504f3;
  const V exponent = shift_right_signed(bits - kRootHalf, 23).named("exponent");
  const V m = bits_as(bits - shift_left(exponent, 23), Kind::f32).named("mantissa");
  const V t = divide_float(m - all(1), m + all(1)).named("t");
  const V square = (t * t).named("t.square");
  // 2 / ln 2 * (t + t^3 / 3 + t^5 / 5 + ...)
  constexpr double kFactor = 2.8853900817779268;
  V sum = all(kFactor / 9);
  for (const int power : {7, 5, 3}) sum = fma(sum, square, all(kFactor / power)).named("series");
  const V tail = (sum * square * t).named("series.tail");
  const V fraction = fma(t, all(kFactor), tail).named("fraction");
  const V result = (to_float(exponent) + fraction).named("log2");
  return select(is_nan(x), x, result).named("log2");
}

Kind storage(DType dtype) {
  constexpr Kind kKinds[] = {Kind::f16, Kind::i16, Kind::f32};
  return kKinds[static_cast<int>(dtype)];
}

V load_elements(Builder& ir, V pointer, DType dtype, int lanes) {
  const Kind kind = storage(dtype);
  const V stored = ir.load({kind, lanes}, pointer, bytes_of(kind));
  if (dtype == DType::fp32) return stored;
  if (dtype == DType::fp16) return widen(stored, Kind::f32);
  return bits_as(shift_left(widen(stored, Kind::i32), 16), Kind::f32);
}

void store_elements(Builder& ir, V values, V pointer, DType dtype, int lanes) {
  const Kind kind = storage(dtype);
  V out = values;
  if (dtype == DType::fp16) out = narrow(values, Kind::f16);
  if (dtype == DType::bf16) {  // to nearest even; a NaN keeps its upper half and becomes quiet
    const V bits = bits_as(values, Kind::i32);
    const V odd = shift_right(bits, 16) & 1;
    const V rounded = bits + odd + 0x7fff;
    const V quiet = bits | ir.number(Type{Kind::i32, lanes}, std::int64_t{0x400000});
    out = narrow(shift_right(select(is_nan(values), quiet, rounded), 16), Kind::i16);
  }
  ir.store(out, pointer, bytes_of(kind));
}

Values transpose(const Values& rows) {
  const int lanes = lanes_of_rows(rows);
  Values now = rows;
  // Groups of four lanes first, since every instruction set mixes within 128 bits cheaply: single
  // elements, then pairs; whole groups of 4 and of 8 lanes follow.
  const auto stage = [&](int distance, const std::vector<int>& low, const std::vector<int>& high) {
    for (int i = 0; i < lanes; ++i) {
      if ((i & distance) != 0) continue;
      const V a = now[i], b = now[i + distance];
      now[i] = mix(a, b, low);
      now[i + distance] = mix(a, b, high);
    }
  };
  // Rows 0 and 1 give {a0 b0 a1 b1} and {a2 b2 a3 b3}; joined with rows 2 and 3 these are columns
  // 0, 1 and 2, 3. Columns 1 and 2 then sit in each other's place.
  stage(1, in_quads(lanes, {0, 4, 1, 5}), in_quads(lanes, {2, 6, 3, 7}));
  stage(2, in_quads(lanes, {0, 1, 4, 5}), in_quads(lanes, {2, 3, 6, 7}));
  for (int i = 0; i < lanes; i += 4) std::swap(now[i + 1], now[i + 2]);
  for (int size = 4; size < lanes; size *= 2)
    stage(size, in_blocks(lanes, size, false), in_blocks(lanes, size, true));
  return now;
}

KeepWords::KeepWords(Builder& ir, V key, V threshold, int lanes) : ir_(ir), lanes_(lanes) {
  V k0 = narrow(key, Kind::i32).named("philox.key0");
  V k1 = narrow(shift_right(key, 32), Kind::i32).named("philox.key1");
  for (int round = 0; round < kPhiloxRounds; ++round) {
    round_keys_.push_back(k0);
    round_keys_.push_back(k1);
    k0 = k0 + std::int64_t{kPhiloxKey0};
    k1 = k1 + std::int64_t{kPhiloxKey1};
  }
  for (int bit = 0; bit < 8; ++bit)
    limits_.push_back((ir.bits32(0) - (shift_right(threshold, bit) & 1)).named("limit", bit));
}

Values KeepWords::random(Values counter) const {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const auto key = [&](int i) {
      return splat(round_keys_[static_cast<std::size_t>(2 * round + i)], lanes_);
    };
    const V a = widen(counter[0], Kind::i64) * std::int64_t{kPhiloxMul0};
    const V b = widen(counter[2], Kind::i64) * std::int64_t{kPhiloxMul1};
    const auto high = [](V wide) { return narrow(shift_right(wide, 32), Kind::i32); };
    const auto low = [](V wide) { return narrow(wide, Kind::i32); };
    counter = {high(b) ^ counter[1] ^ key(0), low(b), high(a) ^ counter[3] ^ key(1), low(a)};
  }
  return counter;
}

V KeepWords::operator()(V heads, V queries, V key_word) const {
  const V word = splat(narrow(key_word, Kind::i32), lanes_);
  const Type type{Kind::i32, lanes_};
  const Values high = random({queries, word, heads, ir_.number(type, std::int64_t{0})});
  const Values low = random({queries, word, heads, ir_.number(type, std::int64_t{1})});
  const V ones = ir_.number(type, std::int64_t{-1});
  // byte < threshold for 32 bytes at once: the borrow of byte - threshold, lowest bit first.
  V borrow = ir_.number(type, std::int64_t{0});
  for (std::size_t bit = 0; bit < 8; ++bit) {
    const V clear = (bit < 4 ? low[3 - bit] : high[7 - bit]) ^ ones;
    const V limit = splat(limits_[bit], lanes_);
    borrow = ((clear & (limit | borrow)) | (limit & borrow)).named("borrow");
  }
  return (borrow ^ ones).named("keep.word");
}

}  // namespace flashwright::ir
