// The same as softcap.cuh, for an invariant kernel: what becomes of a score depends on those of its row and block alone that its thread has,
// and a vote of the warp only shows that all of them may take the first polynomial. Hidden scores are 0 where not all do.

// The factor's powers in the coefficients, where they are none too small or large, save a product for each score.
__device__ __forceinline__ bool tl_attention_is_near(float furthest, float factor) {
  return furthest <= 0.375f && factor > 1e-7f && factor < 1e7f;
}
template <int count> __device__ __forceinline__ float tl_attention_furthest(const float* of_row, float factor) {
  float largest[2] = {0.0f, 0.0f};
  #pragma unroll
  for (int i = 0; i < count; ++i)
    if (i % 4 < 2) largest[i % 4] = fmaxf(largest[i % 4], fabsf(of_row[i]));
  return fmaxf(largest[0], largest[1]) * factor;
}
template <int count> __device__ __forceinline__ bool tl_attention_cap_all_near(const float* acc_s, float factor) {
  const float furthest = fmaxf(tl_attention_furthest<count>(acc_s, factor), tl_attention_furthest<count>(acc_s + 2, factor));
  return __all_sync(0xffffffff, tl_attention_is_near(furthest, factor));
}
template <int count, int rows> __device__ __forceinline__ void tl_attention_cap_near(float* of_rows, float factor) {
  const float square = factor * factor, third = 0.12264758f * factor * square * square;
  const float second = -0.33278066f * factor * square, first = 0.9999957f * factor;
  #pragma unroll
  for (int i = 0; i < count; ++i) {
    if (i % 4 >= 2 * rows) continue;
    const float x = of_rows[i], power = x * x;
    of_rows[i] = x * fmaf(fmaf(third, power, second), power, first);
  }
}
template <int count> __device__ __forceinline__ void tl_attention_cap_middle(float* of_row, float factor) {
  #pragma unroll
  for (int i = 0; i < count; ++i) {
    if (i % 4 >= 2) continue;
    const float x = of_row[i] * factor, power = x * x;
    const float rest = fmaf(fmaf(0.012929632f, power, -0.0500563f), power, 0.13258983f);
    of_row[i] = x * fmaf(fmaf(rest, power, -0.3332825f), power, 0.99999946f);
  }
}
template <int count> __device__ __forceinline__ void tl_attention_cap_far(float* of_row, float factor) {
  #pragma unroll
  for (int i = 0; i < count; i += 8) {
    float sums[4];
    #pragma unroll
    for (int n = 0; n < 4; ++n)
      sums[n] = tl_attention_one_more_exponential(of_row[i + n % 2 + n / 2 * 4] * factor, true);
    const float low = sums[0] * sums[1], high = sums[2] * sums[3], both = -2.0f * tl_attention_inverse(low * high);
    #pragma unroll
    for (int n = 0; n < 4; ++n)
      of_row[i + n % 2 + n / 2 * 4] = fmaf(both * (n < 2 ? high : low), sums[n ^ 1], 1.0f);
  }
}
template <int count, bool alone> __device__ __forceinline__ void tl_attention_cap(float* acc_s, float factor) {
  static_assert(count % 8 == 0, "two columns of each of two groups of eight, of two rows");
  float furthest[2];
  for (int row = 0; row < 2; ++row) furthest[row] = tl_attention_furthest<count>(acc_s + 2 * row, factor);
  if (__builtin_expect(__all_sync(0xffffffff, tl_attention_is_near(fmaxf(furthest[0], furthest[1]), factor)), 1)) {
    tl_attention_cap_near<count, 2>(acc_s, factor);
    return;
  }
  #pragma unroll
  for (int row = 0; row < 2; ++row) {
    float* of_row = acc_s + 2 * row;
    if (tl_attention_is_near(furthest[row], factor)) tl_attention_cap_near<count, 1>(of_row, factor);
    else if (furthest[row] <= 0.75f) tl_attention_cap_middle<count>(of_row, factor);
    else tl_attention_cap_far<count>(of_row, factor);
    // Threads that went different ways meet, and nvcc writes the second row's code once.
    __syncwarp();
  }
}
