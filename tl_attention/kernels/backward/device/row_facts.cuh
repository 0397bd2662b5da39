// What the gradients of a row need beside its products, for a warpgroup's 64 rows: D, the sum of dO * O, and an LSE to
// base 2, which is +inf where P must be 0, in rows that see no key and behind the sequence's last row. Each is put into
// the registers of the four lanes that have the row, as wgmma leaves it, and the first of them stores both for dkdv.

template <bool bf16> __device__ __forceinline__ float2 tl_attention_unpack(unsigned pair) {
  float2 numbers = make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  if constexpr (!bf16)
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
        : "=f"(numbers.x), "=f"(numbers.y) : "r"(pair));
  return numbers;
}
template <int columns, bool bf16>
__device__ __forceinline__ void tl_attention_row_facts(float* lse, float* d, const void* output, const void* grad,
                                                       const float* given, float* row_lse, float* row_d, int rows) {
  const int lane = threadIdx.x % 32, member = lane % 4, first = threadIdx.x / 32 * 16 + lane / 4;
  #pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + 8 * half;
    float sum = 0.0f, exponent = __int_as_float(0x7f800000);
    if (row < rows) {
      #pragma unroll
      for (int chunk = 0; chunk < (columns + 31) / 32; ++chunk) {
        if (32 * chunk + 8 * member >= columns) continue;
        const int place = row * (columns / 8) + 4 * chunk + member;
        const uint4 o = ((const uint4*)output)[place], g = ((const uint4*)grad)[place];
        const unsigned of_o[4] = {o.x, o.y, o.z, o.w}, of_g[4] = {g.x, g.y, g.z, g.w};
        #pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float2 a = tl_attention_unpack<bf16>(of_o[n]), b = tl_attention_unpack<bf16>(of_g[n]);
          sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
        }
      }
      const float of_row = given[row];
      if (of_row != -exponent) exponent = of_row * 1.4426950408889634f;
    }
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    lse[half] = exponent;
    d[half] = sum;
    if (member == 0) {
      row_lse[row] = exponent;
      row_d[row] = sum;
    }
  }
}
