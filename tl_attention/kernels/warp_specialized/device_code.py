"""These CUDA device functions do what TileLang cannot say; a kernel includes them as its prelude.

A thread of a warpgroup holds acc_s and acc_o as wgmma leaves them: register 4 g + 2 h + c is row lane / 4 + 8 h of its
warp's 16 rows, column 8 g + 2 (lane % 4) + c.
"""

from tl_attention.kernels.shared.device_code import STORE, STRIDED_STORE

# A wait names no register, so ptxas moves it up, before the exponentials that the product should overlap. A store that
# depends on an exponential, and never happens (the scale is positive), holds it behind that one. ptxas also takes the
# exponentials in its own order: to have exactly a chunk before the wait, `hold` all of it (a call takes four in eight),
# and make the rest depend on a load after the wait that never happens either.
HOLD = """
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
"""

# The same of a tensor that has fewer columns than the tile: the last lanes of a row may have nothing to store.
STORE_COLUMNS = "\n" + STORE[STORE.index("template <int head_dim") :].replace(
    "tl_attention_store", "tl_attention_store_columns"
).replace("chunk < head_dim / 32", "chunk < (head_dim + 31) / 32").replace(
    "row + 8 * half < rows", "row + 8 * half < rows && 32 * chunk + 8 * member < head_dim"
).replace("head_dim", "columns")

# The output of a part of the keys, in fp32: the four lanes of a row store 32 bytes next to each other.
STORE_PART = """
template <int columns> __device__ __forceinline__ void tl_attention_store_part(const float* acc_o, float* output, int rows) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, member = lane % 4;
  #pragma unroll
  for (int half = 0; half < 2; ++half) {
    #pragma unroll
    for (int group = 0; group < columns / 8; ++group) {
      if (row + 8 * half < rows)
        ((float2*)output)[(row + 8 * half) * (columns / 2) + 4 * group + member] =
            make_float2(acc_o[4 * group + 2 * half], acc_o[4 * group + 2 * half + 1]);
    }
  }
}
"""

# Rows of parts of the keys become rows of all keys, as `merge` in op/partial.py says it. A lane has four columns of a row
# in every 128, and loads those of eight parts at once. More parts have more warps, up to eight, whose sums are put
# together. What a part has for a row of which it sees no key does not count, whatever it is. Of packed sequences, rows of
# `row_heads` heads lie behind each other for each query. A row that is no sequence's is left alone: its LSE has the bits
# that GATHER_ROWS gave it, all 1.
MERGE_PARTS = """
__device__ __forceinline__ float tl_attention_weight(float lse, float largest) {
  return lse == -INFINITY ? 0.0f : lse == largest ? 1.0f : exp2f((lse - largest) * 1.44269504f);
}
__device__ __forceinline__ float tl_attention_largest_of_eight(float value) {
  #pragma unroll
  for (int by = 4; by > 0; by /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, by));
  return value;
}
__device__ __forceinline__ float tl_attention_sum_of_eight(float value) {
  #pragma unroll
  for (int by = 4; by > 0; by /= 2) value += __shfl_xor_sync(0xffffffff, value, by);
  return value;
}
__device__ __forceinline__ void tl_attention_add(float4* sum, float scale, float weight, float4 own) {
  sum->x = sum->x * scale + weight * (weight > 0.0f ? own.x : 0.0f);
  sum->y = sum->y * scale + weight * (weight > 0.0f ? own.y : 0.0f);
  sum->z = sum->z * scale + weight * (weight > 0.0f ? own.z : 0.0f);
  sum->w = sum->w * scale + weight * (weight > 0.0f ? own.w : 0.0f);
}
template <int columns, bool bf16, int row_heads = 0>
__device__ __forceinline__ void tl_attention_merge(const float* outputs, const float* lses, void* merged, float* merged_lse,
                                                   int parts, int rows, int heads, int seq_q, int64_t batch_stride,
                                                   int64_t head_stride, int64_t row_stride,
                                                   const float* sinks = nullptr, int all_heads = 1) {
  constexpr int warps = 8, at_once = 8, panels = (columns + 127) / 128;
  __shared__ float4 sums[warps][32 * panels];
  __shared__ float maxima[warps], totals[warps];
  const int of_block = 1 + (warps - 1) / ((parts + at_once - 1) / at_once), of_row = warps / of_block;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = warp % of_row;
  const int own_row = warp < of_block * of_row ? blockIdx.x * of_block + warp / of_row : rows, row = min(own_row, rows - 1);
  const int of_head = row % seq_q, own_head = row / seq_q % heads, batch = row / seq_q / heads;
  const int of_query = row_heads ? row_heads : 1, query = of_head / of_query, head = own_head * of_query + of_head % of_query;
  float largest = -INFINITY, total = 0.0f;
  if (sinks && rank == 0) {
    largest = sinks[row_heads ? head : row % (heads * seq_q) / (heads * seq_q / all_heads)];
    if (lane % 8 == 0) total = tl_attention_weight(largest, largest);
  }
  float4 sum[panels] = {};
  for (int first = rank * at_once; first < parts; first += of_row * at_once) {
    const int own_part = first + lane % 8;
    const float lse = own_part < parts ? lses[(int64_t)own_part * rows + row] : -INFINITY;
    float4 own[at_once][panels];
    #pragma unroll
    for (int n = 0; n < at_once; ++n) {
      #pragma unroll
      for (int panel = 0; panel < panels; ++panel) {
        const int64_t of_part = (int64_t)min(first + n, parts - 1) * rows + row;
        own[n][panel] = __ldcg((const float4*)(outputs + of_part * columns + min(128 * panel + 4 * lane, columns - 4)));
      }
    }
    const float before = largest;
    largest = fmaxf(before, tl_attention_largest_of_eight(lse));
    const float scale = tl_attention_weight(before, largest), of_lane = tl_attention_weight(lse, largest);
    total = total * scale + of_lane;
    #pragma unroll
    for (int n = 0; n < at_once; ++n) {
      const float weight = __shfl_sync(0xffffffff, of_lane, n);
      #pragma unroll
      for (int panel = 0; panel < panels; ++panel) tl_attention_add(&sum[panel], n ? 1.0f : scale, weight, own[n][panel]);
    }
  }
  total = tl_attention_sum_of_eight(total);
  if (of_row > 1) {
    #pragma unroll
    for (int panel = 0; panel < panels; ++panel) {
      sums[warp][32 * panel + lane] = sum[panel];
      sum[panel] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    if (lane == 0) maxima[warp] = largest, totals[warp] = total;
    __syncthreads();
    if (rank) return;
    const bool counts = lane % 8 < of_row;
    const float of_warp = counts ? maxima[warp + lane % 8] : -INFINITY;
    largest = tl_attention_largest_of_eight(of_warp);
    const float of_lane = tl_attention_weight(of_warp, largest);
    total = tl_attention_sum_of_eight(counts ? of_lane * totals[warp + lane % 8] : 0.0f);
    for (int n = 0; n < of_row; ++n) {
      const float weight = __shfl_sync(0xffffffff, of_lane, n);
      #pragma unroll
      for (int panel = 0; panel < panels; ++panel)
        tl_attention_add(&sum[panel], 1.0f, weight, sums[warp + n][32 * panel + lane]);
    }
  }
  if (own_row >= rows || (row_heads && __float_as_int(lses[row]) == -1)) return;
  if (lane == 0)
    merged_lse[row_heads ? head * (seq_q / of_query) + query : row] =
        largest > -INFINITY ? largest + 0.693147181f * __log2f(total) : -INFINITY;
  unsigned* place = (unsigned*)merged + (batch * batch_stride + head * head_stride + query * row_stride) / 2;
  const float by = total > 0.0f ? 1.0f / total : 0.0f;
  #pragma unroll
  for (int panel = 0; panel < panels; ++panel) {
    const int column = 128 * panel + 4 * lane;
    if (column < columns)
      *(uint2*)(place + column / 2) = make_uint2(tl_attention_pack<bf16>(sum[panel].x * by, sum[panel].y * by),
                                                 tl_attention_pack<bf16>(sum[panel].z * by, sum[panel].w * by));
  }
}
"""

# P as wgmma reads it from shared memory: K-major in panels of 64 columns, or 32, or 16, in which the 16 bytes of number
# c of a row stand at c ^ the row, or half of it, or a quarter. A warp stores its 16 rows, 16 columns at a time: four
# matrices of 8 x 8, which are four registers of two columns each.
STORE_P = """
template <int columns, int first, int end, bool bf16>
__device__ __forceinline__ void tl_attention_store_p(const float* acc_s, void* P) {
  constexpr int panel = columns % 64 == 0 ? 64 : columns % 32 == 0 ? 32 : 16;
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
  const int place = 2 * row * panel + 16 * (lane / 16 ^ row * panel / 64 % (panel / 8));
  const unsigned own = __cvta_generic_to_shared(P) + place;
  #pragma unroll
  for (int column = first; column < end; column += 16) {
    unsigned part[4];
    #pragma unroll
    for (int n = 0; n < 4; ++n)
      part[n] = tl_attention_pack<bf16>(acc_s[column / 2 + 2 * n], acc_s[column / 2 + 2 * n + 1]);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"((own ^ 2 * (column % panel)) + 128 * (column / panel * panel)),
                    "r"(part[0]), "r"(part[1]), "r"(part[2]), "r"(part[3]) : "memory");
  }
}
"""

# Whether any row of the warp has a new maximum: the others are scaled by exactly 1.
GREW = """
__device__ __forceinline__ bool tl_attention_grew(const float* scores_scale) {
  return __any_sync(0xffffffff, scores_scale[0] != 1.0f || scores_scale[1] != 1.0f);
}
"""

# Row tiles of packed sequences, in two lists: sequence by sequence, so that tiles that run together share K and V in the
# L2 cache, and the longest first. One block sorts them by how many KV blocks they have, in buckets, in which they stay in
# their order. Each warp has as many tiles in a row as the others, and counts and places them 32 at a time. Offsets that are wrong are
# cut to the tensors, so that no kernel gets beyond these.
LIST_TILES = """
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
"""
# Each thread copies 16 bytes of the caller's queries to where a query's `row_heads` heads have their rows behind each other.
# The LSE of each row has all bits 1 until a part of the keys is computed: so it stays where the row is no sequence's.
GATHER_ROWS = """
template <int columns, int row_heads>
__device__ __forceinline__ void tl_attention_gather_rows(const void* queries, int64_t row_stride, int64_t head_stride, void* rows,
                                                         float* lse, int count, int heads) {
  constexpr int chunks = columns / 8;
  const int64_t own = (int64_t)(blockIdx.x - 1) * (blockDim.x / chunks) + threadIdx.x / chunks;
  if (threadIdx.x / chunks >= blockDim.x / chunks || own >= (int64_t)count * heads) return;
  const int row = own / heads, head = own % heads, chunk = threadIdx.x % chunks;
  const int64_t from = row / row_heads * row_stride + (head * row_heads + row % row_heads) * head_stride;
  ((uint4*)rows)[own * chunks + chunk] = ((const uint4*)((const unsigned short*)queries + from))[chunk];
  if (chunk == 0) lse[(int64_t)head * count + row] = __int_as_float(-1);
}
"""
# The producer warp hands over a tile's entry in the list, with its head and its number in places that are free.
HAND_OVER = """
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
"""

# The same for every kernel, whatever it calls.
PRELUDE = HOLD + STORE + GREW
# Rows of a strided output are as far apart as its stride says.
STRIDED_PRELUDE = HOLD + STRIDED_STORE + GREW
STRIDED_STORE_COLUMNS = STORE_COLUMNS.replace("int rows)", "int rows, int64_t row_stride)").replace(
    "columns / 8)", "row_stride / 8)"
)


def exp2_polynomial(coefficients):
    """Returns the text of the CUDA function tl_attention_exp2, which computes 2^x by a polynomial on the FMA units.

    It is 2^floor(x) p(x - floor(x)); x below -127 counts as -127. `coefficients` are those of p, the constant first.
    """
    horner = f"{coefficients[-1]!r}f"
    for coefficient in reversed(coefficients[:-1]):
        horner = f"fmaf({horner}, fraction, {coefficient!r}f)"
    return f"""
__device__ __forceinline__ float tl_attention_exp2(float x) {{
  x = fmaxf(x, -127.0f);
  const float whole = floorf(x), fraction = x - whole;
  const float power = {horner};
  return __int_as_float(__float_as_int(power) + ((int)whole << 23));
}}
"""
