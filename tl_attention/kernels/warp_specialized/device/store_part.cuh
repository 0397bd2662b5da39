// The output of a part of the keys, in fp32: the four lanes of a row store 32 bytes next to each other.

template <int columns> __device__ __forceinline__ void tl_attention_store_part(const float* acc_o, float* output, int rows) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, member = lane % 4;
  #pragma unroll
  for (int half = 0; half < 2; ++half) {
    #pragma unroll
    for (int group = 0; group < columns / 8; ++group) {
      if (row + 8 * half < rows)
        ((float2*)output)[(row + 8 * half) * (columns / 2) + 4 * group + member] =
            make_float2(acc_o[4 * group + 2 * half], acc_o[4 * group + 2 * half + 1]);
    }
  }
}
