// Row tiles of packed sequences, in two lists: sequence by sequence, so that tiles that run together share K and V in the
// L2 cache, and the longest first. One block sorts them by how many KV blocks they have, in buckets, in which they stay in
// their order. Each warp has as many tiles in a row as the others, and counts and places them 32 at a time. Offsets that are wrong are
// cut to the tensors, so that no kernel gets beyond these.

struct tl_attention_sequence { int begin, length; };
__device__ __forceinline__ tl_attention_sequence tl_attention_sequence_of(const int* begins, const int* used, int n,
                                                                         bool all, int total) {
  const int begin = min(max(begins[n], 0), total), end = min(max(begins[n + 1], begin), total);
  return {begin, all ? end - begin : min(max(used[n], 0), end - begin)};
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
template <int block_M, int cluster, int block_N, int row_heads>
__device__ __forceinline__ void tl_attention_list_tiles(
    const int* begins_q, const int* begins_k, const int* used_q, const int* used_k, int left, int right, int bounds,
    int count_q, int count_k, int total_q, int total_k, int parts, int words, int* tiles) {
  constexpr int rows = block_M * cluster, buckets = 32, warps = 32;
  __shared__ int counts[buckets * warps], of_warps[warps], longest;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, batch = bounds - 1;
  const bool all_q = count_q == bounds, all_k = count_k == bounds;
  const int queries = total_q / row_heads;
  int* starts = tiles + words - bounds;
  if (thread == 0) longest = 0;
  int count = 0, most = 0;
  for (int first = 0; first < batch; first += 32 * warps) {
    const int n = first + thread;
    int own = 0, sum;
    if (n < batch) {
      own = (tl_attention_sequence_of(begins_q, used_q, n, all_q, queries).length * row_heads + rows - 1) / rows;
      if (own) most = max(most, (tl_attention_sequence_of(begins_k, used_k, n, all_k, total_k).length + block_N - 1) / block_N);
    }
    const int before = tl_attention_sum_before(own, of_warps, &sum);
    if (n < batch) starts[n] = count + before;
    count += sum;
  }
  counts[thread] = 0;
  most = __reduce_max_sync(0xffffffff, most);
  __syncthreads();
  if (lane == 0) atomicMax(&longest, most);
  count = min(count, ((words - bounds) / 8 - 1) / 2);
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
        const tl_attention_sequence of_queries = tl_attention_sequence_of(begins_q, used_q, n, all_q, queries);
        const tl_attention_sequence q = {of_queries.begin * row_heads, of_queries.length * row_heads};
        const tl_attention_sequence k = tl_attention_sequence_of(begins_k, used_k, n, all_k, total_k);
        const int tile = number - starts[n], past = k.length - of_queries.length;
        const int own = left < 0 && right >= 0 ? (q.length + rows - 1) / rows - 1 - tile : tile;
        int last = (k.length + block_N - 1) / block_N, start = 0;
        if (right >= 0) last = min(last, max(0, ((own + 1) * rows - 1) / row_heads + past + right + block_N) / block_N);
        if (left >= 0) start = max(own * rows / row_heads + past - left, 0) / block_N;
        const int bucket = min(max(longest - (last - start), 0) * buckets / (longest + 1), buckets - 1);
        const unsigned same = __match_any_sync(active, bucket);
        int* place = counts + bucket * warps + warp;
        const int at = *place + __popc(same & ((1u << lane) - 1));
        __syncwarp(active);
        if (lane == __ffs(same) - 1) *place += __popc(same);
        __syncwarp(active);
        if (pass) {
          const int4 low = make_int4(own * cluster, q.begin, q.length, k.begin), high = make_int4(k.length, 0, 0, max(1, (longest + parts - 1) / parts));
          for (int* entry : {tiles + 8 + 8 * number, tiles + 8 + 8 * (count + at)}) {
            ((int4*)entry)[0] = low;
            ((int4*)entry)[1] = high;
          }
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
  if (thread == 0) tiles[0] = count;
}
