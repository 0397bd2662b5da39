// A wait names no register, so ptxas moves it up, before the exponentials that the product should overlap. A store that
// depends on an exponential, and never happens (the scale is positive), holds it behind that one. ptxas also takes the
// exponentials in its own order: to have exactly a chunk before the wait, `hold` all of it (a call takes four in eight),
// and make the rest depend on a load after the wait that never happens either.

template <int first, int end> __device__ __forceinline__ void tl_attention_hold(const float* acc_s, float scale) {
  #pragma unroll
  for (int i = first; i + 4 <= end; i += 8)
    asm volatile("{.reg .pred p; setp.lt.f32 p, %4, 0f00000000; @p st.volatile.shared.v4.f32 [%5], {%0, %1, %2, %3};}"
                 :: "f"(acc_s[i]), "f"(acc_s[i + 1]), "f"(acc_s[i + 2]), "f"(acc_s[i + 3]), "f"(scale), "r"(0)
                 : "memory");
}
template <int last> __device__ __forceinline__ void tl_attention_hold_last(const float* acc_s, float scale) {
  asm volatile("{.reg .pred p; setp.lt.f32 p, %1, 0f00000000; @p st.volatile.shared.f32 [%2], %0;}"
               :: "f"(acc_s[last]), "f"(scale), "r"(0) : "memory");
}
__device__ __forceinline__ void tl_attention_resume(float* scores_max, float scale) {
  asm volatile("{.reg .pred p; setp.lt.f32 p, %2, 0f00000000; @p ld.volatile.shared.v2.f32 {%0, %1}, [%3];}"
               : "+f"(scores_max[0]), "+f"(scores_max[1]) : "f"(scale), "r"(0) : "memory");
}
