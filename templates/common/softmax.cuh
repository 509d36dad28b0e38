//~ The online softmax of one warp: 16 * kRowTiles query rows by one tile of keys. Each lane holds
//~ two rows of every row tile, g and g + 8, and shares each of them with the three other lanes of
//~ its quad.

// What a row has seen so far.
struct RowState {
#if FW_RESCALE_THRESHOLD
  float max;  // a score not far below the largest, unscaled
#else
  float max;  // largest score, unscaled
#endif
  float sum;  // this lane's part of sum(2^(scale_log2 * (score - max)))
};

// The largest value among the four lanes of a quad.
__device__ __forceinline__ float quad_max(float value) {
  value = larger_float(value, shuffle_xor(value, 1));
  return larger_float(value, shuffle_xor(value, 2));
}

// The sum over the four lanes of a quad.
__device__ __forceinline__ float quad_sum(float value) {
  value += shuffle_xor(value, 1);
  return value + shuffle_xor(value, 2);
}

#if FW_NEGATIVE_SCALE
// Changes the sign of all scores.
template <int kTiles>
__device__ __forceinline__ void negate(float (&scores)[kRowTiles][kTiles][4]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[m][n][i] = -scores[m][n][i];
    }
  }
}
#endif

// Hides the scores of keys that a row must not see. `first_row` is the first of the warp's rows.
__device__ __forceinline__ void mask_scores(float (&scores)[kRowTiles][kKeyTiles][4],
                                            const Params& params, const QueryTile& work,
                                            const KeyTiles& tiles, int first_row) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + m * 16 + lane / 4 + i / 2 * 8;
        const int kv = tiles.first + n * 8 + lane % 4 * 2 + i % 2;
        if (!sees(params, work, tiles, row, kv)) scores[m][n][i] = -infinity();
      }
    }
  }
}

// The error of one rounding grows with the product. Where it would show, the maximum is subtracted
// from the scores first, which is exact.
template <int kTiles>
__device__ __forceinline__ void subtract_max(float (&scores)[kRowTiles][kTiles][4],
                                             const RowState (&rows)[kRowTiles][2],
                                             const float (&max)[kRowTiles][2],
                                             float (&shift)[kRowTiles][2],
                                             float (&rescale)[kRowTiles][2], float scale_log2) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float reference = max[m][half] == -infinity() ? 0.0f : max[m][half];
      shift[m][half] = 0.0f;
      rescale[m][half] = exp2_approx((rows[m][half].max - reference) * scale_log2);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        scores[m][n][2 * half] -= reference;
        scores[m][n][2 * half + 1] -= reference;
      }
    }
  }
}

#if FW_RESCALE_THRESHOLD
// What weights are relative to: a new maximum only if it lies so far above the old reference that
// weights would grow beyond 2^kRescaleThreshold. Otherwise nothing has to be rescaled.
__device__ __forceinline__ float new_reference(float old, float max, float scale_log2) {
  return (max - old) * scale_log2 > kRescaleThreshold ? max : old;
}
#endif

#if FW_EMULATED_EXP2
// 2^x with a relative error below 2^-18, without the unit for exponentials; results below 2^-126
// become 0. The fraction of x, between -1/2 and 1/2, goes through a polynomial that was fitted for
// the smallest relative error; its integer becomes an exponent.
__device__ __forceinline__ float exp2_emulated(float x) {
  constexpr float kShift = 12582912.0f;             // 1.5 * 2^23: sums with it are integers
  const float clamped = x < -127.0f ? -127.0f : x;  // a NaN stays one
  const float shifted = clamped + kShift;
  const float fraction = clamped - (shifted - kShift);
  float series = fused_multiply_add(0.00957018323f, fraction, 0.0559178703f);
  series = fused_multiply_add(series, fraction, 0.240247428f);
  series = fused_multiply_add(series, fraction, 0.693121791f);
  series = fused_multiply_add(series, fraction, 0.999999285f);
  return series * bits_float((float_bits(shifted) << 23) + 0x3f800000u);
}
#endif

// Turns scores into weights 2^(scale_log2 * (score - max)) and updates the rows. Returns in
// `rescale` by what earlier sums and outputs of a row have to be multiplied, as its maximum may
// have grown. All rows go through each step together: their chains of instructions hide each
// other's latency.
template <int kTiles>
__device__ __forceinline__ void online_softmax(float (&scores)[kRowTiles][kTiles][4],
                                               RowState (&rows)[kRowTiles][2],
                                               float (&rescale)[kRowTiles][2], float scale_log2) {
  float max[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      max[m][half] = rows[m][half].max;
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        max[m][half] = larger_float(
            max[m][half], larger_float(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
    }
  }
  // The weights are relative to the rounded product scale_log2 * max, and so is the rescaling: a
  // maximum that has not grown gives a factor of exactly 1.
  float shift[kRowTiles][2];  // 0 while a row has seen no key
  bool large = false;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      max[m][half] = quad_max(max[m][half]);
#if FW_RESCALE_THRESHOLD
      max[m][half] = new_reference(rows[m][half].max, max[m][half], scale_log2);
#endif
      shift[m][half] = max[m][half] == -infinity() ? 0.0f : multiply(max[m][half], scale_log2);
      rescale[m][half] = exp2_approx(multiply(rows[m][half].max, scale_log2) - shift[m][half]);
      large = large || magnitude(shift[m][half]) > kLargeExponent;
    }
  }
  if (any_lane(large)) subtract_max(scores, rows, max, shift, rescale, scale_log2);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
#if FW_EMULATED_EXP2
          const float power = fused_multiply_add(scores[m][n][i], scale_log2, -shift[m][half]);
          const bool emulated = (2 * n + i % 2) % kEmulatedExp2 == 0;
          scores[m][n][i] = emulated ? exp2_emulated(power) : exp2_approx(power);
#else
          scores[m][n][i] =
              exp2_approx(fused_multiply_add(scores[m][n][i], scale_log2, -shift[m][half]));
#endif
          sum += scores[m][n][i];
        }
      }
      rows[m][half].max = max[m][half];
      rows[m][half].sum = fused_multiply_add(rows[m][half].sum, rescale[m][half], sum);
    }
  }
}

// Multiplies the outputs of all rows.
__device__ __forceinline__ void rescale_output(float (&out)[kRowTiles][kDimTiles][4],
                                               const float (&rescale)[kRowTiles][2]) {
#if FW_LAZY_RESCALE
  bool grown = false;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
    grown = grown || rescale[m][0] != 1.0f || rescale[m][1] != 1.0f;
  if (!any_lane(grown)) return;
#endif
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kDimTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[m][n][i] *= rescale[m][i / 2];
    }
  }
}
