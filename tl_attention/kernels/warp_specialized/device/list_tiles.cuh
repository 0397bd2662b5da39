// Row tiles of packed sequences, the longest first. One block sorts them by how many KV blocks they have, in buckets, in
// which they stay in their order. Each warp has as many tiles in a row as the others, and counts and places them 32 at a
// time. With `least`, a sequence of one row tile may be split: it has an entry for each of its parts, about equally long
// ones, and each of its queries is listed to be merged. Each warp tries another length of parts, from twice an equal share of
// all work for each worker to a seventh; that with which all takes the least time is taken. Offsets that are wrong are cut to
// the tensors, so that no kernel gets beyond these.

struct tl_attention_sequence { int begin, length; };
__device__ __forceinline__ tl_attention_sequence tl_attention_sequence_of(const int* begins, const int* used, int n,
                                                                         bool all, int total) {
  const int begin = min(max(begins[n], 0), total), end = min(max(begins[n + 1], begin), total);
  return {begin, all ? end - begin : min(max(used[n], 0), end - begin)};
}
// The KV blocks that a row tile of a sequence visits, from `first` on.
struct tl_attention_blocks { int first, end; };
template <int rows, int block_N>
__device__ __forceinline__ tl_attention_blocks tl_attention_blocks_of(int tile, int queries, int keys, int left, int right) {
  const int past = keys - queries;
  tl_attention_blocks found = {0, (keys + block_N - 1) / block_N};
  if (right >= 0) found.end = min(found.end, max(0, (tile + 1) * rows - 1 + past + right + block_N) / block_N);
  if (left >= 0) found.first = max(tile * rows + past - left, 0) / block_N;
  return found;
}
// The sum of all threads' values before this one's, and of all of them.
__device__ __forceinline__ int tl_attention_sum_before(int value, int* of_warps, int* sum) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int own = value;
  #pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const int other = __shfl_up_sync(0xffffffff, own, by);
    if (lane >= by) own += other;
  }
  __syncthreads();
  if (lane == 31) of_warps[warp] = own;
  __syncthreads();
  int before = of_warps[lane];
  #pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const int other = __shfl_up_sync(0xffffffff, before, by);
    if (lane >= by) before += other;
  }
  *sum = __shfl_sync(0xffffffff, before, 31);
  return own - value + (warp ? __shfl_sync(0xffffffff, before, warp - 1) : 0);
}
template <int rows, int cluster, int block_N, int block_M, int tile_heads, int least, int workers, int tile_time,
          int merge_time>
__device__ __forceinline__ void tl_attention_list_tiles(
    const int* begins_q, const int* begins_k, const int* used_q, const int* used_k, int left, int right, int bounds,
    int count_q, int count_k, int total_q, int total_k, int all_heads, int results, int words, int* tiles) {
  constexpr int buckets = 32, warps = 32;
  __shared__ int counts[buckets * warps], of_warps[warps], longest, most_parts;
  __shared__ unsigned long long twice_all;
  __shared__ long long times[warps];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, batch = bounds - 1;
  const bool all_q = count_q == bounds, all_k = count_k == bounds;
  const int heads = all_heads / tile_heads, places = least ? results / (block_M * heads) : 0;
  const int room = total_q / rows + batch + places, room_of_queries = min(total_q, places / 2 * rows);
  int *starts = tiles + words - bounds, *bases = starts - bounds;
  int4* split_queries = (int4*)(tiles + 8 * (room + 1));
  if (thread == 0) longest = 0, most_parts = 1, twice_all = 0;
  __syncthreads();
  int most = INT_MAX;
  if (least) {
    // It stands where entries will: these are as many as sequences at least.
    tl_attention_work* work = (tl_attention_work*)(tiles + 8);
    long long own = 0;
    for (int n = thread; n < batch; n += 32 * warps) {
      const int queries = tl_attention_sequence_of(begins_q, used_q, n, all_q, total_q).length;
      const int keys = tl_attention_sequence_of(begins_k, used_k, n, all_k, total_k).length, of_one = (queries + rows - 1) / rows;
      // Of several tiles the first and the last tell.
      const tl_attention_blocks first = tl_attention_blocks_of<rows, block_N>(0, queries, keys, left, right);
      const tl_attention_blocks last = tl_attention_blocks_of<rows, block_N>(of_one - 1, queries, keys, left, right);
      const int of_first = max(first.end - first.first, 0), of_last = max(last.end - last.first, 0);
      work[n] = {of_one, of_one ? min(of_first, of_last) : 0, of_one ? max(of_first, of_last) : 0, 0};
      if (of_one) own += (long long)(of_first + of_last) * of_one;
    }
    own = tl_attention_sum_of_warp(own);
    if (lane == 0) atomicAdd(&twice_all, (unsigned long long)own);
    __syncthreads();
    // Of 32 warps, eight halve the share.
    constexpr int eighths[] = {512, 470, 431, 395, 362, 332, 304, 279};
    const unsigned long long shares = twice_all * heads * (eighths[warp % 8] >> warp / 8), one = 512ull * workers;
    const int own_most = (int)min(max((shares + one - 1) / one, (unsigned long long)least), 1ull << 30);
    const long long time = tl_attention_time<workers, tile_time, merge_time>(work, batch, heads, places, own_most, twice_all / 2);
    if (lane == 0) times[warp] = time;
    if (lane == 0) of_warps[warp] = own_most;
    __syncthreads();
    long long soonest = -1;
    for (int n = 0; n < warps; ++n)
      if (times[n] >= 0 && (soonest < 0 || times[n] < soonest)) soonest = times[n], most = of_warps[n];
    __syncthreads();
  }
  int count = 0, placed = 0, split = 0, most_blocks = 0;
  for (int first = 0; first < batch; first += 32 * warps) {
    const int n = first + thread;
    int own = 0, own_parts = 0, sum;
    tl_attention_sequence q = {0, 0};
    if (n < batch) {
      q = tl_attention_sequence_of(begins_q, used_q, n, all_q, total_q);
      const int keys = tl_attention_sequence_of(begins_k, used_k, n, all_k, total_k).length;
      own = (q.length + rows - 1) / rows;
      int blocks = (keys + block_N - 1) / block_N;
      if (least && own == 1) {
        const tl_attention_blocks of = tl_attention_blocks_of<rows, block_N>(0, q.length, keys, left, right);
        blocks = of.end - of.first;
        if (blocks > most) {
          own = own_parts = (blocks + most - 1) / most;
          blocks = (blocks + own - 1) / own;
          atomicMax(&most_parts, own_parts);
        }
      }
      if (own) most_blocks = max(most_blocks, blocks);
    }
    const int before = tl_attention_sum_before(own, of_warps, &sum);
    if (n < batch) starts[n] = count + before;
    count += sum;
    if (least) {
      const int base = placed + tl_attention_sum_before(own_parts, of_warps, &sum);
      placed += sum;
      if (n < batch) bases[n] = base;
      const int listed = split + tl_attention_sum_before(own_parts ? q.length : 0, of_warps, &sum);
      split += sum;
      for (int query = 0; own_parts && query < q.length && listed + query < room_of_queries; ++query)
        split_queries[listed + query] = make_int4(q.begin + query, base, own_parts, query);
    }
  }
  counts[thread] = 0;
  most_blocks = __reduce_max_sync(0xffffffff, most_blocks);
  __syncthreads();
  if (lane == 0) atomicMax(&longest, most_blocks);
  count = min(count, room);
  const int of_warp = (count + 32 * warps - 1) / (32 * warps) * 32;
  const int from = warp * of_warp, end = min(from + of_warp, count);
  __syncthreads();
  #pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    for (int first = from; first < end; first += 32) {
      const int number = first + lane;
      const unsigned active = __ballot_sync(0xffffffff, number < end);
      if (number < end) {
        int n = 0, beyond = batch;
        while (beyond - n > 1) {
          const int middle = (n + beyond) / 2;
          if (starts[middle] <= number) n = middle; else beyond = middle;
        }
        const tl_attention_sequence q = tl_attention_sequence_of(begins_q, used_q, n, all_q, total_q);
        const tl_attention_sequence k = tl_attention_sequence_of(begins_k, used_k, n, all_k, total_k);
        const int of_one = (q.length + rows - 1) / rows, own = number - starts[n];
        int tile = left < 0 && right >= 0 ? of_one - 1 - own : own, place = 0;
        if (least && of_one == 1) tile = 0;
        tl_attention_blocks of = tl_attention_blocks_of<rows, block_N>(tile, q.length, k.length, left, right);
        int own_end = INT_MAX;
        if (least && of_one == 1 && of.end - of.first > most) {
          const int blocks = of.end - of.first, parts = (blocks + most - 1) / most;
          of.first += blocks / parts * own + min(own, blocks % parts);
          own_end = of.end = of.first + blocks / parts + (own < blocks % parts);
          place = 1 + bases[n] + own;
        }
        const int bucket = min(max(longest - (of.end - of.first), 0) * buckets / (longest + 1), buckets - 1);
        const unsigned same = __match_any_sync(active, bucket);
        int* before = counts + bucket * warps + warp;
        const int at = *before + __popc(same & ((1u << lane) - 1));
        __syncwarp(active);
        if (lane == __ffs(same) - 1) *before += __popc(same);
        __syncwarp(active);
        if (pass) {
          int4* entry = (int4*)(tiles + 8 * (at + 1));
          entry[0] = make_int4(tile * cluster, q.begin, q.length, k.begin);
          entry[1] = make_int4(k.length, place ? of.first : 0, own_end, place);
        }
      }
    }
    __syncthreads();
    if (pass == 0) {
      int sum;
      const int before = tl_attention_sum_before(counts[thread], of_warps, &sum);
      counts[thread] = before;
      __syncthreads();
    }
  }
  if (thread == 0) {
    tiles[0] = count;
    if (least) tiles[1] = min(split, room_of_queries), tiles[2] = most_parts, tiles[3] = 8 * (room + 1);
  }
}
