// The words of CUDA C++ as host C++, and what the stand-ins of the wrappers use.
#pragma once

#define __global__
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)

static const FwEmulator* fw_emulator;

// Compilers put a call of this function into every piece of straight code.
#if defined(__clang__)
#define FW_NOT_COUNTED __attribute__((no_sanitize("coverage")))
#else
#define FW_NOT_COUNTED __attribute__((no_sanitize_coverage))
#endif
static unsigned fw_ticks;
extern "C" FW_NOT_COUNTED void __sanitizer_cov_trace_pc() {
  const unsigned ticks = __atomic_load_n(&fw_ticks, __ATOMIC_RELAXED) + 1;
  __atomic_store_n(&fw_ticks, ticks, __ATOMIC_RELAXED);
  if ((ticks & 0xfffffu) == 0) fw_emulator->tick();
}

#define FW_SITE(wrapper) (static_cast<unsigned>(line) | (wrapper##u << 20))

static inline unsigned fw_bits(float value) {
  unsigned bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

static inline float fw_float(unsigned bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

// Sums of products that are under way hold this NaN, which arithmetic keeps but for its sign and the bit
// that makes it quiet.
static inline float fw_seen(float value, unsigned site) {
  if ((fw_bits(value) & 0x7fbfffffu) == 0x7fa0deadu) fw_emulator->touched(site);
  return value;
}
template <typename Value>
static inline Value fw_seen_any(Value value, unsigned) {
  return value;
}
static inline float fw_seen_any(float value, unsigned site) { return fw_seen(value, site); }

// Instructions give one NaN, whatever they got.
static inline float fw_one_nan(float value) {
  return value != value ? fw_float(0x7fffffffu) : value;
}

// The larger of two numbers, 0 above -0; a NaN loses against a number.
static inline float fw_larger(float a, float b) {
  if (a != a) return fw_one_nan(b);
  if (b != b) return a;
  if (a == b) return fw_bits(a) >> 31 ? b : a;
  return a > b ? a : b;
}

// Rounded to nearest even; every NaN becomes the one that the instruction gives.
static inline unsigned short fw_bfloat(float value) {
  const unsigned bits = fw_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Rounded to 11 bits of significand, halves away from zero. Of a NaN the lower 13 bits are cut off, even
// if what is left is an infinity: measured on an H200.
static inline unsigned fw_tf32(float value) {
  const unsigned bits = fw_bits(value);
  if ((bits & 0x7f800000u) == 0x7f800000u) return bits & ~0x1fffu;
  return (bits + 0x1000u) & ~0x1fffu;
}

static inline unsigned fw_pair(unsigned short first, unsigned short second) {
  return first | static_cast<unsigned>(second) << 16;
}

// Not a number stays one.
static inline float fw_positive(float value) { return value <= 0.0f ? 0.0f : value; }

static inline unsigned fw_pick_bytes(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long pair = static_cast<unsigned long long>(b) << 32 | a;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned choice = selector >> 4 * i & 15u;
    unsigned byte = static_cast<unsigned>(pair >> (choice & 7u) * 8) & 0xffu;
    if (choice & 8u) byte = byte & 0x80u ? 0xffu : 0u;
    out |= byte << 8 * i;
  }
  return out;
}
