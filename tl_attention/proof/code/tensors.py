"""Tensors in memory, contiguous or strided: where an element lies, and which element lies there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod

from tl_attention.problem.features import Parameter
from tl_attention.proof.code.threads import Value

BATCH, HEAD, ROW, COLUMN = range(4)
# Elements of 16 bytes, of which all strides are multiples.
ALIGNED = 8


@dataclass(frozen=True)
class Tensor:
    """Dimensions (batch, heads, rows, columns), and how many elements apart the steps of each are; the last has 1."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Of a head."""
        return self.shape[ROW]

    @property
    def columns(self) -> int:
        """Of a row."""
        return self.shape[COLUMN]

    @property
    def row_stride(self) -> int:
        """Elements from a row to the next."""
        return self.strides[ROW]

    def element(self, batch: Value, head: Value, row: Value) -> Value:
        """The first element of a row, which may be one behind the head's last."""
        return sum(place * stride for place, stride in zip((batch, head, row), self.strides))

    def split(self, element: Value, dims: Sequence[int] = (BATCH, HEAD, ROW)) -> tuple[Value, ...]:
        """An element's place in each of the dimensions, and how far beyond that it is: in all of them, its column."""
        places: dict[int, Value] = {}
        for dim in sorted(dims, key=lambda dim: (-self.strides[dim], dim)):
            places[dim], element = divmod(element, self.strides[dim])
        return (*(places[dim] for dim in dims), element)

    def bounded(self, element: Value, rows: Value) -> tuple[Value, Value, Value, Value]:
        """(batch, head, row, elements beyond the row's first) where so many rows are left, which may be none."""
        row = self.rows - rows
        batch, head, beyond = self.split(element - row * self.row_stride, (BATCH, HEAD))
        return batch, head, row, beyond


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))


def told_apart(number: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of the tensor of this number, unlike those of any other dimension or tensor: all are padded, each by more.

    Its dimensions are nested in an order of its own: in one rows are innermost, in another they lie between heads.
    """
    orders = [order for order in permutations((BATCH, HEAD, ROW)) if order != (BATCH, HEAD, ROW)]
    strides, extent = {COLUMN: 1}, shape[COLUMN]
    for depth, dim in enumerate(reversed(orders[number % len(orders)])):
        strides[dim] = -(-extent // ALIGNED) * ALIGNED + ALIGNED * (1 + 3 * number + depth)
        extent = strides[dim] * shape[dim]
    return tuple(strides[dim] for dim in (BATCH, HEAD, ROW, COLUMN))


def tensors(parameters: Sequence[Parameter], shapes: dict[str, tuple[int, ...]], strided: bool) -> dict[str, Tensor]:
    """The tensors of a proof: contiguous, or, if strides are read at run time, told apart by them."""
    laid = [p for p in parameters if p.name in shapes]
    return {
        p.name: Tensor(
            shapes[p.name], told_apart(n, shapes[p.name]) if strided and p.strides else contiguous(shapes[p.name])
        )
        for n, p in enumerate(laid)
    }


def stride_values(parameters: Sequence[Parameter], found: dict[str, Tensor]) -> dict[str, int]:
    """The values of the strides' names."""
    return {
        name: stride for p in parameters if p.name in found for name, stride in zip(p.strides, found[p.name].strides)
    }
