"""These CUDA device functions do what TileLang cannot say; a kernel includes them as its prelude.

A thread of a warpgroup holds acc_s and acc_o as wgmma leaves them: register 4 g + 2 h + c is row lane / 4 + 8 h of its
warp's 16 rows, column 8 g + 2 (lane % 4) + c.
"""

from tl_attention.lowering.device_code import STORE, STRIDED_STORE

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
