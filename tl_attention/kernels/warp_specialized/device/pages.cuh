// Where keys lie in pages: by how many rows of K and V a key is behind where it would be if pages lay in the order of the
// block table, which names a page for each `page_size` keys. Whatever the table says, the page is one that there is.

__device__ __forceinline__ int tl_attention_page_shift(const int* table, int entries, int page_size, int page_rows, int pages,
                                                       int key) {
  const int entry = min(key / page_size, entries - 1), page = min(max(__ldg(table + entry), 0), pages - 1);
  return page * page_rows - entry * page_size;
}

// Each lane of a warp looks up the key of one box of a KV block: lane n that of n boxes behind `key`.
__device__ __forceinline__ int tl_attention_page_shifts(const int* table, int entries, int page_size, int page_rows, int pages,
                                                        int key, int box) {
  return tl_attention_page_shift(table, entries, page_size, page_rows, pages, key + threadIdx.x % 32 * box);
}

// By how many rows the keys of box number `of` are behind, which its lane has looked up.
__device__ __forceinline__ int tl_attention_shift_of(int shifts, int of) { return __shfl_sync(0xffffffff, shifts, of); }
