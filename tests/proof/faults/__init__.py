"""The table has faults, each of which is put into generated code of the lowerings that can have it, and is refused."""

from faults import (
    fragments,
    heads,
    key_pages,
    launch,
    loads,
    lse,
    names,
    output,
    overflow,
    packed,
    parts,
    products,
    pshared,
    roles,
    samples,
    sizes,
    sms,
    softcap,
    statements,
    strides,
    text,
    tile_heads,
    tiles,
    waits,
    windows,
)
from faults.table import LOWERINGS, Cell, Edit, Row

__all__ = ["LOWERINGS", "TABLE", "Cell", "Edit", "Row"]

THEMES = (
    launch,
    waits,
    roles,
    products,
    tiles,
    loads,
    output,
    overflow,
    sms,
    heads,
    sizes,
    softcap,
    strides,
    windows,
    packed,
    key_pages,
    parts,
    tile_heads,
)
TABLE: list[Row] = [
    row for theme in (*THEMES, pshared, fragments, lse, names, statements, text, samples) for row in theme.ROWS
]
