// A thin typed layer over LLVM's IRBuilder, so that kernel code reads as arithmetic on named values and
// only ir.cpp sees LLVM. A value knows its builder, so operators emit where the builder stands.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace llvm {
class Value;
}

namespace flashwright::ir {

enum class Kind : std::uint8_t { i1, i8, i16, i32, i64, f16, f32, ptr };
int bytes_of(Kind kind);

struct Type {
  Kind kind = Kind::i64;
  int lanes = 1;  // more than 1: a vector
};

class Builder;

struct V {
  llvm::Value* raw = nullptr;
  Builder* builder = nullptr;

  explicit operator bool() const { return raw != nullptr; }
  V named(std::string_view name) const;
  V named(std::string_view name, int index) const;
};
using Values = std::vector<V>;

// Arithmetic on integers or floats of one type; a number on the right takes the type of the left.
V operator+(V a, V b);
V operator-(V a, V b);
V operator*(V a, V b);
V operator&(V a, V b);
V operator|(V a, V b);
V operator^(V a, V b);
V operator+(V a, std::int64_t b);
V operator-(V a, std::int64_t b);
V operator*(V a, std::int64_t b);
V operator&(V a, std::int64_t b);
V shift_left(V a, int bits);
V shift_right(V a, int bits);  // fills with zeros
V shift_right(V a, V bits);
V shift_right_signed(V a, int bits);
V divide(V a, V b);  // signed integers, toward zero
V divide_unsigned(V a, V b);
V remainder_unsigned(V a, V b);
V divide_float(V a, V b);
V fma(V a, V b, V c);  // a * b + c, rounded once
V floor(V a);
// Of AVX-512, on 16 floats: a - floor(a), 0 for -inf; and a * 2^floor(b).
V fraction512(V a);
V scale512(V a, V b);

// Signed comparison of integers; of floats, false when one side is NaN.
V less(V a, V b);
V less_equal(V a, V b);
V equal(V a, V b);
V equal(V a, std::int64_t b);
V less(V a, std::int64_t b);
V negate_bit(V a);  // of a truth value
V is_nan(V a);
V select(V condition, V a, V b);
V smaller(V a, V b);  // signed integers
V larger(V a, V b);
V larger_float(V a, V b);  // b when a is NaN, or when they are equal

// Conversions keep the number of lanes. Integers widen with zeros or with the sign.
V widen(V a, Kind kind);
V widen_signed(V a, Kind kind);
V narrow(V a, Kind kind);
V bits_as(V a, Kind kind);
V to_float(V a);  // signed integers
V splat(V a, int lanes);
int lanes_of(V a);
V mix(V a, V b, const std::vector<int>& lanes);  // -1 leaves a lane undefined

// A carried value of a loop: where it starts and what it is called.
struct Carried {
  V start;
  std::string name;
};

// The instruction set a module is written for.
struct ModuleTarget {
  std::string triple;
  std::string features;  // "+avx2,+fma"
  int vector_bits = 0;
};

// Builds one module of functions `void name(ptr params, i64 task, ptr scratch)`.
class Builder {
 public:
  Builder(const std::string& module_name, const ModuleTarget& target, const std::string& banner);
  ~Builder();
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  void begin_function(const std::string& name);
  void end_function();
  V params();
  V task();
  V scratch();

  V number(Type type, std::int64_t value);
  V number(Type type, double value);
  V i64(std::int64_t value) { return number(Type{Kind::i64}, value); }
  V bits32(std::uint32_t value) { return number(Type{Kind::i32}, std::int64_t{value}); }
  V lane_numbers(Type type);  // 0, 1, 2, ...
  V undefined(Type type);
  V null();

  V load(Type type, V pointer, int align);
  void store(V value, V pointer, int align);
  // Hints that a line of memory will be read, into the nearest cache or the second one. Any address will do.
  enum class Cache { first, second };
  void prefetch(V pointer, Cache cache);
  V element(V pointer, Kind kind, V index);  // address of pointer[index]
  V offset(V pointer, std::int64_t bytes);

  // body(i, carried) for i = begin, begin + step, ... below end; returns the carried values at the end.
  using Body = std::function<Values(V, const Values&)>;
  Values loop(const std::string& name, V begin, V end, std::int64_t step,
              const std::vector<Carried>& carried, const Body& body);
  void loop(const std::string& name, V begin, V end, std::int64_t step,
            const std::function<void(V)>& body);
  void when(const std::string& name, V condition, const std::function<void()>& body);
  void leave_when(const std::string& name, V condition);  // returns from the function

  // Of x86: the control word of floating-point arithmetic, from and to memory.
  void read_float_control(V pointer);
  void write_float_control(V pointer);

  // Starts a block with a comment above it: what the following code does.
  void phase(const std::string& name, const std::string& comment);

  // The module as text. Throws Error(internal) when LLVM finds it malformed.
  std::string print();

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

}  // namespace flashwright::ir
