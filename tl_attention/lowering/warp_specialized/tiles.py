"""Which row tile is next, and where it is.

A tile here is that of a whole cluster: block_M rows for each of its blocks.
"""

import tilelang.language as T

from tl_attention.lowering.iterations import Tile

# K and V of the heads of a section fit in the L2 cache of an H100 (50 MB) beside everything else.
SECTION_BYTES = 32 << 20
# At most so many tiles for each worker are taken from the last heads together, the longest first.
TAPER = 4


@T.macro
def variables(c):
    """A tile in variables, which the next one comes into: TileLang would put the expressions into the loops."""
    tile = T.alloc_var("int32")
    turn = T.alloc_var("int32")
    base = T.alloc_var("int32")
    first_row = T.alloc_var("int32")
    head = T.alloc_var("int32")
    bz = T.alloc_var("int32")
    blocks = T.alloc_var("int32")
    visible = T.alloc_var("int32")
    first = T.alloc_var("int32") if c.mask.left is not None else 0
    cut = T.alloc_var("int32") if c.mask.left is not None else 0
    return Tile(first, blocks, first_row, head, bz, visible, cut, turn=turn, base=base, number=tile)


def put(variable, value):
    """Puts a value into a variable of a tile: TileLang assigns to names only."""
    T.buffer_store(variable.buffer, value, variable.indices)


def named(tile, wg=None):
    """The tile by names of its own for its numbers: the variables that they come from would go into every expression."""
    return values_of(
        tile.turn, tile.base, tile.first, tile.blocks, tile.first_row, tile.head, tile.batch, tile.visible, tile.cut, wg
    )


@T.macro
def values_of(turn, base, first, blocks, first_row, head, bz, visible, cut, wg):
    """A tile of these numbers: a macro's parameters are names in the generated code."""
    return Tile(first, blocks, first_row, head, bz, visible, cut, turn=turn, base=base, wg=wg)


def workers(c):
    """Blocks, or clusters, that fill the GPU."""
    if c.kernel.blocks_per_sm > 1:
        return c.sms * c.kernel.blocks_per_sm // c.kernel.cluster
    return c.sms // c.kernel.cluster if c.sms > c.kernel.cluster else 1


def place(tile, row_tiles, heads, s, c):
    """(row tile, head of all batches) of a tile."""
    row, head = ORDERS[c.kernel.tile_order](tile, row_tiles, heads, s, c)
    if c.mask.grows:
        # A head's last tile is its longest.
        row = row_tiles - 1 - row
    return row, head


def by_rows(tile, row_tiles, heads, s, c):
    """The tiles of a head one after another."""
    return tile % row_tiles, tile // row_tiles


def tapered(tile, row_tiles, heads, s, c):
    """By rows, but the last heads together, from their first tiles to their last.

    The last of many workers (blocks, or clusters) to take a long tile keeps the others waiting.
    """
    width = T.min(heads, T.ceildiv(taper(c.head_dim, c.head_dim_v) * workers(c), row_tiles))
    within = tile - (heads - width) * row_tiles
    row = T.if_then_else(within < 0, tile % row_tiles, within // width)
    head = T.if_then_else(within < 0, tile // row_tiles, heads - width + within % width)
    return row, head


def taper(head_dim, head_dim_v):
    """Fewer tiles where K and V of their heads have more than 256 columns together: they would leave the L2 cache."""
    return min(TAPER, TAPER * 256 // (head_dim + head_dim_v))


def by_sections(tile, row_tiles, heads, s, c):
    """The first tiles of a section of heads, then their next."""
    section = (
        section_heads(heads, s.seq_kv, c) if c.group == 1 else section_heads(heads // c.group, s.seq_kv, c) * c.group
    )
    first = tile // (section * row_tiles) * section
    within = tile % (section * row_tiles)
    width = T.min(section, heads - first)
    return within // width, first + within % width


def section_heads(heads, seq_kv, c):
    """Heads of a section: K and V have 2 bytes for each key and column."""
    return T.max(1, T.min(heads, SECTION_BYTES // (seq_kv * ((c.head_dim + c.head_dim_v) * 2))))


ORDERS = {"rows": by_rows, "tapered": tapered, "sections": by_sections}
