// Row tiles of packed sequences: first those of sequences of one row tile and of split ones, the longest first; then those of
// others, the longest first, for the heads that take turns, and once more, sequence by sequence, if there are other heads. One
// block sorts them by how many KV blocks they have, in buckets, in which they stay in their order. Each warp has as many tiles in a row as the others, and counts and places them 32 at a
// time. With `least`, a sequence of few row tiles may be split: each tile has an entry for each of its parts, about equally
// long ones, and each query is listed to be merged. Offsets that are wrong are cut to the tensors, so that no kernel gets
// beyond these.

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
// Of several tiles the first and the last tell.
template <int rows, int block_N>
__device__ __forceinline__ tl_attention_work tl_attention_work_of(int queries, int keys, int left, int right) {
  const int tiles = (queries + rows - 1) / rows;
  const tl_attention_blocks first = tl_attention_blocks_of<rows, block_N>(0, queries, keys, left, right);
  const tl_attention_blocks last = tl_attention_blocks_of<rows, block_N>(tiles - 1, queries, keys, left, right);
  const int of_first = max(first.end - first.first, 0), of_last = max(last.end - last.first, 0);
  return tiles ? tl_attention_work{tiles, min(of_first, of_last), max(of_first, of_last), queries} : tl_attention_work{};
}
// The sum of the values of a lane and those before it, of so many lanes.
template <int lanes>
__device__ __forceinline__ int tl_attention_sum_up_to(int own) {
  #pragma unroll
  for (int by = 1; by < lanes; by *= 2) {
    const int other = __shfl_up_sync(0xffffffff, own, by);
    if (threadIdx.x % 32 >= by) own += other;
  }
  return own;
}
// The sums of all threads' values before this one's, in the place of its values, and of all of them.
template <int count, int warps>
__device__ __forceinline__ void tl_attention_sums_before(int (&values)[count], int (*of_warps)[warps], int (&sums)[count]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int own[count];
  for (int n = 0; n < count; ++n) own[n] = tl_attention_sum_up_to<32>(values[n]);
  __syncthreads();
  for (int n = 0; n < count; ++n)
    if (lane == 31) of_warps[n][warp] = own[n];
  __syncthreads();
  for (int n = 0; n < count; ++n) {
    const int before = tl_attention_sum_up_to<warps>(of_warps[n][lane % warps]);
    sums[n] = __shfl_sync(0xffffffff, before, warps - 1);
    const int of_warps_before = __shfl_sync(0xffffffff, before, max(warp - 1, 0));
    values[n] = own[n] - values[n] + (warp ? of_warps_before : 0);
  }
}
// What stands before those of a sequence: entries of the list, places of parts, and queries to be merged; and how many parts
// each of its tiles has. One that is not split has no places, but entries of those that stand sequence by sequence.
struct __align__(16) tl_attention_before { int entries, places, queries, parts; };
// The last sequence with at most so many of `which` before its own, which has that of this number.
__device__ __forceinline__ int tl_attention_sequence_with(const tl_attention_before* all, int batch, int which, int number) {
  int n = 0, beyond = batch;
  #pragma unroll 1
  while (beyond - n > 1) {
    const int middle = (n + beyond) / 2;
    if (((const int*)(all + middle))[which] <= number) n = middle; else beyond = middle;
  }
  return n;
}
template <int rows, int cluster, int block_N, int block_M, int taper, int least, int most_tiles, int tile_time, int merge_time,
          int uneven>
__device__ __forceinline__ void tl_attention_list_tiles(
    const int* begins_q, const int* begins_k, const int* used_q, const int* used_k, int left, int right, int bounds,
    int count_q, int count_k, int total_q, int total_k, int workers, int heads, int results, int* tiles) {
  constexpr int buckets = 32, warps = 16, threads = 32 * warps, most_near = 1024, sums = least ? 4 : 2;
  __shared__ int counts[2 * buckets * warps], of_warps[sums][warps], longest, most_parts;
  __shared__ tl_attention_work near[most_near];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, batch = bounds - 1;
  const bool all_q = count_q == bounds, all_k = count_k == bounds;
  const int places = least ? results / (block_M * heads) : 0;
  const int room = total_q / rows + batch + places, room_of_queries = min(total_q, places / 2 * rows);
  int4* split_queries = (int4*)(tiles + 8 * (2 * room + 1));
  // A sequence's work becomes what stands before it; of many sequences behind the list.
  tl_attention_work* work = batch <= most_near ? near : (tl_attention_work*)(split_queries + room_of_queries);
  tl_attention_before* before = (tl_attention_before*)work;
  if (thread == 0) longest = 0, most_parts = 1;
  #pragma unroll 1
  for (int n = thread; n < batch; n += threads) {
    const int queries = tl_attention_sequence_of(begins_q, used_q, n, all_q, total_q).length;
    const int keys = tl_attention_sequence_of(begins_k, used_k, n, all_k, total_k).length;
    work[n] = tl_attention_work_of<rows, block_N>(queries, keys, left, right);
  }
  int most = INT_MAX;
  if constexpr (least > 0)
    most = tl_attention_soonest<warps, least, most_tiles, tile_time, merge_time, uneven>(work, batch, workers, heads, places);
  const float by_most = __fdividef(1.0f, most);
  int all_before[sums] = {}, most_blocks = 0;
  #pragma unroll 1
  for (int begin = 0; begin < batch; begin += threads) {
    const int n = begin + thread;
    const tl_attention_work of = n < batch ? work[n] : tl_attention_work{};
    const int parts = least ? tl_attention_parts_of<most_tiles>(of, most, by_most) : 1;
    const bool few = parts > 1 || of.tiles == 1;
    int own[sums] = {of.tiles * parts, few ? 0 : of.tiles}, sum[sums];
    if (parts > 1) own[2 % sums] = own[0], own[3 % sums] = of.queries, atomicMax(&most_parts, parts);
    most_blocks = max(most_blocks, (of.most + parts - 1) / parts);
    tl_attention_sums_before<sums, warps>(own, of_warps, sum);
    for (int which = 0; which < sums; ++which) own[which] += all_before[which], all_before[which] += sum[which];
    if (n < batch) before[n] = {own[0], own[few ? 2 % sums : 1], own[3 % sums], parts};
  }
  counts[thread] = counts[threads + thread] = 0;
  most_blocks = __reduce_max_sync(0xffffffff, most_blocks);
  __syncthreads();
  if (lane == 0) atomicMax(&longest, most_blocks);
  if constexpr (least > 0) {
    #pragma unroll 1
    for (int number = thread; number < min(all_before[3 % sums], room_of_queries); number += threads) {
      const int n = tl_attention_sequence_with(before, batch, 2, number), query = number - before[n].queries;
      const int row = tl_attention_sequence_of(begins_q, used_q, n, all_q, total_q).begin + query, parts = before[n].parts;
      split_queries[number] = make_int4(row, before[n].places + query / rows * parts, parts, query % rows);
    }
  }
  const int count = min(all_before[0], room), of_warp = (count + threads - 1) / threads * 32;
  const int from = warp * of_warp, end = min(from + of_warp, count);
  __syncthreads();
  int4 entry[2];
  int bucket = 0, in_sequence = 0, of_few = 0, in_turns = heads;
  #pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    #pragma unroll 1
    for (int first = from; first < end; first += 32) {
      const int number = first + lane;
      const unsigned active = __ballot_sync(0xffffffff, number < end);
      if (number < end) {
        // Of one tile for each thread the second pass knows the entry.
        if (pass == 0 || of_warp > 32) {
          const int n = tl_attention_sequence_with(before, batch, 0, number), parts = least ? before[n].parts : 1;
          const tl_attention_sequence q = tl_attention_sequence_of(begins_q, used_q, n, all_q, total_q);
          const tl_attention_sequence k = tl_attention_sequence_of(begins_k, used_k, n, all_k, total_k);
          const int own = number - before[n].entries, part = least ? own % parts : 0, in_order = least ? own / parts : own;
          // Rows of a causal mask need the more keys the later they are.
          const int tile = left < 0 && right >= 0 ? (q.length + rows - 1) / rows - 1 - in_order : in_order;
          tl_attention_blocks of = tl_attention_blocks_of<rows, block_N>(tile, q.length, k.length, left, right);
          entry[0] = make_int4(tile * cluster, q.begin, q.length, k.begin), entry[1] = make_int4(k.length, 0, INT_MAX, 0);
          if (parts > 1) {
            const int blocks = of.end - of.first;
            of.first += blocks / parts * part + min(part, blocks % parts);
            of.end = of.first + blocks / parts + (part < blocks % parts);
            entry[1] = make_int4(k.length, of.first, of.end, 1 + before[n].places + tile * parts + part);
          }
          bucket = min(max(longest - (of.end - of.first), 0) * buckets / (longest + 1), buckets - 1);
          in_sequence = -1;
          if (parts == 1 && q.length > rows) bucket += buckets, in_sequence = before[n].places + own;
        }
        const unsigned same = __match_any_sync(active, bucket);
        int* place = counts + bucket * warps + warp;
        const int at = *place + __popc(same & ((1u << lane) - 1));
        __syncwarp(active);
        if (lane == __ffs(same) - 1) *place += __popc(same);
        __syncwarp(active);
        if (pass) {
          for (int list = 0; list < 1 + (in_turns < heads && in_sequence >= 0); ++list) {
            int4* listed = (int4*)(tiles + 8 * (1 + (list ? count + in_sequence : at)));
            listed[0] = entry[0], listed[1] = entry[1];
          }
        }
      }
    }
    __syncthreads();
    if (pass == 0) {
      const int first = counts[2 * thread];
      int own[1] = {first + counts[2 * thread + 1]}, sum[1];
      tl_attention_sums_before<1, warps>(own, of_warps, sum);
      counts[2 * thread] = own[0], counts[2 * thread + 1] = own[0] + first;
      __syncthreads();
      of_few = counts[buckets * warps], in_turns = min(heads, (taper * workers - 1) / max(count - of_few, 1) + 1);
      __syncthreads();
    }
  }
  if (thread == 0) {
    tiles[0] = count, tiles[5] = heads - in_turns, tiles[6] = of_few;
    if constexpr (least > 0)
      tiles[1] = min(all_before[3 % sums], room_of_queries), tiles[2] = most_parts, tiles[3] = 8 * (2 * room + 1), tiles[4] = most;
  }
}
