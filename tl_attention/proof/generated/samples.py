"""Tiles of many problems, an entry for each block that runs in the proof that all tiles are treated alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from tl_attention.problem.lengths import Problems, drawn
from tl_attention.problem.mask import Mask, ceildiv
from tl_attention.problem.tiling import visited
from tl_attention.problem.variant import Variant
from tl_attention.proof.generated.tensors import Tensor
from tl_attention.proof.generated.threads import Threads

# numpy's arithmetic under the names that a mask asks for.
ARRAYS = SimpleNamespace(min=np.minimum, max=np.maximum, ceildiv=ceildiv, Or=np.logical_or)
Array = np.ndarray
# Of a problem of fixed sizes: so many of its first tiles, and so many between the first and the last.
FIRST, BETWEEN = 64, 1024
# So many tiles are first ones, or last ones.
EDGE = 50


@dataclass(frozen=True)
class Samples:
    """Tiles of problems, an entry for each block that runs: its problem, its tile's first row, and its own among them.

    `there` is false where a block has no tile any more. `rows` are those of a tile that shares its KV blocks, `block_M`
    those of a block. `tensors` have arrays of strides.
    """

    sizes: Problems
    first: Array
    row: Array
    head: Array
    batch: Array
    rank: Array
    there: Array
    rows: int
    block_M: int
    block_N: int
    group: int
    mask: Mask
    least: int
    tensors: Mapping[str, Tensor]

    @property
    def blocks(self) -> tuple[Array, Array]:
        """The first KV block of each tile, and the end of its blocks."""
        return visited(self.sizes, self.mask, self.first, self.rows, self.block_N, self.least, ARRAYS)

    @property
    def rows_left(self) -> Array:
        """Rows that the tensor has from the block's first on, of its own."""
        return np.clip(self.sizes.seq_q - self.row, 0, self.block_M)


def numbered(
    variant: Variant, rows: int, block_N: int, *, without_rows: bool = True, without_keys: bool = True
) -> tuple[Problems, Array, Array]:
    """Problems, how many row tiles of `rows` rows each has, and the number of one tile of each problem's.

    Problems without rows, which have no tile, and without keys are among them only if so said. Where sizes are fixed there
    is one problem, with many of its tiles.
    """
    if variant.sizes is None:
        sizes = drawn(variant.mask, rows, block_N, variant.group)
        kept = ((sizes.seq_q > 0) | without_rows) & ((sizes.seq_kv > 0) | without_keys)
        sizes = Problems(*(size[kept] for size in sizes))
        row_tiles = ceildiv(sizes.seq_q, rows)
        total = row_tiles * sizes.heads * sizes.batch
        return sizes, row_tiles, _drawn_numbers(row_tiles, total)
    fixed = variant.sizes
    total = ceildiv(fixed.seq_q, rows) * fixed.heads * fixed.batch
    number = np.unique([*range(min(FIRST, total)), *np.linspace(0, total - 1, BETWEEN).astype(int)])
    sizes = Problems(*(np.full(len(number), size) for size in fixed))
    return sizes, ceildiv(sizes.seq_q, rows), number


def _drawn_numbers(row_tiles: Array, total: Array) -> Array:
    """A tile of each problem: any, one of the first, one of the last, or one at an end of some head's rows."""
    draw = np.random.default_rng(31)
    near = draw.integers(0, EDGE, len(total))
    anywhere = (draw.random(len(total)) * total).astype(int)
    at_an_end = anywhere // np.maximum(row_tiles, 1) * row_tiles + np.where(
        near % 2, near % 8 // 2, row_tiles - 1 - near % 8 // 2
    )
    found = np.stack([anywhere, near, total - 1 - near, at_an_end])[
        draw.integers(0, 4, len(total)), np.arange(len(total))
    ]
    return np.clip(found, 0, np.maximum(total - 1, 0))


def of_threads(names: Mapping[str, Any], threads: Threads) -> dict[str, Any]:
    """What blocks read, an entry for each, as what their threads read."""
    return {name: value[threads.place] if isinstance(value, np.ndarray) else value for name, value in names.items()}
