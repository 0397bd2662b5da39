"""Tiles in shared memory, where they come from, and the products that read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tl_attention.hardware.warpgroup import ROWS
from tl_attention.problem.shape import DTYPE_BYTES

# A swizzled tile stands in panels of so many columns: 128 bytes of each row.
PANEL = 64
# Elements of 16 bytes, the unit of a swizzle.
CHUNK = 8
# wgmma's depth.
DEPTH = 16


@dataclass(frozen=True)
class Tile:
    """A buffer of shared memory: `slots` tiles of a tensor's rows and columns, swizzled or row after row."""

    buffer: str
    rows: int
    columns: int
    slots: int
    swizzled: bool = True

    @property
    def elements(self) -> int:
        """Of one slot."""
        return self.rows * self.columns

    @property
    def panel(self) -> int:
        """Columns that stand together."""
        return PANEL if self.swizzled else self.columns

    def place(self, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Where 16 bytes of a row stand in a slot, in elements: of each 8 rows, chunk c of row r is chunk c ^ r."""
        chunk = column % PANEL // CHUNK
        if self.swizzled:
            chunk = chunk ^ (row & 7)
            return column // PANEL * self.rows * PANEL + row * PANEL + chunk * CHUNK + column % CHUNK
        return row * self.columns + column

    def boxes(self) -> list[tuple[int, int]]:
        """(first column, element in the slot) of each TMA box."""
        return [(column, column * self.rows) for column in range(0, self.columns, self.panel)]


@dataclass(frozen=True)
class Product:
    """Accumulators = [accumulators +] A B, A rows of 64 for each warpgroup.

    `a` is a Tile, or the name of registers; `b` is K-major as K is for Q K^T, or not, as V is for P V.
    """

    accumulators: str
    a: Tile | str
    b: Tile
    columns: int
    depth: int
    b_transposed: bool

    @property
    def steps(self) -> int:
        """Instructions of one product."""
        return self.depth // DEPTH

    def form(self, dtype: str) -> tuple[object, ...]:
        """What an instruction's template says: types, sizes, whether A and B are transposed, their signs."""
        transposed = str(self.b_transposed).lower()
        return (dtype, dtype, "float32", ROWS, self.columns, DEPTH, "false", transposed, "1", "1")

    def a_offset(self, step: int, warpgroup: np.ndarray) -> np.ndarray:
        """Bytes from the start of A's buffer, or the register, of an instruction's A."""
        if isinstance(self.a, str):
            return np.full_like(warpgroup, step * DEPTH * ROWS // 128)
        own = warpgroup * (self.a.elements if self.a.rows == ROWS else ROWS * PANEL)
        return DTYPE_BYTES * (own + _along_k(step, self.a))

    def b_offset(self, step: int) -> int:
        """Bytes from the start of B's slot."""
        return DTYPE_BYTES * (step * DEPTH * PANEL if self.b_transposed else _along_k(step, self.b))

    @property
    def b_layout(self) -> tuple[int, int, int]:
        """Swizzle, and the bytes / 16 from panel to panel and from 8 rows to the next."""
        if not self.b_transposed:
            return K_MAJOR
        return layout(self.b.rows * PANEL * DTYPE_BYTES // 16 if self.b.columns > PANEL else 0)


def layout(leading: int) -> tuple[int, int, int]:
    """A descriptor's template: 128-byte swizzle, leading and stride offsets in units of 16 bytes."""
    return (1, leading, 8 * PANEL * DTYPE_BYTES // 16)


# Of a matrix whose rows go along K the leading offset is not used.
K_MAJOR = layout(1)


def _along_k(step: int, tile: Tile) -> int:
    """Elements from the start of a K-major tile to the columns of a step."""
    column = step * DEPTH
    return column // PANEL * tile.rows * PANEL + column % PANEL
