// Rows of parts of the keys become rows of all keys, as `merge` in op/partial.py says it. A lane has four columns of a row
// in every 128, and loads those of eight parts at once. More parts have more warps, up to eight, whose sums are put
// together. What a part has for a row of which it sees no key does not count, whatever it is.

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
// Where parts' results of a row are: those of the first, and how many rows further those of the next.
struct tl_attention_row { int64_t first, apart; int parts; };
// Of up to so many parts 2^row_bits of a block's eight warps merge a row, and 1 + 7 / eights rows are merged at once. The loads
// wait for this, and a division would take as long as a load of its own.
__device__ __forceinline__ int tl_attention_row_bits(int eights) { return (eights > 1) + (eights > 3) + (eights > 7); }
__device__ __forceinline__ int tl_attention_rows_at_once(int eights) {
  return eights == 3 ? 3 : 8 >> tl_attention_row_bits(eights);
}
// `of_row` warps merge a row together, and all warps of a block come here at once. `element` says where the row's output is,
// which is not worked out before the loads.
template <int columns, bool bf16, typename Element>
__device__ __forceinline__ void tl_attention_merge_row(const float* outputs, const float* lses, tl_attention_row row,
                                                       int of_row, bool there, const float* sink, void* merged,
                                                       Element element, float* merged_lse) {
  constexpr int warps = 8, at_once = 8, panels = (columns + 127) / 128;
  __shared__ float4 sums[warps][32 * panels];
  __shared__ float maxima[warps], totals[warps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = warp & (of_row - 1);
  float largest = -INFINITY, total = 0.0f;
  if (sink && rank == 0) {
    largest = *sink;
    if (lane % 8 == 0) total = tl_attention_weight(largest, largest);
  }
  float4 sum[panels] = {};
  for (int first = rank * at_once; first < row.parts; first += of_row * at_once) {
    const int own_part = first + lane % 8;
    const float lse = own_part < row.parts ? lses[row.first + own_part * row.apart] : -INFINITY;
    const float* of_part = outputs + (row.first + first * row.apart) * columns;
    float4 own[at_once][panels];
    #pragma unroll
    for (int n = 0; n < at_once; ++n, of_part += row.apart * columns) {
      #pragma unroll
      for (int panel = 0; panel < panels; ++panel) {
        const float4* place = (const float4*)(of_part + min(128 * panel + 4 * lane, columns - 4));
        own[n][panel] = first + n < row.parts ? __ldcg(place) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
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
  if (!there) return;
  if (lane == 0) *merged_lse = largest > -INFINITY ? largest + 0.693147181f * __log2f(total) : -INFINITY;
  unsigned* place = (unsigned*)merged + element() / 2;
  const float by = total > 0.0f ? 1.0f / total : 0.0f;
  #pragma unroll
  for (int panel = 0; panel < panels; ++panel) {
    const int column = 128 * panel + 4 * lane;
    if (column < columns)
      *(uint2*)(place + column / 2) = make_uint2(tl_attention_pack<bf16>(sum[panel].x * by, sum[panel].y * by),
                                                 tl_attention_pack<bf16>(sum[panel].z * by, sum[panel].w * by));
  }
}
// Rows of a batch, whose parts' results lie one behind the other as those of more batches.
template <int columns, bool bf16>
__device__ __forceinline__ void tl_attention_merge(const float* outputs, const float* lses, void* merged, float* merged_lse,
                                                   int parts, int rows, int heads, int seq_q, int64_t batch_stride,
                                                   int64_t head_stride, int64_t row_stride, const float* sinks = nullptr) {
  const int eights = (parts + 7) / 8, row_bits = tl_attention_row_bits(eights), of_block = tl_attention_rows_at_once(eights);
  const int own_row = threadIdx.x / 32 >> row_bits;
  const int own = own_row < of_block ? blockIdx.x * of_block + own_row : rows, row = min(own, rows - 1);
  const auto element = [&] {
    return row / seq_q / heads * batch_stride + row / seq_q % heads * head_stride + row % seq_q * row_stride;
  };
  tl_attention_merge_row<columns, bf16>(outputs, lses, {row, rows, parts}, 1 << row_bits, own < rows,
                                        sinks ? sinks + row / seq_q % heads : nullptr, merged, element, merged_lse + row);
}
