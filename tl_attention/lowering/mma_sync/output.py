"""What the threads write: their rows of the output."""

from types import SimpleNamespace

import tilelang.language as T

from tl_attention.lowering.device_code import is_bf16
from tl_attention.lowering.features import at_totals


@T.macro
def store(first_row, s, c):
    """Output = acc_o / denominator."""
    products = c.block_M // c.rows
    for r in T.unroll(2 * products):
        s.denominator[r] += T.shfl_xor(s.denominator[r], 1)
        s.denominator[r] += T.shfl_xor(s.denominator[r], 2)
    if c.features.at_totals:
        for i in T.unroll(products, explicit=True):
            at_totals(rows_of(i, first_row, s, c), s, c)
    for r in T.unroll(2 * products):
        s.denominator[r] = 1.0 / s.denominator[r]
    for i in T.unroll(products):
        for j in T.unroll(c.head_dim_v // 8):
            for e in T.unroll(4):
                s.acc_o[i * (c.head_dim_v // 2) + j * 4 + e] *= s.denominator[i * 2 + e // 2]
    for i in T.unroll(products, explicit=True):
        store_rows(first_row + i * c.rows, i * (c.head_dim_v // 2), s, c)


def rows_of(i, first_row, s, c):
    """The i-th 16 rows of each warp, and their totals, for what features do with them."""
    return SimpleNamespace(
        scale=s.scale,
        maxima=T.address_of(s.scores_max[2 * i]),
        totals=T.address_of(s.denominator[2 * i]),
        bz=s.bz,
        head=s.head,
        first_row=first_row + i * c.rows,
    )


@T.macro
def store_rows(row, register, s, c):
    """16 bytes a lane, of 16 rows of each warp: lanes exchange what they hold."""
    function = f"tl_attention_store<{c.head_dim_v}, {is_bf16(c)}>"
    if c.strided:
        T.call_extern(
            "handle",
            function,
            T.address_of(s.acc_o[register]),
            T.address_of(s.given.Output[s.bz, s.head, row, 0]),
            s.seq_q - row,
            s.given.Output.strides[2],
        )
    else:
        T.call_extern(
            "handle",
            function,
            T.address_of(s.acc_o[register]),
            T.address_of(s.given.Output[s.bz, s.head, row, 0]),
            s.seq_q - row,
        )
