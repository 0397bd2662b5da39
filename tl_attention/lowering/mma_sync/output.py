"""What the threads write: their rows of the output."""

import tilelang.language as T

from tl_attention.lowering.device_code import is_bf16
from tl_attention.lowering.features import Totals, at_totals
from tl_attention.lowering.rows import element_of


@T.macro
def store(first_row, tile, s, c):
    """Output = acc_o / denominator."""
    products = c.block_M // c.rows
    for r in T.unroll(2 * products):
        s.denominator[r] += T.shfl_xor(s.denominator[r], 1)
        s.denominator[r] += T.shfl_xor(s.denominator[r], 2)
    if c.features.at_totals:
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
    """The i-th 16 rows of each warp, and their totals, for what features do with them."""
    maxima, totals = T.address_of(s.scores_max[2 * i]), T.address_of(s.denominator[2 * i])
    return Totals(s.scale, maxima, totals, tile.batch, tile.head, first_row + i * c.rows)


@T.macro
def store_rows(row, register, tile, s, c):
    """16 bytes a lane, of 16 rows of each warp: lanes exchange what they hold."""
    function = f"tl_attention_store<{c.head_dim_v}, {is_bf16(c)}>"
    if c.strided:
        T.call_extern(
            "handle",
            function,
            T.address_of(s.acc_o[register]),
            T.address_of(element_of(s.given.Output, tile.batch, tile.head, row)),
            s.seq_q - row,
            s.given.Output.strides[2],
        )
    else:
        T.call_extern(
            "handle",
            function,
            T.address_of(s.acc_o[register]),
            T.address_of(element_of(s.given.Output, tile.batch, tile.head, row)),
            s.seq_q - row,
        )
