"""Which 8 x 8 matrices an ldmatrix brings, off the addresses that all lanes of all warps give.

Of each warp, lanes 8 m to 8 m + 7 give where the rows of matrix m stand, 8 elements each (PTX ISA, ldmatrix).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tl_attention.hardware.warpgroup import WARP
from tl_attention.proof.generated.tiles import CHUNK, Tile

# Rows of a matrix, and its columns.
SIDE = 8


class Matrix(NamedTuple):
    """Where one starts in its tile, for the first warp; the next warp's is `apart` rows further down, or the same."""

    row: int
    column: int
    transposed: bool
    apart: int = 0


Brought = tuple[int, tuple[Matrix, ...]]


def matrices(tile: Tile, elements: np.ndarray, count: int, transposed: bool) -> Brought | None:
    """(slot, `count` matrices) at these elements of a tile's buffer, one for each thread; None where they are none."""
    return _matrices(tile, np.asarray(elements, dtype=np.int64).tobytes(), count, transposed)


@lru_cache(maxsize=1 << 14)
def _matrices(tile: Tile, elements: bytes, count: int, transposed: bool) -> Brought | None:
    # The lanes behind those of the last matrix give no address.
    lanes = np.frombuffer(elements, dtype=np.int64).reshape(-1, WARP)[:, : SIDE * count]
    slots, places = np.divmod(lanes, tile.elements)
    slot = int(slots[0, 0])
    if (slots != slot).any() or not 0 <= slot < tile.slots:
        return None
    row, column = (origin[places].reshape(len(lanes), count, SIDE) for origin in tile.origins)
    first, beside = row[:, :, 0], column[:, :, :1]
    apart = int(first[1, 0] - first[0, 0]) if len(first) > 1 else 0
    whole = (
        (row == first[:, :, None] + np.arange(SIDE)).all() and (column == beside).all() and not (beside % CHUNK).any()
    )
    alike = (beside == beside[0]).all() and (first == first[0] + apart * np.arange(len(first))[:, None]).all()
    if not whole or not alike:
        return None
    starts = zip(first[0].tolist(), beside[0, :, 0].tolist())
    return slot, tuple(Matrix(*start, transposed, apart) for start in starts)
