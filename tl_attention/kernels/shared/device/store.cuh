// A thread holds acc_o as wgmma and mma.sync leave it: register 4 g + 2 h + c is row lane / 4 + 8 h of its warp's 16 rows,
// column 8 g + 2 (lane % 4) + c.
// A warp's plain stores would write 16 bytes of each of 8 rows. The four lanes of a row transpose four registers among
// them instead, two columns packed in each, so that each lane stores 16 bytes and a row gets 64.

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
