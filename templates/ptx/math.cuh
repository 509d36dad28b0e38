//~ Arithmetic that CUDA C++ spells with headers or that needs a certain instruction.

__device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }

__device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }

// The larger of two numbers; a NaN loses against a number.
__device__ __forceinline__ float larger_float(float a, float b) {
  float value;
  asm("max.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
  return value;
}

__device__ __forceinline__ float magnitude(float a) {
  float value;
  asm("abs.f32 %0, %1;" : "=f"(value) : "f"(a));
  return value;
}

// a * b, rounded, and never fused with what follows.
__device__ __forceinline__ float multiply(float a, float b) {
  float value;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
  return value;
}

// a * b + c, rounded once.
__device__ __forceinline__ float fused_multiply_add(float a, float b, float c) {
  float value;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(value) : "f"(a), "f"(b), "f"(c));
  return value;
}

// 2^x with a relative error below 2^-22; results below 2^-126 become 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}

// tanh(x) with a relative error below 2^-11.
__device__ __forceinline__ float tanh_approx(float x) {
  float value;
  asm("tanh.approx.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}

// tanh(x) with a relative error of a few 2^-24: an odd polynomial, since the quotient would cancel
// near 0.
__device__ __forceinline__ float tanh_exact(float x) {
  const float size = magnitude(x);
  if (size < 0.6f) {
    const float square = x * x;
    float series = fused_multiply_add(-0.00626911968f, square, 0.0211109594f);
    series = fused_multiply_add(series, square, -0.0538739488f);
    series = fused_multiply_add(series, square, 0.133329153f);
    series = fused_multiply_add(series, square, -0.333333313f);
    return fused_multiply_add(series * square, x, x);
  }
  const float above = 1.0f - 2.0f / (exp2_approx(2.88539008f * size) + 1.0f);
  return x < 0.0f ? -above : above;
}

// 1 / x with a relative error below 2^-22; subnormal numbers count as 0.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float value;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}

// log2(x) with an absolute error below 2^-22 near 1 and a relative one elsewhere.
__device__ __forceinline__ float log2_approx(float x) {
  float value;
  asm("lg2.approx.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}

__device__ __forceinline__ u32 float_bits(float value) {
  u32 bits;
  asm("mov.b32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ float bits_float(u32 bits) {
  float value;
  asm("mov.b32 %0, %1;" : "=f"(value) : "r"(bits));
  return value;
}

__device__ __forceinline__ float infinity() { return bits_float(0x7f800000u); }

#if FW_BF16
// Two floats rounded to a pair of elements, the first in the low half.
__device__ __forceinline__ u32 pack_pair(float first, float second) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

// The same with 0 for negative numbers.
__device__ __forceinline__ u32 pack_pair_positive(float first, float second) {
  u32 pair;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
#elif FW_FP16
// Two floats rounded to a pair of elements, the first in the low half.
__device__ __forceinline__ u32 pack_pair(float first, float second) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

// The same with 0 for negative numbers.
__device__ __forceinline__ u32 pack_pair_positive(float first, float second) {
  u32 pair;
  asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
#endif

#if FW_BF16
__device__ __forceinline__ u16 to_element(float value) {
  u16 element;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(element) : "f"(value));
  return element;
}

__device__ __forceinline__ float to_float(u16 element) {
  return bits_float(static_cast<u32>(element) << 16);
}
#elif FW_FP16
__device__ __forceinline__ u16 to_element(float value) {
  u16 element;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(element) : "f"(value));
  return element;
}

__device__ __forceinline__ float to_float(u16 element) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(element));
  return value;
}
#else
// Rounded to 11 bits of significand.
__device__ __forceinline__ u32 round_tf32(float value) {
  u32 bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ float to_element(float value) { return value; }

__device__ __forceinline__ float to_float(float element) { return element; }
#endif

// Picks bytes of the pair (a, b): nibble i of `selector` names the source of byte i, 0..3 from a
// and 4..7 from b; with 8 added, the byte is filled with the sign bit of that source.
__device__ __forceinline__ u32 pick_bytes(u32 a, u32 b, u32 selector) {
  u32 value;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(value) : "r"(a), "r"(b), "r"(selector));
  return value;
}

// True in the bits where at least two of the three words are true.
__device__ __forceinline__ u32 majority(u32 a, u32 b, u32 c) { return (a & b) | (a & c) | (b & c); }
