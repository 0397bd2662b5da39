"""Tiles move here from global to shared memory by cp.async, 16 bytes of a row at a time, and rows of the output back.

Places in shared memory are worked out here too.
"""

from dataclasses import dataclass

import tilelang.language as T

from tl_attention.kernels.shared.device_code import is_bf16
from tl_attention.kernels.shared.features import Totals, at_totals
from tl_attention.kernels.shared.rows import store_arguments


def element(row, chunk, rows, columns, c):
    """Returns the offset, in elements, of a row's chunk of 8 elements in a tile in shared memory.

    Swizzled, it is chunk c ^ r of row r in a panel of 64 columns: eight rows that ldmatrix reads meet all banks.
    """
    if not c.kernel.swizzle:
        return row * columns + chunk * 8
    return chunk // 8 * (rows * 64) + row * 64 + (chunk % 8 ^ row % 8) * 8


@T.macro
def load_q(first_row, tile, s, c):
    """Starts the copies of the tile's rows of Q to Q_shared, with 0 for rows beyond the tensor's last."""
    copy_rows(
        s.given.Q,
        s.Q_shared,
        Copied(tile.queries, tile.head, 0, 0, c.block_M, c.head_dim),
        first_row,
        s,
        c,
        checked=True,
    )


@T.macro
def load_k(t, tile, s, c, masked):
    """Starts the copies of the block's K to its slot of K_shared; if `masked`, rows beyond the tensor's last are 0."""
    slot = t % c.kernel.k_stages * (c.block_N * c.head_dim)
    of = Copied(tile.keys, tile.kv_head, slot, tile.first * c.block_N, c.block_N, c.head_dim)
    copy_rows(s.given.K, s.K_shared, of, (tile.blocks - 1 - t) * c.block_N, s, c, checked=masked)


@T.macro
def load_v(t, tile, s, c, masked):
    """Starts the copies of the block's V to its slot of V_shared; if `masked`, rows beyond the tensor's last are 0."""
    slot = t % c.kernel.v_stages * (c.block_N * c.head_dim_v)
    of = Copied(tile.keys, tile.kv_head, slot, tile.first * c.block_N, c.block_N, c.head_dim_v)
    copy_rows(s.given.V, s.V_shared, of, (tile.blocks - 1 - t) * c.block_N, s, c, checked=masked)


@dataclass(frozen=True)
class Copied:
    """A Copied names rows of one head, from row `origin` on, and the element of shared memory where they go."""

    batch: object
    head: object
    slot: object
    origin: object
    rows: object
    columns: object


def copied(source, of, row, shared, at, chunk):
    """Returns (destination, source, 8), the arguments of a cp.async of 8 elements, or 16 bytes, of one row."""
    return (
        T.access_ptr(shared[at], "w", extent=8),
        T.access_ptr(source[of.batch, of.head, row, chunk * 8], "r", extent=8),
        8,
    )


@T.macro
def copy_rows(source, shared, of, first, s, c, checked):
    """Starts a group of copies of rows to shared memory; if `checked`, rows beyond the tensor's last are 0.

    Only blocks that need a mask can have such rows.
    """
    chunks = of.columns // 8
    at_once = c.threads // chunks
    for i in T.unroll(of.rows // at_once):
        row = i * at_once + s.thread // chunks
        at = of.slot + element(row, s.thread % chunks, of.rows, of.columns, c)
        if checked:
            T.ptx_cp_async(
                *copied(source, of, of.origin + first + row, shared, at, s.thread % chunks),
                of.origin + first + row < source.shape[2],
            )
        else:
            T.ptx_cp_async(*copied(source, of, of.origin + first + row, shared, at, s.thread % chunks))
    T.ptx_commit_group()


@T.macro
def store(first_row, tile, s, c):
    """Stores acc_o / denominator as the tile's output rows, after features have acted on the rows' totals."""
    products = c.block_M // c.rows
    for r in T.unroll(2 * products):
        s.denominator[r] += T.shfl_xor(s.denominator[r], 1)
        s.denominator[r] += T.shfl_xor(s.denominator[r], 2)
    if c.features.at("totals"):
        for i in T.unroll(products, explicit=True):
            at_totals(totals_of(i, first_row, tile, s, c), s, c)
    for r in T.unroll(2 * products):
        s.denominator[r] = 1.0 / s.denominator[r]
    for i in T.unroll(products):
        for j in T.unroll(c.head_dim_v // 8):
            for e in T.unroll(4):
                s.acc_o[i * (c.head_dim_v // 2) + j * 4 + e] *= s.denominator[i * 2 + e // 2]
    for i in T.unroll(products, explicit=True):
        store_rows(first_row + i * c.rows, i * (c.head_dim_v // 2), tile, s, c)


def totals_of(i, first_row, tile, s, c):
    """Returns the Totals of each warp's i-th 16 rows, for features such as the LSE to act on."""
    maxima, totals = T.address_of(s.scores_max[2 * i]), T.address_of(s.denominator[2 * i])
    return Totals(s.scale, maxima, totals, tile.queries, tile.seq_q, tile.head, first_row + i * c.rows)


@T.macro
def store_rows(row, register, tile, s, c):
    """Stores 16 output rows of each warp, 16 bytes a lane. Lanes exchange what they hold."""
    T.call_extern(
        "handle",
        f"tl_attention_store<{c.head_dim_v}, {is_bf16(c)}>",
        *store_arguments(T.address_of(s.acc_o[register]), row, tile, s, c),
    )
