// Four lanes have a row's maximum and sum, and those of the row eight below; the first of them stores both.
// With m = max_j s_j and d = sum_j 2^(scale (s_j - m)), whatever m was taken and scale = softmax_scale log2 e,
// ln sum_j e^(softmax_scale s_j) = ln 2 (scale m + log2 d).
// The empty asm keeps what is computed of the thread here: before the loops, from where it could be kept, it would take
// registers that they have not, and ptxas has them wait for products elsewhere, which is slower.
// `thread` is among those that compute: TileLang may put threads that load before them, threadIdx.x then counts these too.

__device__ __forceinline__ void tl_attention_store_lse(const float* scores_max, const float* denominator, float scale,
                                                       float* lse, int rows, int thread) {
  asm volatile("" : "+r"(thread));
  const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
  float upper = 0.693147181f * fmaf(scores_max[0], scale, __log2f(denominator[0]));
  float lower = 0.693147181f * fmaf(scores_max[1], scale, __log2f(denominator[1]));
  if (lane % 4 == 0 && row < rows) lse[row] = upper;
  if (lane % 4 == 0 && row + 8 < rows) lse[row + 8] = lower;
}
