//~ ldmatrix and mma.sync. Lane l of a warp has g = l / 4 and t = l % 4; layouts as in the PTX
//~ manual, "Matrix fragments for mma.m16n8k16" and "... m16n8k8".

// Loads four 8 x 8 matrices of 16-bit elements, or 8 x 4 of 32 bits. Lanes 8i..8i+7 give the
// addresses of the rows of matrix i; lane l gets the word at row g, words t of matrix i in r[i].
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The same, each matrix transposed; 16-bit elements only.
__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

#if FW_BF16
// d += a * b for a 16 x 16 and a 16 x 8 matrix. d holds (row g, columns 2t and 2t+1), then row g
// + 8.
__device__ __forceinline__ void multiply_add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#elif FW_FP16
// d += a * b for a 16 x 16 and a 16 x 8 matrix. d holds (row g, columns 2t and 2t+1), then row g
// + 8.
__device__ __forceinline__ void multiply_add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
// d += a * b for a 16 x 8 and an 8 x 8 matrix of tf32, floats with 11 bits of significand.
__device__ __forceinline__ void multiply_add_tf32(float (&d)[4], const u32 (&a)[4], u32 b0,
                                                  u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A float as the sum of two tf32 numbers, up to 2^-24 of it.
struct Split {
  u32 high, low;
};

__device__ __forceinline__ Split split(u32 value) {
  const u32 high = round_tf32(bits_float(value));
  return {high, round_tf32(bits_float(value) - bits_float(high))};
}

// d += a * b for a 16 x 8 and an 8 x 8 matrix of floats, as three products of their halves; that of
// the two low ones is below the rounding of d.
__device__ __forceinline__ void multiply_add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  u32 high[4], low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Split half = split(a[i]);
    high[i] = half.high;
    low[i] = half.low;
  }
  const Split first = split(b0), second = split(b1);
  multiply_add_tf32(d, low, first.high, second.high);
  multiply_add_tf32(d, high, first.low, second.low);
  multiply_add_tf32(d, high, first.high, second.high);
}
#endif
