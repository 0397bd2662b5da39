// P as wgmma reads it from shared memory: K-major in panels of 64 columns, or 32, or 16, in which the 16 bytes of number
// c of a row stand at c ^ the row, or half of it, or a quarter. A warp stores its 16 rows, 16 columns at a time: four
// matrices of 8 x 8, which are four registers of two columns each.

template <int columns, int first, int end, bool bf16>
__device__ __forceinline__ void tl_attention_store_p(const float* acc_s, void* P) {
  constexpr int panel = columns % 64 == 0 ? 64 : columns % 32 == 0 ? 32 : 16;
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
  const int place = 2 * row * panel + 16 * (lane / 16 ^ row * panel / 64 % (panel / 8));
  const unsigned own = __cvta_generic_to_shared(P) + place;
  #pragma unroll
  for (int column = first; column < end; column += 16) {
    unsigned part[4];
    #pragma unroll
    for (int n = 0; n < 4; ++n)
      part[n] = tl_attention_pack<bf16>(acc_s[column / 2 + 2 * n], acc_s[column / 2 + 2 * n + 1]);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"((own ^ 2 * (column % panel)) + 128 * (column / panel * panel)),
                    "r"(part[0]), "r"(part[1]), "r"(part[2]), "r"(part[3]) : "memory");
  }
}
