// How many KV blocks parts of packed sequences have at most, so that all tiles are computed soonest. Of a sequence it asks how
// many row tiles there are, and how many blocks the shortest and the longest of its first and its last have. Times are in those
// of a block; what other things take is given in 32nds.

struct __align__(16) tl_attention_work { int tiles, least, most, queries; };
// The integer at or above a quotient of integers, which is exact for numbers of up to 20 bits; `by` is one over the divisor.
__device__ __forceinline__ int tl_attention_quotient(int number, float by) { return (int)((number - 0.5f) * by) + 1; }
// In how many parts each tile of a sequence is computed, if a part has `most` blocks at most. Only few tiles that are about
// equally long have parts.
template <int most_tiles>
__device__ __forceinline__ int tl_attention_parts_of(tl_attention_work of, int most, float by_most) {
  return of.tiles <= most_tiles && of.most > most && 2 * of.least > of.most ? tl_attention_quotient(of.most, by_most) : 1;
}
// Each lane tries another length, from twice an equal share of all work for each worker to a seventh, and each warp has some of
// the sequences. The time is what the longest items take in as many rounds as there are, or all work in equal shares, which are
// the less equal the longer an item is. Lengths whose parts have no room are not taken. All threads of a block come here.
template <int warps, int least, int most_tiles, int tile_time, int merge_time, int uneven>
__device__ __forceinline__ int tl_attention_soonest(const tl_attention_work* work, int batch, int workers, int heads,
                                                    int places) {
  constexpr float tile = tile_time / 32.0f;
  const float by_workers = 1.0f / workers;
  __shared__ int longest_of[32], items_of[32], split_of[32], most_parts_of[32], soonest;
  __shared__ float2 sums[warps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float all = 0.0f;
  #pragma unroll 1
  for (int n = threadIdx.x; n < batch; n += 32 * warps) all += 0.5f * (work[n].least + work[n].most) * work[n].tiles;
  #pragma unroll
  for (int by = 16; by > 0; by /= 2) all += __shfl_xor_sync(0xffffffff, all, by);
  if (lane == 0) sums[warp][0].x = all;
  if (warp == 0) longest_of[lane] = items_of[lane] = split_of[lane] = most_parts_of[lane] = 0;
  __syncthreads();
  all = 0.0f;
  #pragma unroll
  for (int n = 0; n < warps; ++n) all += sums[n][0].x;
  // Of 32 lengths, eight halve the share.
  const float share = heads * all * (2.0f * by_workers) * exp2f(-0.125f * lane);
  const int most = max((int)min(ceilf(share), (float)(1 << 30)), least);
  const float by_most = __fdividef(1.0f, most);
  int longest = 0, most_parts = 1, items = 0, split = 0;
  #pragma unroll 1
  for (int n = warp; n < batch; n += warps) {
    const tl_attention_work of = work[n];
    const int parts = tl_attention_parts_of<most_tiles>(of, most, by_most);
    longest = max(longest, tl_attention_quotient(of.most, __fdividef(1.0f, parts)));
    items += parts * of.tiles;
    if (parts > 1) split += parts * of.tiles, most_parts = max(most_parts, parts);
  }
  if (warp < batch) {
    atomicMax(&longest_of[lane], longest), atomicMax(&most_parts_of[lane], most_parts);
    atomicAdd(&items_of[lane], items), atomicAdd(&split_of[lane], split);
  }
  __syncthreads();
  longest = longest_of[lane];
  float2 long_ones = {0.0f, 0.0f};
  #pragma unroll 1
  for (int n = warp; n < batch; n += warps) {
    const tl_attention_work of = work[n];
    const int parts = tl_attention_parts_of<most_tiles>(of, most, by_most);
    // The items of a sequence are about evenly as long as its shortest to its longest.
    const float by = __fdividef(1.0f, parts), high = of.most * by, low = of.least * by, from = max(low, 0.5f * longest);
    const float own = high < from ? 0.0f : parts * of.tiles * (high > low ? __fdividef(high - from, high - low) : 1.0f);
    long_ones.x += own, long_ones.y += own * 0.5f * (from + high);
  }
  sums[warp][lane] = long_ones;
  __syncthreads();
  if (warp == 0) {
    #pragma unroll
    for (int n = 1; n < warps; ++n) long_ones.x += sums[n][lane].x, long_ones.y += sums[n][lane].y;
    const float all_items = (float)heads * items_of[lane], rounds = ceilf(heads * long_ones.x * by_workers - 0.001f);
    const float in_rounds = long_ones.x > 0.0f ? rounds * (__fdividef(long_ones.y, long_ones.x) + tile) : 0.0f;
    const float unequal = all_items > workers ? uneven / 32.0f * longest : 0.0f;
    const float in_shares = (heads * all + tile * all_items) * by_workers + unequal;
    const float merging = split_of[lane] ? (merge_time + most_parts_of[lane]) / 32.0f : 0.0f;
    const float time = split_of[lane] > places ? INFINITY : max(max(in_rounds, in_shares), longest + tile) + merging;
    float least_time = time;
    #pragma unroll
    for (int by = 16; by > 0; by /= 2) least_time = min(least_time, __shfl_xor_sync(0xffffffff, least_time, by));
    const unsigned taken = __ballot_sync(0xffffffff, time == least_time && time < INFINITY);
    if (lane == max(__ffs(taken) - 1, 0)) soonest = taken ? most : INT_MAX;
  }
  __syncthreads();
  return soonest;
}
