// Rows of several heads in one tile: a warpgroup's row number r is row r % box of head r / box. The rows behind those of
// the last head are idle, and rows behind the sequence's last one are not stored. What stores them is tl_attention_store,
// tl_attention_store_part and tl_attention_store_lse with these places of rows in that of their own.

template <int heads, int box> struct tl_attention_heads {
  const int head, row;
  __device__ tl_attention_heads(int own) : head(own / box), row(own % box) {}
  __device__ bool there(int rows) const { return head < heads && row < rows; }
  __device__ int64_t place(int64_t row_stride, int64_t head_stride) const { return head * head_stride + row * row_stride; }
};
