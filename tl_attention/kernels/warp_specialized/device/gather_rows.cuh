// Each thread copies 16 bytes of the caller's queries to where a query's `row_heads` heads have their rows behind each other.
// The LSE of each row has all bits 1 until a part of the keys is computed: so it stays where the row is no sequence's.

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
