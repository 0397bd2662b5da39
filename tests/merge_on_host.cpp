// Runs the device function that merges parts of the keys on the host, a thread for each of a block's, and compares it with
// sums in double. Rows without a key have NaN in their parts' outputs, which must not count.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <list>
#include <random>
#include <thread>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __shared__ static
using std::max;
using std::min;
struct float4 { float x, y, z, w; };
struct uint2 { unsigned x, y; };
float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
constexpr int WARPS = 8, LANES = 32;
thread_local struct { int x; } threadIdx, blockIdx;
std::barrier<>* together[WARPS];
float shown[WARPS][LANES];
float __shfl_sync(unsigned, float value, int lane) {
  const int warp = threadIdx.x / LANES;
  shown[warp][threadIdx.x % LANES] = value;
  together[warp]->arrive_and_wait();
  const float found = shown[warp][lane];
  together[warp]->arrive_and_wait();
  return found;
}
float __shfl_xor_sync(unsigned all, float value, int by) { return __shfl_sync(all, value, (threadIdx.x % LANES) ^ by); }
std::barrier<>* block_together;
void __syncthreads() { block_together->arrive_and_wait(); }
float __log2f(float x) { return std::log2(x); }
template <class T> T __ldcg(const T* place) { return *place; }
template <bool bf16> unsigned tl_attention_pack(float low, float high) {
  const auto rounded = [](float x) { unsigned u; std::memcpy(&u, &x, 4); return (u + 0x7fff + ((u >> 16) & 1)) >> 16; };
  return rounded(low) | (rounded(high) << 16);
}
#include "merge.h"

template <int columns> double error_of(int parts, int batch, int heads, int seq_q, int all_heads, bool has_sinks) {
  std::mt19937 random(parts);
  std::normal_distribution<float> normal;
  const int rows = batch * heads * seq_q;
  std::vector<float> outputs(size_t(parts) * rows * columns), lses(size_t(parts) * rows), merged_lse(rows), sinks(all_heads);
  for (auto& x : outputs) x = normal(random);
  for (size_t i = 0; i < lses.size(); ++i) {
    lses[i] = random() % 4 && i % rows % 5 ? 3 * normal(random) : -INFINITY;
    if (lses[i] == -INFINITY) std::fill_n(outputs.begin() + i * columns, columns, NAN);
  }
  for (auto& x : sinks) x = 2 * normal(random);
  sinks[0] = -INFINITY;
  std::vector<uint16_t> merged(size_t(rows) * columns);
  const int of_block = 1 + (WARPS - 1) / ((parts + 7) / 8);
  for (int block = 0; block * of_block < rows; ++block) {
    std::list<std::barrier<>> of_warps;
    for (auto& of_warp : together) of_warp = &of_warps.emplace_back(LANES);
    std::barrier<> of_all(WARPS * LANES);
    block_together = &of_all;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < WARPS * LANES; ++thread)
      threads.emplace_back([&, thread] {
        threadIdx.x = thread, blockIdx.x = block;
        const int64_t of_head = int64_t(seq_q) * columns;
        tl_attention_merge<columns, true>(outputs.data(), lses.data(), merged.data(), merged_lse.data(), parts, rows, heads,
                                          seq_q, heads * of_head, of_head, columns, has_sinks ? sinks.data() : nullptr,
                                          all_heads);
      });
    for (auto& thread : threads) thread.join();
  }
  double worst = 0;
  const auto note = [&](double error) { worst = error <= worst ? worst : std::isnan(error) ? INFINITY : error; };
  for (int row = 0; row < rows; ++row) {
    double total = has_sinks ? std::exp(double(sinks[row % (heads * seq_q) * all_heads / (heads * seq_q)])) : 0;
    for (int part = 0; part < parts; ++part) total += std::exp(double(lses[part * rows + row]));
    note(total > 0 ? std::abs(merged_lse[row] - std::log(total)) : merged_lse[row] == -INFINITY ? 0 : INFINITY);
    for (int column = 0; column < columns; ++column) {
      double wanted = 0;
      for (int part = 0; part < parts; ++part)
        if (const int of = part * rows + row; lses[of] > -INFINITY)
          wanted += std::exp(double(lses[of])) / total * outputs[size_t(of) * columns + column];
      const unsigned bits = merged[size_t(row) * columns + column] << 16;
      float found;
      std::memcpy(&found, &bits, 4);
      // bf16 has 8 bits.
      note(std::abs(found - wanted) - std::abs(wanted) / 256);
    }
  }
  return worst;
}

int main() {
  for (int parts : {1, 2, 9, 31, 33, 133})
    for (bool sinks : {false, true})
      std::printf("%g %g %g %g\n", error_of<128>(parts, 2, 3, 5, 3, sinks), error_of<64>(parts, 1, 2, 8, 8, sinks),
                  error_of<104>(parts, 1, 1, 6, 3, sinks), error_of<256>(parts, 1, 2, 3, 6, sinks));
}
