"""CUDA device functions of all lowerings; a kernel that calls one includes it in its prelude."""

# Four lanes have a row's maximum and sum; the first of them stores its row, the second its other row, eight below.
# With m = max_j s_j and d = sum_j 2^(scale (s_j - m)), whatever m was taken and scale = softmax_scale log2 e,
# ln sum_j e^(softmax_scale s_j) = ln 2 (scale m + log2 d).
# The empty asm keeps the logarithm out of the branch, so that it runs beside the last product, before the wait for that.
# `thread` is among those that compute: TileLang may put threads that load before them, threadIdx.x then counts these too.
STORE_LSE = """
__device__ __forceinline__ void tl_attention_store_lse(const float* scores_max, const float* denominator, float scale,
                                                       float* lse, int rows, int thread) {
  const int lane = thread % 32, half = lane % 4, row = thread / 32 * 16 + lane / 4 + 8 * half;
  float sum = 0.693147181f * fmaf(half ? scores_max[1] : scores_max[0], scale,
                                  __log2f(half ? denominator[1] : denominator[0]));
  asm volatile("" : "+f"(sum));
  if (half < 2 && row < rows) lse[row] = sum;
}
"""
