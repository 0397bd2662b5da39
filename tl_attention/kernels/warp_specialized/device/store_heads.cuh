// Rows of several heads in one tile: a warpgroup's row number r is row r % box of head r / box. The rows behind those of
// the last head are idle, and rows behind the sequence's last one are not stored. Outputs are stored as by
// tl_attention_store, and as by tl_attention_store_part; the LSE as by tl_attention_store_lse.

template <int heads, int box> struct tl_attention_heads {
  const int head, row;
  __device__ tl_attention_heads(int own) : head(own / box), row(own % box) {}
  __device__ bool there(int rows) const { return head < heads && row < rows; }
  __device__ int64_t place(int64_t row_stride, int64_t head_stride) const { return head * head_stride + row * row_stride; }
};
template <bool bf16, int columns, int heads, int box>
__device__ __forceinline__ void tl_attention_store_of(const float* acc_o, void* output, int rows, int64_t row_stride,
                                                      int64_t head_stride) {
  const int lane = threadIdx.x % 32, member = lane % 4, first = threadIdx.x / 32 * 16 + lane / 4;
  #pragma unroll
  for (int half = 0; half < 2; ++half) {
    const tl_attention_heads<heads, box> own(first + 8 * half);
    #pragma unroll
    for (int chunk = 0; chunk < (columns + 31) / 32; ++chunk) {
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
      if (own.there(rows) && 32 * chunk + 8 * member < columns)
        ((uint4*)output)[own.place(row_stride, head_stride) / 8 + 4 * chunk + member] =
            make_uint4(part[0], part[1], part[2], part[3]);
    }
  }
}
template <int columns, int heads, int box>
__device__ __forceinline__ void tl_attention_store_part_of(const float* acc_o, float* output, int rows, int64_t row_stride,
                                                           int64_t head_stride) {
  const int lane = threadIdx.x % 32, member = lane % 4, first = threadIdx.x / 32 * 16 + lane / 4;
  #pragma unroll
  for (int half = 0; half < 2; ++half) {
    const tl_attention_heads<heads, box> own(first + 8 * half);
    #pragma unroll
    for (int group = 0; group < columns / 8; ++group) {
      if (own.there(rows))
        ((float2*)output)[own.place(row_stride, head_stride) / 2 + 4 * group + member] =
            make_float2(acc_o[4 * group + 2 * half], acc_o[4 * group + 2 * half + 1]);
    }
  }
}
template <int heads, int box>
__device__ __forceinline__ void tl_attention_store_lse_of(const float* scores_max, const float* denominator, float scale,
                                                          float* lse, int rows, int thread, int head_stride) {
  asm volatile("" : "+r"(thread));
  const int lane = thread % 32, first = thread / 32 * 16 + lane / 4;
  #pragma unroll
  for (int half = 0; half < 2; ++half) {
    const tl_attention_heads<heads, box> own(first + 8 * half);
    if (lane % 4 == 0 && own.there(rows))
      lse[own.place(1, head_stride)] = 0.693147181f * fmaf(scores_max[half], scale, __log2f(denominator[half]));
  }
}
