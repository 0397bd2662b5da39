"""Fragments of Q, K and V from shared memory by ldmatrix, and the products of them by mma.sync m16n8k16.

A statement that is split loads or multiplies `steps` steps of 16 columns, or keys, from step `first` on. `q`, `k` and `v`
say which step in the registers of Q, K and V the first of them is.

A lane gives ldmatrix the address of a row of 8 of one of the 8 x 8 matrices that it brings (PTX ISA, ldmatrix), and has
of each of them what the fragment of a product has of it (PTX ISA, mma.m16n8k16).
"""

import tilelang.language as T

from tl_attention.lowering.mma_sync.copies import element


@T.macro
def frag_q(t, tile, s, c, first=0, steps=None, q=0):
    """Q_local = columns of Q: of each 16 rows and 16 columns the upper and lower 8 rows, left 8 columns first."""
    fragments_of_q(first, steps, q, s, c)


@T.macro
def keep_q(t, tile, s, c):
    """Q_local = all columns of Q, for all blocks."""
    fragments_of_q(0, None, 0, s, c)


@T.macro
def fragments_of_q(first, steps, place, s, c):
    """Q_local = `steps` steps of 16 columns of Q from step `first` on; the first of them is step `place` in the registers."""
    products = c.block_M // c.rows
    for step in T.unroll(c.head_dim // 16 if steps is None else steps):
        for i in T.unroll(products):
            row = i * c.rows + s.thread // 32 * 16 + s.thread % 16
            at = element(row, (first + step) * 2 + s.thread % 32 // 16, c.block_M, c.head_dim, c)
            ldmatrix(4, False, s.Q_shared, at, s.Q_local, ((place + step) * products + i) * 8)


def ldmatrix(matrices, transposed, shared, at, registers, place):
    """Loads so many 8 x 8 matrices: a lane says where one row of 8 stands, and gets two elements of each matrix."""
    return T.ptx_ldmatrix(
        T.bool(transposed),
        matrices,
        T.access_ptr(shared[at], "r", extent=8),
        T.access_ptr(registers[place], "w", extent=2 * matrices),
    )


@T.macro
def frag_k(t, tile, s, c, first=0, steps=None, k=0):
    """K_local = columns of K of the block: of each 8 keys and 16 columns, the first 8 and the last 8."""
    slot = t % c.kernel.k_stages * (c.block_N * c.head_dim)
    for step in T.unroll(steps_of(steps, c.head_dim)):
        if c.kernel.ldmatrix == "x4":
            for j in T.unroll(c.block_N // 16):
                key = j * 16 + s.thread % 8 + s.thread % 32 // 16 * 8
                at = slot + element(key, (first + step) * 2 + s.thread % 16 // 8, c.block_N, c.head_dim, c)
                ldmatrix(4, False, s.K_shared, at, s.K_local, (k + step) * (c.block_N // 2) + j * 8)
        else:
            for j in T.unroll(c.block_N // 8):
                key = j * 8 + s.thread % 8
                at = slot + element(key, (first + step) * 2 + s.thread % 16 // 8, c.block_N, c.head_dim, c)
                ldmatrix(2, False, s.K_shared, at, s.K_local, (k + step) * (c.block_N // 2) + j * 4)


@T.macro
def frag_v(t, tile, s, c, first=0, steps=None, v=0):
    """V_local = rows of V of the block, transposed: of each 8 columns and 16 keys, the first 8 and the last 8."""
    slot = t % c.kernel.v_stages * (c.block_N * c.head_dim_v)
    for step in T.unroll(steps_of(steps, c.block_N)):
        key = (first + step) * 16 + s.thread % 16
        if c.kernel.ldmatrix == "x4":
            for j in T.unroll(c.head_dim_v // 16):
                at = slot + element(key, j * 2 + s.thread % 32 // 16, c.block_N, c.head_dim_v, c)
                ldmatrix(4, True, s.V_shared, at, s.V_local, (v + step) * (c.head_dim_v // 2) + j * 8)
        else:
            for j in T.unroll(c.head_dim_v // 8):
                at = slot + element(key, j, c.block_N, c.head_dim_v, c)
                ldmatrix(2, True, s.V_shared, at, s.V_local, (v + step) * (c.head_dim_v // 2) + j * 4)


@T.macro
def mma0(t, tile, s, c, first=0, steps=None, q=0, k=0):
    """acc_s += Q_local K_local^T over a chunk's columns; the first one clears acc_s."""
    products = c.block_M // c.rows
    if first == 0:
        for i in T.unroll(products * c.block_N // 2):
            s.acc_s[i] = 0
    for step in T.unroll(steps_of(steps, c.head_dim)):
        for j in T.unroll(c.block_N // 8):
            for i in T.unroll(products):
                multiply(
                    s.Q_local,
                    ((q + step) * products + i) * 8,
                    s.K_local,
                    (k + step) * (c.block_N // 2) + j * 4,
                    s.acc_s,
                    i * (c.block_N // 2) + j * 4,
                    c,
                )


@T.macro
def mma1(t, tile, s, c, first=0, steps=None, v=0):
    """acc_o += acc_s_cast V_local over a chunk's keys."""
    products = c.block_M // c.rows
    for step in T.unroll(steps_of(steps, c.block_N)):
        for j in T.unroll(c.head_dim_v // 8):
            for i in T.unroll(products):
                multiply(
                    s.acc_s_cast,
                    i * (c.block_N // 2) + (first + step) * 8,
                    s.V_local,
                    (v + step) * (c.head_dim_v // 2) + j * 4,
                    s.acc_o,
                    i * (c.head_dim_v // 2) + j * 4,
                    c,
                )


def multiply(A, a, B, b, C, at, c):
    """C += A B: 16 rows, 8 columns, 16 deep."""
    dtype = "bf16" if c.dtype == "bfloat16" else "fp16"
    return T.ptx_mma(
        "float32", "m16n8k16", "row", "col", dtype, dtype, "fp32", A.data, a, B.data, b, C.data, at, T.bool(False)
    )


def steps_of(steps, columns):
    """How many steps of 16 columns, or keys, are multiplied: all unless the statement is split."""
    return columns // 16 if steps is None else steps
