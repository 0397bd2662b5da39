// Whether any row of the warp has a new maximum: the others are scaled by exactly 1.

__device__ __forceinline__ bool tl_attention_grew(const float* scores_scale) {
  return __any_sync(0xffffffff, scores_scale[0] != 1.0f || scores_scale[1] != 1.0f);
}
