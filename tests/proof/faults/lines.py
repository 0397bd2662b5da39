"""These patterns match lines of mma_sync kernels that copy, wait, meet, load a fragment, multiply, store or loop."""

WAITS, SYNCS, COMMITS = r"tl::cp_async_wait<", r"__syncthreads\(\);", r"tl::cp_async_commit\(\);"
COPIES, CHECKED = r"tl::cp_async_gs", r"tl::cp_async_gs_conditional"
FRAGMENTS, PRODUCTS, STORES = r"tl::ptx_ldmatrix_x", r"tl::mma_sync<", r"tl_attention_store(?:_lse|<)"
LOOPS = r"for \(int t\w* = 0;"
