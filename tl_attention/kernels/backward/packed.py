"""Tiles of packed sequences come from a list here, as the forward's do; rows of K lie in it where its rows of Q do.

Numbers of rows, such as LSE, lie PADDED_ROWS further for each sequence before: no block has rows of two sequences. A
sequence's begin is rounded down to a multiple of TMA_NUMBERS first, as TMA loads a box from no other place.
"""

from dataclasses import replace

import tilelang.language as T

from tl_attention.kernels.backward.dialect import PADDED_ROWS, TMA_NUMBERS
from tl_attention.kernels.shared.device_code import DeviceCode
from tl_attention.kernels.warp_specialized.device_code import LIST_TILES
from tl_attention.kernels.warp_specialized.packed import Listed, draw, hand_over, receive, received_word
from tl_attention.kernels.warp_specialized.tiles import begin, put, reach, see, variables
from tl_attention.problem.packed import FEW, SEQUENCE, TURNS_FROM

# The forward's tiles of part of the keys say in this word where their results go.
LIST_SEQUENCES = LIST_TILES.replaced(
    "An entry has its sequence's number.", ("make_int4(k.length, 0, INT_MAX, 0)", "make_int4(k.length, 0, INT_MAX, n)")
)


def apart(row_facts: DeviceCode) -> DeviceCode:
    """Returns the device code for rows of O and dO that lie as far apart as their strides say."""
    return row_facts.replaced(
        "Rows lie apart.",
        ("int rows)", "int rows,\n int64_t output_stride, int64_t grad_stride)"),
        ("row * (columns / 8) + 4 * chunk", "4 * chunk"),
        ("output)[place]", "output)[row * (output_stride / 8) + place]"),
        ("grad)[place]", "grad)[row * (grad_stride / 8) + place]"),
    )


def numbers_of(sequence, head, row, tile, c):
    """Returns the indices (batch, head, row) of a number of a row of a sequence's head, such as its LSE."""
    if not c.packed:
        return sequence, head, row
    return 0, head, sequence - sequence % TMA_NUMBERS + PADDED_ROWS * tile.result + row


def numbers_from(tensor, head, first, tile, c):
    """Returns the slice of the numbers of a block of columns of a tile's sequence, from column `first` on."""
    batch, head, row = numbers_of(tile.keys, head, first, tile, c)
    return tensor[batch, head, row : row + c.block_N]


@T.macro
def work_packed(wg, block, s, c, of_tile, is_producer):
    """Works on the listed tiles in turn, as the producer warp if `is_producer`, else as the warpgroup `wg`.

    The macro `of_tile` loads a tile, or computes it.
    """
    sequence = T.alloc_var("int32")
    tile = replace(variables(s, c), result=sequence)
    listed = None
    put(tile.turn, 0)
    put(tile.base, 0)
    if is_producer:
        row_tiles = T.alloc_var("int32")
        few = T.alloc_var("int32")
        turns_from = T.alloc_var("int32")
        number = T.alloc_var("int32")
        T.pdl_sync()
        row_tiles = s.given.Tiles[0]
        few = s.given.Tiles[FEW]
        turns_from = s.given.Tiles[TURNS_FROM]
        number = block
        listed = Listed(number, row_tiles, few, turns_from)
        hand_over(number, row_tiles, few, turns_from, 0, s, c)
    receive_listed(tile, s, c, is_producer)
    while tile.first_row >= 0:
        reach(tile, s, c)
        if c.mask.left is not None:
            begin(tile, tile.first_row, s, c)
        if is_producer:
            if c.kernel.tile_scheduler == "dynamic":
                drawn = T.alloc_var("int32")
                drawn = draw(s)
                of_tile(tile, wg, s, c, is_producer=True, listed=replace(listed, number=drawn))
            else:
                number = number + s.given.workers
                of_tile(tile, wg, s, c, is_producer=True, listed=listed)
        else:
            see(tile, wg, s, c)
            of_tile(tile, wg, s, c, is_producer=False, listed=None)
        put(tile.turn, tile.turn + 1)
        receive_listed(tile, s, c, is_producer)


@T.macro
def receive_listed(tile, s, c, is_producer):
    """Waits for the entry that the producer warp hands over, and sets the tile's variables to it.

    Warpgroups find LSE and D of a tile of queries first, for which they need to know where its rows lie.
    """
    receive(tile, s, c, is_producer or c.variant.loop == "dq")
    if is_producer or c.variant.loop == "dq":
        put(tile.result, received_word(SEQUENCE, tile, s))
