// Every score x / factor to tanh(x). Where all scores of the warp are small that is a polynomial, x p(x^2), on the FMA
// units alone, the smaller the shorter. Elsewhere it is 1 - 2 / (1 + e^(2 x)), of which four scores of a row share a
// reciprocal, of their product; for that an exponent of base 2 of 30 is as good as more. Its absolute error is 4e-7. A
// score that is no number makes all four none: in a block all of whose keys are seen the row's output is none anyhow.
// `alone` keeps it from its neighbours, which may be seen where it is hidden.

template <int count, bool alone> __device__ __forceinline__ void tl_attention_cap(float* acc_s, float factor) {
  static_assert(count % 8 == 0, "two columns of each of two groups of eight, of two rows");
  float largest[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  #pragma unroll
  for (int i = 0; i < count; ++i) largest[i % 4] = fmaxf(largest[i % 4], fabsf(acc_s[i]));
  const float furthest = fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3])) * factor;
  // The factor's powers in the coefficients, where they are none too small or large, save a product for each score.
  if (__all_sync(0xffffffff, furthest <= 0.375f && factor > 1e-7f && factor < 1e7f)) {
    const float square = factor * factor, third = 0.12264758f * factor * square * square;
    const float second = -0.33278066f * factor * square, first = 0.9999957f * factor;
    #pragma unroll
    for (int i = 0; i < count; ++i) {
      const float x = acc_s[i], power = x * x;
      acc_s[i] = x * fmaf(fmaf(third, power, second), power, first);
    }
    return;
  }
  if (__all_sync(0xffffffff, furthest <= 0.75f)) {
    #pragma unroll
    for (int i = 0; i < count; ++i) {
      const float x = acc_s[i] * factor, power = x * x;
      const float rest = fmaf(fmaf(0.012929632f, power, -0.0500563f), power, 0.13258983f);
      acc_s[i] = x * fmaf(fmaf(rest, power, -0.3332825f), power, 0.99999946f);
    }
    return;
  }
  #pragma unroll
  for (int i = 0; i < count; ++i) {
    if (alone) {
      acc_s[i] = fmaf(-2.0f, tl_attention_inverse(tl_attention_one_more_exponential(acc_s[i] * factor, false)), 1.0f);
    } else if (i % 8 == 0 || i % 8 == 2) {
      float sums[4];
      #pragma unroll
      for (int n = 0; n < 4; ++n)
        sums[n] = tl_attention_one_more_exponential(acc_s[i + n % 2 + n / 2 * 4] * factor, true);
      const float low = sums[0] * sums[1], high = sums[2] * sums[3], both = -2.0f * tl_attention_inverse(low * high);
      #pragma unroll
      for (int n = 0; n < 4; ++n)
        acc_s[i + n % 2 + n / 2 * 4] = fmaf(both * (n < 2 ? high : low), sums[n ^ 1], 1.0f);
    }
  }
}
