// What both forms of the softcap below compute with.

__device__ __forceinline__ float tl_attention_inverse(float x) {
  asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}
__device__ __forceinline__ float tl_attention_one_more_exponential(float x, bool bounded) {
  x *= 2.8853900817779268f;
  if (bounded) asm("min.NaN.f32 %0, %0, 0f41F00000;" : "+f"(x));
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return 1.0f + x;
}
