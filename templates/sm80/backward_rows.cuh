//~ The first step: what both others have to know of each query.

// Sum of the products of 16 bytes of elements.
#if FW_FP32
__device__ __forceinline__ float dot_chunk(const Bytes16& a, const Bytes16& b) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    sum = fused_multiply_add(bits_float(a.word[i]), bits_float(b.word[i]), sum);
  return sum;
}
#else
__device__ __forceinline__ float dot_chunk(const Bytes16& a, const Bytes16& b) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const u16 first = static_cast<u16>(a.word[i / 2] >> i % 2 * 16);
    const u16 second = static_cast<u16>(b.word[i / 2] >> i % 2 * 16);
    sum = fused_multiply_add(to_float(first), to_float(second), sum);
  }
  return sum;
}
#endif

// This lane's part of the sum of the products of two rows of kHeadDimV elements.
__device__ __forceinline__ float dot_rows(const Element* a, const Element* b, bool aligned) {
  constexpr int kElements = 16 / kElementBytes;  // of a chunk
  float sum = 0.0f;
  if (aligned) {
#pragma unroll
    for (int at = 0; at < kHeadDimV; at += kRowLanes * kElements) {
      const int first = at + lane_index() % kRowLanes * kElements;
      if (first >= kHeadDimV) break;
      sum += dot_chunk(load_global(reinterpret_cast<const Bytes16*>(a + first)),
                       load_global(reinterpret_cast<const Bytes16*>(b + first)));
    }
  } else {
#pragma unroll 1
    for (int at = lane_index() % kRowLanes; at < kHeadDimV; at += kRowLanes)
      sum = fused_multiply_add(to_float(load_global(a + at)), to_float(load_global(b + at)), sum);
  }
  return sum;
}

// kRowLanes lanes compute the statistics of a query: its LSE in powers of two, and the sum of
// dO * O less the gradient of the LSE.
extern "C" __global__ void __launch_bounds__(kThreads)
    fw_statistics(const __grid_constant__ Params params) {
  const i64 query = block_index() * (kThreads / kRowLanes) + thread_index() / kRowLanes;
  const bool exists = query < static_cast<i64>(params.batch) * params.heads_q * params.seq_q;
  const i64 row = exists ? query % params.seq_q : 0, matrix = exists ? query / params.seq_q : 0;
  const i64 batch = matrix / params.heads_q, head = matrix % params.heads_q;
  float delta = 0.0f;
  if (exists)
    delta = dot_rows(params.o_given + batch * params.o_batch_stride + row * params.o_row_stride +
                         head * params.o_head_stride,
                     params.d_o + batch * params.d_o_batch_stride + row * params.d_o_row_stride +
                         head * params.d_o_head_stride,
                     params.aligned);
#pragma unroll
  for (int bits = kRowLanes / 2; bits > 0; bits /= 2) delta += shuffle_xor(delta, bits);
  if (!exists || lane_index() % kRowLanes != 0) return;

  float lse = load_global(params.lse_given + batch * params.lse_batch_stride +
                          head * params.lse_head_stride + row);
  if (params.d_lse != nullptr)
    delta -= load_global(params.d_lse + batch * params.d_lse_batch_stride +
                         head * params.d_lse_head_stride + row);
#if FW_DROPOUT
  delta = delta / params.keep_scale;  // the gradients of kept weights are multiplied at the end
#endif
  if (lse == -infinity()) {
    lse = infinity();
    delta = 0.0f;
  }
  store_global(static_cast<Bytes16*>(params.workspace) + query,
               Bytes16{{float_bits(lse * kLog2E), float_bits(delta), 0u, 0u}});
}
