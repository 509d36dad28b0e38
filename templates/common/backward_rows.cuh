//~ What the backward pass knows of each row of the forward pass: two numbers.

// The sum of the products of eight elements of two rows.
__device__ __forceinline__ float product_of_eight(const Element* a, const Element* b) {
  float sum = 0.0f;
  if ((reinterpret_cast<u64>(a) | reinterpret_cast<u64>(b)) % 16 == 0) {
    const Bytes16 x = load_global(reinterpret_cast<const Bytes16*>(a));
    const Bytes16 y = load_global(reinterpret_cast<const Bytes16*>(b));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const u16 left = static_cast<u16>(x.word[i / 2] >> i % 2 * 16);
      const u16 right = static_cast<u16>(y.word[i / 2] >> i % 2 * 16);
      sum = fused_multiply_add(to_float(left), to_float(right), sum);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      sum = fused_multiply_add(to_float(load_global(a + i)), to_float(load_global(b + i)), sum);
  }
  return sum;
}

#if FW_ADD_QUERIES
// Rows that have a place among the sums of gradients of queries: whole tiles of kQueryStep.
__device__ __forceinline__ int padded_rows(const Params& params) {
  return (params.seq_q + kQueryStep - 1) / kQueryStep * kQueryStep;
}

// Those sums, behind what is known of the rows.
__device__ __forceinline__ float* query_sums(const Params& params) {
  const i64 rows = static_cast<i64>(params.batch) * params.heads_q * params.seq_q;
  return static_cast<float*>(params.workspace) + (2 * rows + 63) / 64 * 64;
}
#else
__device__ __forceinline__ int padded_rows(const Params& params) { return params.seq_q; }
#endif

// Makes them: a thread for eight elements of an output row, kRowThreads for a row. A row that sees
// no key gets an infinite LSE, which makes all of its weights zero.
__device__ __forceinline__ void prepare_rows(const Params& params) {
  const int place = thread_index() % kRowThreads;
  const i64 number = block_index() * kRowsPerBlock + thread_index() / kRowThreads;
  const int rows = padded_rows(params);
  const i64 all_heads = number / rows;  // of all batch entries
  const int row = static_cast<int>(number % rows);
  const int head = static_cast<int>(all_heads % params.heads_q);
  const int batch = static_cast<int>(all_heads / params.heads_q);
#if FW_ADD_QUERIES
  if (batch < params.batch && params.dq != nullptr) {
    Bytes16* sums = reinterpret_cast<Bytes16*>(query_sums(params) + number * kHeadDim);
#pragma unroll
    for (int i = 0; i < kHeadDim / 4; i += kRowThreads)
      if (i + place < kHeadDim / 4) store_global(sums + i + place, Bytes16{});
  }
#endif
  const bool exists = batch < params.batch && row < params.seq_q;
  float sum = 0.0f;
  if (exists && place * 8 < kHeadDimV) {
    const Element* o = params.o_given + batch * params.o_batch_stride +
                       head * params.o_head_stride + row * params.o_row_stride;
    const Element* d_o = params.d_o + batch * params.d_o_batch_stride +
                         head * params.d_o_head_stride + row * params.d_o_row_stride;
    sum = product_of_eight(o + place * 8, d_o + place * 8);
  }
#pragma unroll
  for (int step = kRowThreads / 2; step > 0; step /= 2) sum += shuffle_xor(sum, step);
  if (!exists || place != 0) return;
  const float lse = load_global(params.lse_given + batch * params.lse_batch_stride +
                                head * params.lse_head_stride + row);
  if (params.d_lse != nullptr)
    sum -= load_global(params.d_lse + batch * params.d_lse_batch_stride +
                       head * params.d_lse_head_stride + row);
#if FW_DROPOUT
  sum /= params.keep_scale;  // as the gradients get this factor at their end
#endif
  float* statistics = static_cast<float*>(params.workspace) + 2 * (all_heads * params.seq_q + row);
  store_global(statistics, lse == -infinity() ? infinity() : lse * kLog2E);
  store_global(statistics + 1, lse == -infinity() ? 0.0f : sum);
}
