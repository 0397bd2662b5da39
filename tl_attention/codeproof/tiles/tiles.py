"""This module describes tiles in shared memory, the products that read them, and the 8 x 8 matrices of an ldmatrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from tl_attention.problem.shape import DTYPE_BYTES
from tl_attention.problem.warpgroup import ROWS, WARP

# A swizzled tile stands in panels of so many columns, 128, 64 or 32 bytes of each row: the widest that divide it.
PANELS = (64, 32, 16)
# Elements of 16 bytes, the unit of a swizzle.
CHUNK = 8
# Rows of an 8 x 8 matrix, and its columns.
SIDE = 8
# wgmma's depth.
DEPTH = 16


@dataclass(frozen=True)
class Tile:
    """A Tile is a buffer of shared memory that has `slots` tiles of a tensor, swizzled or row after row."""

    buffer: str
    rows: int
    columns: int
    slots: int
    swizzled: bool = True
    of_tensor: int | None = None  # the tensor's columns, if they are fewer: the tile's others are 0
    # A tile may have rows of several heads, `box` of each one behind the other's; the rows behind the last are idle. Or
    # its rows lie in pages, `box` in each of so many, 0 where they lie in none.
    heads: int = 1
    box: int = 0
    pages: int = 0
    # Numbers of rows, of 4 bytes, come with another ring's tile: on its mbarriers, from a tensor of their own.
    bytes: int = DTYPE_BYTES
    ring: str = ""
    tensor: str = ""

    @property
    def full(self) -> str:
        """Returns the name of the mbarriers that its loads complete."""
        return f"{self.ring or self.buffer}_full"

    @property
    def source(self) -> str:
        """Returns the name of the tensor that it is loaded from."""
        return self.tensor or self.buffer

    @property
    def slot_bytes(self) -> int:
        """Returns the bytes of one slot."""
        return self.elements * self.bytes

    @property
    def width(self) -> int:
        """Returns how many columns the tensor has, which may be fewer than the tile has."""
        return self.columns if self.of_tensor is None else self.of_tensor

    @property
    def elements(self) -> int:
        """Returns the number of elements of one slot."""
        return self.rows * self.columns

    @property
    def panel(self) -> int:
        """Returns how many columns of a row stand together in a panel, all of them if the tile is not swizzled."""
        return next(panel for panel in PANELS if self.columns % panel == 0) if self.swizzled else self.columns

    def place(self, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Returns where in a slot, in elements, the element at (row, column) stands, by the tile's swizzle.

        Of each 8 rows, chunk c of row r, of 16 bytes, is chunk c ^ r. In panels of 64 bytes, two rows of which are as
        long as one of 128, the chunk is c ^ (r / 2), in panels of 32 bytes c ^ (r / 4).
        """
        if not self.swizzled:
            return row * self.columns + column
        panel, chunks = self.panel, self.panel // CHUNK
        chunk = column % panel // CHUNK ^ row * panel // PANELS[0] % chunks
        return column // panel * self.rows * panel + row * panel + chunk * CHUNK + column % CHUNK

    @cached_property
    def origins(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns two arrays, the row and the column of each element of a slot in the order of shared memory."""
        row, column = np.divmod(np.arange(self.elements), self.columns)
        at = np.argsort(self.place(row, column))
        return row[at], column[at]

    @property
    def pieces(self) -> int:
        """Returns in how many pieces of rows a tile is loaded."""
        return max(self.heads, self.pages)

    @property
    def in_boxes(self) -> bool:
        """Says whether each box by itself says what it brings, and not one operation for all of the tile."""
        return self.heads > 1 or self.pages > 0

    @property
    def box_rows(self) -> int:
        """Returns how many rows a TMA box has, which are of one head and in one page."""
        return self.rows if self.pieces == 1 else self.box

    def boxes(self) -> list[tuple[int, int]]:
        """Returns (first column, element in the slot) of each TMA box, piece by piece."""
        columns = range(0, self.columns, self.panel)
        of_pieces = range(0, self.pieces * self.box_rows, self.box_rows)
        return [(column, column * self.rows + row * self.panel) for row in of_pieces for column in columns]


@dataclass(frozen=True)
class Product:
    """A Product is accumulators = [accumulators +] A B, where A has 64 rows for each warpgroup."""

    accumulators: str
    a: Tile | str  # or the name of registers
    b: Tile
    columns: int
    depth: int
    b_transposed: bool  # false where B is K-major, as K in Q K^T; true for V in P V

    @property
    def steps(self) -> int:
        """Returns the number of instructions of one product."""
        return self.depth // DEPTH

    def form(self, dtype: str) -> tuple[object, ...]:
        """Returns the template arguments that each wgmma instruction of the product must have.

        They are types, sizes, whether A and B are transposed, and their signs.
        """
        transposed = str(self.b_transposed).lower()
        return (dtype, dtype, "float32", ROWS, self.columns, DEPTH, "false", transposed, "1", "1")

    def a_offset(self, step: int, warpgroup: np.ndarray) -> np.ndarray:
        """Returns, for each warpgroup, where instruction `step` reads A, as a byte offset or a register's number.

        The bytes are those from the start of the buffer; the register is the first of A's.
        """
        if isinstance(self.a, str):
            return np.full_like(warpgroup, step * DEPTH * ROWS // 128)
        start = warpgroup * (self.a.elements if self.a.rows == ROWS else ROWS * self.a.panel)
        return DTYPE_BYTES * (start + _along_k(step, self.a))

    def b_offset(self, step: int) -> int:
        """Returns the bytes from the start of B's slot to an instruction's B."""
        return DTYPE_BYTES * (step * DEPTH * self.b.panel if self.b_transposed else _along_k(step, self.b))

    @property
    def b_layout(self) -> tuple[int, int, int]:
        """Returns the layout of B as a wgmma descriptor has it, (swizzle, leading offset, stride offset).

        The offsets are the bytes / 16 from panel to panel and from 8 rows to the next.
        """
        if not self.b_transposed:
            return k_major(self.b)
        panel = self.b.panel
        return _layout(panel, self.b.rows * panel * DTYPE_BYTES // 16 if self.b.columns > panel else 0)


def _layout(panel: int, leading: int) -> tuple[int, int, int]:
    """Returns a wgmma descriptor's template (swizzle, leading offset, stride offset) for a panel's width."""
    # The swizzle is of 128, 64 or 32 bytes. The offsets count units of 16 bytes.
    return (1 + PANELS.index(panel), leading, 8 * panel * DTYPE_BYTES // 16)


def k_major(tile: Tile) -> tuple[int, int, int]:
    """Returns a wgmma descriptor's (swizzle, leading offset, stride offset) for a tile whose rows go along K.

    The leading offset is not used.
    """
    return _layout(tile.panel, 1)


def _along_k(step: int, tile: Tile) -> int:
    """Returns the offset, in elements, of the columns of instruction `step` from the start of a K-major tile."""
    column = step * DEPTH
    return column // tile.panel * tile.rows * tile.panel + column % tile.panel


class Matrix(NamedTuple):
    """A Matrix says where an 8 x 8 matrix starts in its tile, for the first warp."""

    row: int
    column: int
    transposed: bool
    apart: int = 0  # so many rows further down is the next warp's matrix; 0 where it is the same matrix


Brought = tuple[int, tuple[Matrix, ...]]


def matrices(tile: Tile, elements: np.ndarray, count: int, transposed: bool) -> Brought | None:
    """Returns (slot, the `count` 8 x 8 matrices) whose rows stand at the threads' elements, or None if they do not.

    It returns None where the elements are no rows of such matrices in one slot of the tile's buffer. In each warp,
    lanes 8 m to 8 m + 7 give where the rows of matrix m stand, 8 elements each (PTX ISA, ldmatrix).
    """
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
