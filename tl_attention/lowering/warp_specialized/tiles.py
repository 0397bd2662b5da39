"""Which row tile is next: the order of the tiles, and their coordinates.

A tile here is that of a whole cluster: block_M rows for each of its blocks.
"""

import tilelang.language as T

# K and V of the heads of a section fit in the L2 cache of an H100 (50 MB) beside everything else.
SECTION_BYTES = 32 << 20
# So many tiles for each worker are taken from the last heads together, the longest first.
TAPER = 4


def tile_places(*, workers, order, longest_first):
    """The function place(tile, row_tiles, heads, section): (row tile, head of all batches) of the tile-th tile.

    `rows`: the tiles of a head one after another. `sections`: the longest tiles of `section` heads, then their next.
    `tapered`: rows, but the last heads are one section, since the last of many `workers` (blocks, or clusters) to take
    a long tile keeps the others waiting. `longest_first`: a head's last tile is its longest, and comes first.
    """

    def place(tile, row_tiles, heads, section):
        if order == "rows":
            row, head = tile % row_tiles, tile // row_tiles
        elif order == "tapered":
            width = T.min(heads, T.ceildiv(TAPER * workers, row_tiles))
            inside = tile - (heads - width) * row_tiles
            row = T.if_then_else(inside < 0, tile % row_tiles, inside // width)
            head = T.if_then_else(inside < 0, tile // row_tiles, heads - width + inside % width)
        else:
            first = tile // (section * row_tiles) * section
            inside = tile % (section * row_tiles)
            width = T.min(section, heads - first)
            row, head = inside // width, first + inside % width
        return (row_tiles - 1 - row if longest_first else row), head

    return place


def section_heads(heads, seq_kv, columns):
    """Heads of a section: K and V together have so many `columns`, of 2 bytes for each key."""
    return T.max(1, T.min(heads, SECTION_BYTES // (seq_kv * (columns * 2))))
