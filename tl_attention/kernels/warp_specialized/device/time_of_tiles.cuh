// How long the tiles of packed sequences take, so that the length of parts can be chosen by it. Of a sequence it asks how
// many row tiles there are, and how many KV blocks the shortest and the longest of them have.

struct __align__(16) tl_attention_work { int tiles, least, most, pad; };
__device__ __forceinline__ long long tl_attention_sum_of_warp(long long own) {
  #pragma unroll
  for (int by = 16; by > 0; by /= 2) own += __shfl_xor_sync(0xffffffff, own, by);
  return own;
}
// In 32nds of the time of a block, for all heads, where a sequence of one tile with more than `most` blocks is split: what
// the longest tiles take in as many rounds as there are, or all work in equal shares. It is negative without room for the
// parts.
template <int workers, int tile_time, int merge_time>
__device__ __forceinline__ long long tl_attention_time(const tl_attention_work* work, int batch, int heads, int places, int most,
                                                       long long all) {
  int longest = 0, most_parts = 1, items = 0, split = 0, long_ones = 0;
  long long blocks_of_long = 0;
  for (int n = threadIdx.x % 32; n < batch; n += 32) {
    const tl_attention_work of = work[n];
    const int parts = of.tiles == 1 && of.most > most ? (of.most + most - 1) / most : 1;
    longest = max(longest, (of.most + parts - 1) / parts);
    items += parts > 1 ? parts : of.tiles;
    if (parts > 1) split += parts, most_parts = max(most_parts, parts);
  }
  longest = __reduce_max_sync(0xffffffff, longest);
  for (int n = threadIdx.x % 32; n < batch; n += 32) {
    const tl_attention_work of = work[n];
    const int parts = of.tiles == 1 && of.most > most ? (of.most + most - 1) / most : 1;
    const int count = parts > 1 ? parts : of.tiles, low = parts > 1 ? of.most / parts : of.least;
    const int high = (of.most + parts - 1) / parts;
    long long own = 0, blocks = 0;
    if (2 * (long long)low > longest) {
      own = count, blocks = parts > 1 ? of.most : (long long)count * (low + high) / 2;
    } else if (2 * (long long)high > longest) {
      own = parts > 1 ? of.most % parts : max((long long)count * (2 * (long long)high - longest) / (2 * (high - low)), 1ll);
      blocks = parts > 1 ? own * high : own * (2 * (long long)high + longest) / 4;
    }
    long_ones += (int)own, blocks_of_long += blocks;
  }
  most_parts = __reduce_max_sync(0xffffffff, most_parts), split = __reduce_add_sync(0xffffffff, split);
  const long long all_items = (long long)heads * __reduce_add_sync(0xffffffff, items);
  const long long all_long = (long long)heads * __reduce_add_sync(0xffffffff, long_ones);
  const long long of_long = heads * tl_attention_sum_of_warp(blocks_of_long);
  const long long in_rounds = all_long ? (all_long + workers - 1) / workers * (32 * of_long / all_long + tile_time) : 0;
  const long long in_shares = (32 * all * heads + tile_time * all_items) / workers, alone = 32ll * longest + tile_time;
  return split > places ? -1 : max(max(in_rounds, in_shares), alone) + (split ? merge_time + most_parts : 0);
}
