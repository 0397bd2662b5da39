"""CUDA device functions of all lowerings; a kernel that calls one includes it in its prelude."""

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


def is_bf16(c):
    """The argument `bf16` of the templates."""
    return "true" if c.dtype == "bfloat16" else "false"
