// The producer warp hands over a tile's entry in the list, with its head and its number in places that are free.

__device__ __forceinline__ void tl_attention_hand_over(int* next, const int* entry, int head, int number) {
  const int lane = threadIdx.x % 32;
  if (lane < 8) next[lane] = lane == 5 ? head : lane == 6 ? number : entry[lane];
}
// No tile is left.
__device__ __forceinline__ void tl_attention_hand_over_none(int* next) {
  if (threadIdx.x % 32 < 8) next[threadIdx.x % 32] = -1;
}
// Lane 0 alone gets the number.
__device__ __forceinline__ int tl_attention_draw(int* counter, int workers) {
  return threadIdx.x % 32 == 0 ? atomicAdd(counter, 1) + workers : 0;
}
