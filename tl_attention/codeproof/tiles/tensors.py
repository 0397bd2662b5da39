"""This module says where an element of a tensor lies in memory, and which element lies there.

Tensors are contiguous or strided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod
from typing import Any

from tl_attention.codeproof.run.threads import Value
from tl_attention.problem.features import MAIN, Parameter
from tl_attention.program.events import NO_BATCH

BATCH, HEAD, ROW, COLUMN = range(4)
DIMENSION_OF: dict[str | int, int] = {
    "batch": BATCH,
    **dict.fromkeys(("heads", "heads_kv"), HEAD),
    **dict.fromkeys(("seq_q", "seq_kv"), ROW),
}
# Elements of 16 bytes, of which all strides are multiples.
ALIGNED = 8
# Of a ragged view; 2^30 strides of the last dimension and of a row are 2^64 bytes.
RAGGED_ROWS, RAGGED_ENDS, WRAP = 2**30, 0x7FFF0000, 2**34


@dataclass(frozen=True)
class Tensor:
    """A Tensor has dimensions (batch, heads, rows, columns), and their strides in elements.

    The stride of the last dimension is 1. A `packed` one has a batch of 1 and a stride of 0 there: its rows are those of
    all sequences, and what stands for the batch is the row behind the sequence's last. Results of parts of packed sequences
    are rows of tiles: a tile's heads are `heads_apart` elements apart there.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    packed: bool = False
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

    def place(self, element: Value) -> tuple[Value, Value, Value, Value]:
        """Returns (batch, head, row, column) of an element's offset; of packed rows the batch is NO_BATCH, as none shows."""
        batch, head, row, column = self.split(element)
        return (NO_BATCH + 0 * row if self.packed else batch), head, row, column

    def split(self, element: Value, dims: Sequence[int] = (BATCH, HEAD, ROW)) -> tuple[Value, ...]:
        """Splits an element's offset into its index in each of the dimensions `dims`, and what is left beyond them.

        With all dimensions given that is the element's column.
        """
        places: dict[int, Value] = {}
        for dim in sorted(dims, key=lambda dim: (-self.strides[dim], dim)):
            places[dim], element = divmod(element, self.strides[dim]) if self.strides[dim] else (0 * element, element)
        return (*(places[dim] for dim in dims), element)

    def bounded(self, element: Value, rows: Value) -> tuple[Value, Value, Value, Value]:
        """Returns (batch, head, row, elements past the row's start) of an offset with `rows` rows left in its head.

        `rows` may be 0.
        """
        if self.packed:
            head, row, beyond = self.split(element, (HEAD, ROW))
            return row + rows, head, row, beyond
        row = self.rows - rows
        batch, head, beyond = self.split(element - row * self.row_stride, (BATCH, HEAD))
        return batch, head, row, beyond

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


def told_apart(number: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns padded strides for a tensor's shape, each unlike the others and unlike those for any other `number`.

    All dimensions are padded, each by more. They are nested in an order of the tensor's own: in one rows are innermost,
    in another they lie between heads.
    """
    orders = [order for order in permutations((BATCH, HEAD, ROW)) if order != (BATCH, HEAD, ROW)]
    strides, extent = {COLUMN: 1}, shape[COLUMN]
    for depth, dim in enumerate(reversed(orders[number % len(orders)])):
        strides[dim] = -(-extent // ALIGNED) * ALIGNED + ALIGNED * (1 + 3 * number + depth)
        extent = strides[dim] * shape[dim]
    return tuple(strides[dim] for dim in (BATCH, HEAD, ROW, COLUMN))


def tensors(parameters: Sequence[Parameter], shapes: dict[str, tuple[int, ...]], strided: bool) -> dict[str, Tensor]:
    """Returns, by name, a Tensor for each parameter that has a shape, contiguous unless `strided`.

    Strides are read at run time where `strided`, and are unlike any others.
    """
    laid = [p for p in parameters if p.name in shapes]
    return {
        p.name: Tensor(
            shapes[p.name], told_apart(n, shapes[p.name]) if strided and p.strides else contiguous(shapes[p.name])
        )
        for n, p in enumerate(laid)
    }


def packed_tensors(
    parameters: Sequence[Parameter],
    shapes: Mapping[str, tuple[Any, ...]],
    box: int,
    strides: Mapping[str, tuple[int, int]] | None = None,
) -> dict[str, Tensor]:
    """Returns, by name, a packed Tensor for each parameter with rows; its strides are unlike any others.

    Tensors with columns are (rows, heads, columns), in which all heads of a row lie together, unless their strides of a
    head and a row are given. The LSE is (heads, rows). Results of parts are rows of tiles, `box` of each head of a tile.
    """
    found = {}
    for n, p in enumerate(parameters):
        if "results" in p.dims:
            rows, columns = (*shapes[p.name], 1)[:2]
            found[p.name] = Tensor((1, 1, rows, columns), (0, 0, columns, 1), True, box * columns)
        elif p.has_columns:
            rows, heads, columns = shapes[p.name]
            head = columns + ALIGNED * (2 + 3 * n)
            head, row = strides[p.name] if strides else (head, heads * head + ALIGNED * (3 + n))
            found[p.name] = Tensor((1, heads, rows, columns), (0, head, row, 1), True)
        elif p.kind == "output" and MAIN in p.kernels:
            heads, rows = shapes[p.name]
            found[p.name] = Tensor((1, heads, rows), (0, rows, 1), True)
    return found


def stride_values(parameters: Sequence[Parameter], found: dict[str, Tensor]) -> dict[str, int]:
    """Returns the strides of the found tensors by the names under which a kernel reads them."""
    return {
        name: found[p.name].strides[DIMENSION_OF[dim]]
        for p in parameters
        if p.name in found
        for name, dim in zip(p.strides, p.dims)
    }
