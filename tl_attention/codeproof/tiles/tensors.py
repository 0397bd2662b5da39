"""This module says where an element of a tensor lies in memory, and which element lies there.

Tensors are contiguous or strided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tl_attention.codeproof.run.threads import Value
from tl_attention.problem.features import MAIN, Parameter

BATCH, HEAD, ROW, COLUMN = range(4)
# Elements of 16 bytes, of which all strides are multiples.
ALIGNED = 8
# Of a ragged view; 2^30 strides of the last dimension and of a row are 2^64 bytes.
RAGGED_ROWS, RAGGED_ENDS, WRAP = 2**30, 0x7FFF0000, 2**34


@dataclass(frozen=True)
class Tensor:
    """A Tensor has dimensions (batch, heads, rows, columns), and their strides in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # the last is 1
    # Whether its batch is 1, with a stride of 0: its rows are those of all sequences, and what stands for the batch is
    # the row behind the sequence's last.
    packed: bool = False
    # Elements between a tile's heads in results of parts of packed sequences, which are rows of tiles.
    heads_apart: int = 0

    @property
    def rows(self) -> int:
        """Returns the number of rows of a head."""
        return self.shape[ROW]

    @property
    def columns(self) -> int:
        """Returns the number of columns of a row."""
        return self.shape[COLUMN]

    @property
    def head_stride(self) -> int:
        """Returns the number of elements from a head of a tile to the next."""
        return self.heads_apart or self.strides[HEAD]

    @property
    def row_stride(self) -> int:
        """Returns the number of elements from a row to the next."""
        return self.strides[ROW]

    def element(self, batch: Value, head: Value, row: Value) -> Value:
        """Returns the offset, in elements, of a row's start from the tensor's start, by batch, head and row.

        The row may be one behind the last. Rows are those of a head.
        """
        return sum(place * stride for place, stride in zip((batch, head, row), self.strides))

    @property
    def boxed(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns (dimensions, strides in elements), innermost first, of the view that TMA's boxes are taken from.

        The strides leave out the innermost. A packed tensor's view is ragged, see kernels/shared/rows.py.
        """
        if not self.packed:
            return self.shape[::-1], self.strides[-2::-1]
        row, head = self.strides[ROW], self.strides[HEAD]
        dims = (self.columns, RAGGED_ROWS, self.shape[HEAD], RAGGED_ENDS, RAGGED_ENDS)
        return dims, (row, head, row, WRAP - row)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides, in elements, of a contiguous tensor of this shape."""
    return tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))


def packed_tensors(
    parameters: Sequence[Parameter],
    shapes: Mapping[str, tuple[Any, ...]],
    box: int,
    strides: Mapping[str, tuple[int, int]] | None = None,
) -> dict[str, Tensor]:
    """Returns, by name, a packed Tensor for each parameter with rows; its strides are unlike any others.

    Tensors with columns are (rows, heads, columns), in which all heads of a row lie together, unless their strides of a
    head and a row are given. The LSE is (heads, rows). Results of parts are rows of tiles, `box` of each of its heads.
    Numbers of rows that are padded have a batch.
    """
    tensors = {}
    for n, p in enumerate(parameters):
        if "results" in p.dims:
            rows, columns = (*shapes[p.name], 1)[:2]
            tensors[p.name] = Tensor((1, 1, rows, columns), (0, 0, columns, 1), True, box * columns)
        elif p.has_columns:
            rows, heads, columns = shapes[p.name]
            head = columns + ALIGNED * (2 + 3 * n)
            head, row = strides[p.name] if strides else (head, heads * head + ALIGNED * (3 + n))
            tensors[p.name] = Tensor((1, heads, rows, columns), (0, head, row, 1), True)
        elif "rows" in p.dims:
            tensors[p.name] = Tensor(shapes[p.name], contiguous(shapes[p.name]))
        elif MAIN in p.kernels:
            heads, rows = shapes[p.name]
            tensors[p.name] = Tensor((1, heads, rows), (0, rows, 1), True)
    return tensors
