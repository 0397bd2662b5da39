// Whether any row of the warp has a new maximum: the others are scaled by exactly 1.

template <int rows> __device__ __forceinline__ bool tl_attention_grew(const float* scores_scale) {
  bool grew = false;
  #pragma unroll
  for (int r = 0; r < rows; ++r) grew |= scores_scale[r] != 1.0f;
  return __any_sync(0xffffffff, grew);
}
