// Runs the threads of a thread block on the host, a context for each. WARPS says how many warps a block has.
// It has no jumps between stacks.
#undef _FORTIFY_SOURCE
#include <algorithm>
#include <climits>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(bytes) alignas(bytes)
using std::max;
using std::min;
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct int4 { int x, y, z, w; };
float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
constexpr int LANES = 32, THREADS = WARPS * LANES;
struct { int x; } threadIdx, blockIdx, blockDim{THREADS}, gridDim{1};

// Threads take turns: one that waits for others gives up its turn until the last of them has come.
jmp_buf turns, contexts[THREADS];
bool moved;
struct Group {
  int arrived = 0, times = 0;
  void wait(int threads) {
    const int before = times;
    moved = true;
    if (++arrived == threads) arrived = 0, ++times;
    while (times == before)
      if (!_setjmp(contexts[threadIdx.x])) _longjmp(turns, 1);
  }
};
// Of the threads of a warp all wait for each other, or some.
Group warps[WARPS][2], block;
std::function<void()> kernel;
bool ended[THREADS];
void run() {
  kernel();
  moved = ended[threadIdx.x] = true;
  _longjmp(turns, 1);
}
// A warp runs on until all of its threads have ended or wait for the block. What is right is so in any order of the warps and
// threads, such as from the last to the first.
void run_block(bool from_last = false) {
  static char stacks[THREADS][1 << 15];
  static ucontext_t begins[THREADS];
  static bool begun[THREADS];
  static int warp, lane;
  for (int thread = 0; thread < THREADS; ++thread) {
    getcontext(&begins[thread]);
    begins[thread].uc_stack = {stacks[thread], 0, sizeof stacks[thread]};
    makecontext(&begins[thread], run, 0);
    ended[thread] = begun[thread] = false;
  }
  while (std::count(ended, ended + THREADS, false)) {
    for (warp = 0; warp < WARPS; ++warp) {
      do {
        moved = false;
        for (lane = 0; lane < LANES; ++lane) {
          const int turn = warp * LANES + lane;
          threadIdx.x = from_last ? THREADS - 1 - turn : turn;
          if (ended[threadIdx.x] || _setjmp(turns)) continue;
          if (begun[threadIdx.x]) _longjmp(contexts[threadIdx.x], 1);
          begun[threadIdx.x] = true;
          setcontext(&begins[threadIdx.x]);
        }
      } while (moved);
    }
  }
}

// What a function makes of the values of those of a warp's threads that `mask` has.
void __syncwarp(unsigned mask = ~0u) { warps[threadIdx.x / LANES][mask != ~0u].wait(__builtin_popcount(mask)); }
template <class T, class Function> auto of_warp(unsigned mask, T value, Function made) {
  static T values[WARPS][LANES];
  T* of_own = values[threadIdx.x / LANES];
  of_own[threadIdx.x % LANES] = value;
  __syncwarp(mask);
  const auto found = made(of_own);
  __syncwarp(mask);
  return found;
}
template <class Function> unsigned lanes_of(unsigned mask, Function which) {
  unsigned found = 0;
  for (int lane = 0; lane < LANES; ++lane)
    if (mask >> lane & 1 && which(lane)) found |= 1u << lane;
  return found;
}
template <class T> T __shfl_sync(unsigned mask, T value, int lane) {
  return of_warp(mask, value, [&](const T* values) { return values[lane % LANES]; });
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int by) {
  return __shfl_sync(mask, value, threadIdx.x % LANES ^ by);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, int by) {
  const int lane = threadIdx.x % LANES;
  return __shfl_sync(mask, value, lane < by ? lane : lane - by);
}
unsigned __ballot_sync(unsigned mask, bool value) {
  return of_warp(mask, value, [&](const bool* values) { return lanes_of(mask, [&](int lane) { return values[lane]; }); });
}
unsigned __match_any_sync(unsigned mask, int value) {
  return of_warp(mask, value, [&](const int* values) { return lanes_of(mask, [&](int lane) { return values[lane] == value; }); });
}
int __reduce_max_sync(unsigned mask, int value) {
  return of_warp(mask, value, [&](const int* values) {
    int most = INT_MIN;
    lanes_of(mask, [&](int lane) { return most = max(most, values[lane]), false; });
    return most;
  });
}
int __reduce_add_sync(unsigned mask, int value) {
  return of_warp(mask, value, [&](const int* values) {
    int sum = 0;
    lanes_of(mask, [&](int lane) { return sum += values[lane], false; });
    return sum;
  });
}
void __syncthreads() { block.wait(THREADS); }
int __popc(unsigned x) { return __builtin_popcount(x); }
int __ffs(unsigned x) { return __builtin_ffs(x); }
void atomicMax(int* place, int value) { *place = max(*place, value); }
void atomicAdd(int* place, int value) { *place += value; }
float __fdividef(float a, float b) { return a / b; }
float __log2f(float x) { return std::log2(x); }
int __float_as_int(float x) { int bits; std::memcpy(&bits, &x, 4); return bits; }
float __int_as_float(int bits) { float x; std::memcpy(&x, &bits, 4); return x; }
template <class T> T __ldcg(const T* place) { return *place; }
