// Rows of split sequences of packed ones, which list_tiles.cuh lists: a query's row of the output, the first of its tile's
// places, how many parts there are, and its number in the tile. Parts' results lie as the rows of a tile do, of each part
// one tile for each subgroup of heads.

template <int columns, bool bf16, int block_M, int group, int tile_heads, int box>
__device__ __forceinline__ void tl_attention_merge_listed(const float* outputs, const float* lses, void* merged,
                                                          float* merged_lse, const int* tiles, int heads, int total_q,
                                                          int64_t head_stride, int64_t row_stride,
                                                          const float* sinks = nullptr) {
  constexpr int subgroups = (group + tile_heads - 1) / tile_heads;
  const int4 told = *(const int4*)tiles;
  const int eights = (told.z + 7) / 8, row_bits = tl_attention_row_bits(eights), of_block = tl_attention_rows_at_once(eights);
  const int own_row = threadIdx.x / 32 >> row_bits, rows = told.y * heads, of_tiles = heads / group * subgroups;
  for (int first = blockIdx.x * of_block; first < rows; first += gridDim.x * of_block) {
    const int own = own_row < of_block ? first + own_row : rows, row = min(own, rows - 1), head = row % heads;
    const int4 query = ((const int4*)(tiles + told.w))[row / heads];
    // The last subgroup ends with its group.
    const int subgroup = head % group / tile_heads, member = head % group - min(subgroup * tile_heads, group - tile_heads);
    const int of_tile = query.w / box * 64 + member * box + query.w % box;
    const int64_t apart = (int64_t)of_tiles * block_M;
    const int64_t place = query.y * apart + (head / group * subgroups + subgroup) * block_M + of_tile;
    const auto element = [&] { return head * head_stride + query.x * row_stride; };
    tl_attention_merge_row<columns, bf16>(outputs, lses, {place, apart, query.z}, 1 << row_bits, own < rows,
                                          sinks ? sinks + head : nullptr, merged, element,
                                          merged_lse + ((int64_t)head * total_q + query.x));
    // The next rows' sums come where these are.
    __syncthreads();
  }
}
