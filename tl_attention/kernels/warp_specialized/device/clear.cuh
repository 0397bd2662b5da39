// Rows of a tile from `first` on become 0. The tile has 64 rows of `columns` columns in panels, as TMA swizzles them: a
// swizzle moves 16 bytes within their row, so rows of a panel that follow each other are bytes that do. A warp does it.

template <int columns, int first> __device__ __forceinline__ void tl_attention_clear(void* tile) {
  constexpr int panel = columns % 64 == 0 ? 64 : 32, of_row = panel / 8;
  #pragma unroll
  for (int column = 0; column < columns; column += panel)
    for (int place = first * of_row + threadIdx.x; place < 64 * of_row; place += 32)
      ((uint4*)tile)[64 * column / 8 + place] = make_uint4(0, 0, 0, 0);
}
