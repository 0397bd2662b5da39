"""Which row tile is next: the order of the tiles, and their coordinates.

A tile here is that of a whole cluster: block_M rows for each of its blocks.
"""

import tilelang.language as T

# K and V of the heads of a section fit in the L2 cache of an H100 (50 MB) beside everything else.
SECTION_BYTES = 32 << 20


def row_tile_and_head(tile, row_tiles, heads, section, order, causal):
    """(row tile, head of all batches) of the tile-th tile.

    `rows`: the tiles of a head one after another. `sections`: the longest tiles of `section` heads, then their next.
    A causal head's last tile is its longest, and comes first.
    """
    if order == "rows":
        row, head = tile % row_tiles, tile // row_tiles
    else:
        first = tile // (section * row_tiles) * section
        inside = tile % (section * row_tiles)
        width = T.min(section, heads - first)
        row, head = inside // width, first + inside % width
    return (row_tiles - 1 - row if causal else row), head


def section_heads(heads, seq_kv, head_dim):
    """Heads of a section: K and V take 4 bytes for each of their elements' positions."""
    return T.max(1, T.min(heads, SECTION_BYTES // (seq_kv * head_dim * 4)))
