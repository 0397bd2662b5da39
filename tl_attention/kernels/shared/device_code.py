"""These CUDA device functions are for all lowerings; a kernel that calls one includes it in its prelude."""

# Four lanes have a row's maximum and sum, and those of the row eight below; the first of them stores both.
# With m = max_j s_j and d = sum_j 2^(scale (s_j - m)), whatever m was taken and scale = softmax_scale log2 e,
# ln sum_j e^(softmax_scale s_j) = ln 2 (scale m + log2 d).
# The empty asm keeps what is computed of the thread here: before the loops, from where it could be kept, it would take
# registers that they have not, and ptxas has them wait for products elsewhere, which is slower.
# `thread` is among those that compute: TileLang may put threads that load before them, threadIdx.x then counts these too.
STORE_LSE = """
__device__ __forceinline__ void tl_attention_store_lse(const float* scores_max, const float* denominator, float scale,
                                                       float* lse, int rows, int thread) {
  asm volatile("" : "+r"(thread));
  const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
  float upper = 0.693147181f * fmaf(scores_max[0], scale, __log2f(denominator[0]));
  float lower = 0.693147181f * fmaf(scores_max[1], scale, __log2f(denominator[1]));
  if (lane % 4 == 0 && row < rows) lse[row] = upper;
  if (lane % 4 == 0 && row + 8 < rows) lse[row + 8] = lower;
}
"""

# What both forms of the softcap below compute with.
EXPONENTIALS = """
__device__ __forceinline__ float tl_attention_inverse(float x) {
  asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}
__device__ __forceinline__ float tl_attention_one_more_exponential(float x, bool bounded) {
  x *= 2.8853900817779268f;
  if (bounded) asm("min.NaN.f32 %0, %0, 0f41F00000;" : "+f"(x));
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return 1.0f + x;
}"""

# Every score x / factor to tanh(x). Where all scores of the warp are small that is a polynomial, x p(x^2), on the FMA
# units alone, the smaller the shorter. Elsewhere it is 1 - 2 / (1 + e^(2 x)), of which four scores of a row share a
# reciprocal, of their product; for that an exponent of base 2 of 30 is as good as more. Its absolute error is 4e-7. A
# score that is no number makes all four none: in a block all of whose keys are seen the row's output is none anyhow.
# `alone` keeps it from its neighbours, which may be seen where it is hidden.
SOFTCAP = (
    EXPONENTIALS
    + """
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
"""
)

# The same for an invariant kernel: what becomes of a score depends on those of its row and block alone that its thread has,
# and a vote of the warp only shows that all of them may take the first polynomial. Hidden scores are 0 where not all do.
SOFTCAP_BY_ROW = (
    EXPONENTIALS
    + """
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
"""
)

# What features of a call need, by the kernel's parameter.
OF_FEATURES = {"softcap": SOFTCAP, "LSE": STORE_LSE}

# A warp's plain stores would write 16 bytes of each of 8 rows. The four lanes of a row transpose four registers among
# them instead, two columns packed in each, so that each lane stores 16 bytes and a row gets 64.
STORE = """
template <bool bf16> __device__ __forceinline__ unsigned tl_attention_pack(float low, float high) {
  unsigned packed;
  if constexpr (bf16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
template <int head_dim, bool bf16>
__device__ __forceinline__ void tl_attention_store(const float* acc_o, void* output, int rows) {
  const int lane = threadIdx.x % 32, member = lane % 4, row = threadIdx.x / 32 * 16 + lane / 4;
  #pragma unroll
  for (int half = 0; half < 2; ++half) {
    #pragma unroll
    for (int chunk = 0; chunk < head_dim / 32; ++chunk) {
      unsigned part[4];
      #pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float* pair = acc_o + (4 * chunk + n) * 4 + 2 * half;
        part[n] = tl_attention_pack<bf16>(pair[0], pair[1]);
      }
      #pragma unroll
      for (int bit = 1; bit < 4; bit *= 2) {
        const bool upper = member & bit;
        #pragma unroll
        for (int n = 0; n < 4; ++n) {
          if (n & bit) continue;
          const unsigned got = __shfl_xor_sync(0xffffffff, upper ? part[n] : part[n + bit], bit);
          if (upper) part[n] = got; else part[n + bit] = got;
        }
      }
      if (row + 8 * half < rows) {
        ((uint4*)output)[(row + 8 * half) * (head_dim / 8) + 4 * chunk + member] =
            make_uint4(part[0], part[1], part[2], part[3]);
      }
    }
  }
}
"""

# Rows of a strided output are as far apart as its stride says.
STRIDED_STORE = STORE.replace("int rows)", "int rows, int64_t row_stride)").replace("head_dim / 8)", "row_stride / 8)")


def device_code(names, invariant=False):
    """Returns the text of the CUDA device functions for the features in `names`, each named by its kernel parameter."""
    texts = OF_FEATURES | ({"softcap": SOFTCAP_BY_ROW} if invariant else {})
    return "".join(text for name, text in texts.items() if name in names)


def is_bf16(c):
    """Returns the text "true" if the kernel's dtype is bfloat16, else "false", for C++ templates."""
    return "true" if c.dtype == "bfloat16" else "false"
