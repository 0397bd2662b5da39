// The producer warp hands over a tile's entry in the list, and behind it its head, in a place that is free.

__device__ __forceinline__ void tl_attention_hand_over(int* next, const int* entry, int head) {
  const int lane = threadIdx.x % 32;
  if (lane < 9) next[lane] = lane < 8 ? entry[lane] : head;
}
// No tile is left.
__device__ __forceinline__ void tl_attention_hand_over_none(int* next) {
  if (threadIdx.x % 32 < 9) next[threadIdx.x % 32] = -1;
}
// Lane 0 alone gets the number.
__device__ __forceinline__ int tl_attention_draw(int* counter, int workers) {
  return threadIdx.x % 32 == 0 ? atomicAdd(counter, 1) + workers : 0;
}
// All lanes get what lane 0 has drawn.
__device__ __forceinline__ int tl_attention_drawn(int number) { return __shfl_sync(0xffffffff, number, 0); }
