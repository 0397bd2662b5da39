// A number of each row's head, of rows of several heads in one tile; a thread has two rows. Idle rows have the last head's.

template <int heads, int box> __device__ __forceinline__ void tl_attention_read_heads(float* own, const float* of_heads) {
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  own[0] = of_heads[min(row / box, heads - 1)];
  own[1] = of_heads[min((row + 8) / box, heads - 1)];
}
