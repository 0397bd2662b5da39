"""This module is the oracle of tiles: it says which rows a tile has, and which KV blocks the tile visits.

It also says which of the KV blocks need a mask, and where rows lie. It answers for one tile, or for arrays of tiles of
many problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from tl_attention.codeproof.run.threads import Value
from tl_attention.codeproof.tiles.tensors import Tensor
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.lengths import Lengths
from tl_attention.problem.mask import INTEGERS, ceildiv
from tl_attention.problem.tiling import kv_index, visited, whole_blocks
from tl_attention.problem.variant import Variant
from tl_attention.problem.warpgroup import ROWS
from tl_attention.program.events import Event, Maybe, Place

# numpy's arithmetic under the names that a mask asks for.
ARRAYS = SimpleNamespace(min=np.minimum, max=np.maximum, ceildiv=ceildiv, Or=np.logical_or)


class Entries(Protocol):
    """Entries say, for many blocks at once, what the list of tiles has, whose first entry is number 0."""

    def count(self, blocks: np.ndarray) -> Value:
        """Returns how many entries the list has in each block's problem."""

    def words(self, blocks: np.ndarray, entries: np.ndarray) -> np.ndarray:
        """Returns the numbers of these entries, (TILE_WORDS, blocks); raises Unsafe for one that the list does not have."""


@dataclass(frozen=True)
class Cut:
    """A Cut says how a kernel of a variant cuts problems into row tiles and KV blocks, and in which order it takes the blocks.

    `rows` rows share KV blocks, `block_M` of them are one block's. A tile has `least` KV blocks or more.
    """

    variant: Variant
    rows: int
    block_M: int
    block_N: int
    least: int
    kv_order: str


@dataclass
class RowTiles:
    """A RowTiles is the place of a row tile in its problem, as numbers, or of many tiles, as arrays.

    `row` is a tile's first row, `rank` its number among the tiles that share KV blocks. `there` is false where a block
    has no tile any more.
    """

    cut: Cut
    # Problems, or the Lengths of one.
    sizes: Any
    row: Value
    head: Value
    batch: Value
    rank: Value
    there: Value
    tensors: Mapping[str, Tensor]
    # Of packed sequences: the first row of the tile's sequence among all rows of Q, and of K and V.
    begins: tuple[Value, Value] | None = None
    # Of keys in parts: the first KV block of the tile's part, and the one behind its last. A batch's results are those of
    # batch `result`; those of a packed sequence are rows of tiles from `result` on, if that is not negative.
    part: tuple[Value, Value] | None = None
    result: Value | None = None

    @property
    def box(self) -> int:
        """Returns how many rows of a head a warpgroup has."""
        return self.cut.variant.box

    @property
    def _arithmetic(self) -> Any:
        return ARRAYS if isinstance(self.row, np.ndarray) else INTEGERS

    @cached_property
    def blocks(self) -> tuple[Value, Value]:
        """Returns (first, end) of the KV blocks that each tile visits."""
        cut, first = self.cut, self.row - self.rank * self.cut.block_M
        if self.part is None:
            return visited(self.sizes, cut.variant.mask, first, cut.rows, cut.block_N, cut.least, self._arithmetic)
        start, end = visited(self.sizes, cut.variant.mask, first, cut.rows, cut.block_N, 0, self._arithmetic)
        own_start, own_end = self.part
        start = self._arithmetic.min(self._arithmetic.max(start, own_start), own_end - 1)
        end = self._arithmetic.min(end, own_end)
        # One block more would be another part's.
        return start, self._arithmetic.max(end, start + 1)

    def whole(self, offset: int, rows: int) -> tuple[Value, Value]:
        """Returns (first, end) of the KV blocks of which `rows` rows, from the tile's `offset` on, see all keys."""
        cut = self.cut
        return whole_blocks(self.sizes, cut.variant.mask, self.row + offset, rows, cut.block_N, self._arithmetic)

    @property
    def queries(self) -> tuple[Value, Value]:
        """Returns (first row, batch) of the tile's sequence in Q; for packed ones the batch is the row behind the last."""
        return (0, self.batch) if self.begins is None else (self.begins[0], self.begins[0] + self.sizes.seq_q)

    @property
    def split(self) -> Any:
        """Says whether the tile has a part of a packed sequence's keys; None where none is split."""
        return None if self.result is None or self.begins is None else self.result >= 0

    @property
    def keys(self) -> tuple[Value, Value]:
        """Returns (first row, batch) of the tile's sequence in K and V, as `queries` does for Q."""
        return (0, self.batch) if self.begins is None else (self.begins[1], self.begins[1] + self.sizes.seq_kv)

    @property
    def head_kv(self) -> Value:
        """Returns the number of the head of K and V that the tile's query head uses."""
        return self.head // self.cut.variant.group

    def place(self, offset: int = 0) -> tuple[Value, Value, Value]:
        """Returns (row, head, batch) of the tile's row number `offset`, its first by default."""
        first, batch = self.queries
        return first + self.row + offset, self.head, batch

    def place_of_results(self, offset: int = 0) -> tuple[Value, Value, Value]:
        """Returns (row, head, batch) of the results of the tile's row number `offset`, its first by default.

        A warpgroup's rows begin at the offset.
        """
        row, head, batch = self.place(offset)
        if self.result is None:
            return row, head, batch
        if self.begins is None:
            return row, head, self.result
        own = self.result + offset // self.box * ROWS
        of_part = own, 0, own + self.sizes.seq_q - self.row - offset
        if isinstance(self.result, np.ndarray):
            return tuple(np.where(self.split, *both) for both in zip(of_part, (row, head, batch)))
        return of_part if self.split else (row, head, batch)

    def place_of_block(self, number: Value) -> tuple[Value, Value, Value]:
        """Returns (row, head, batch) of the first row, in K and V, of KV block `number` of the sequence."""
        first, batch = self.keys
        return first + self.cut.block_N * number, self.head_kv, batch

    # --- of one tile -------------------------------------------------------------------------------------------

    def one(self, number: int) -> RowTiles:
        """Returns the tile at index `number` of the arrays, as a RowTiles of plain numbers."""
        sizes = Lengths(*(int(length[number]) for length in (self.sizes.seq_q, self.sizes.seq_kv)))
        names = ("row", "head", "batch", "rank", "there", *(("result",) if self.result is not None else ()))
        own: Any = {name: int(getattr(self, name)[number]) for name in names}
        for name in ("begins", "part"):
            pair = getattr(self, name)
            own[name] = None if pair is None else (int(pair[0][number]), int(pair[1][number]))
        return replace(self, sizes=sizes, **own)

    @property
    def count(self) -> int:
        """Returns how many KV blocks the tile has."""
        first, end = self.blocks
        return end - first

    def rows_from(self, offset: int, rows: int) -> int:
        """Returns how many of `rows` rows, from the tile's `offset` on, the problem has."""
        return max(0, min(rows, self.sizes.seq_q - self.row - offset))

    def of_rows(self, event: Event, offset: int) -> Event | Maybe:
        """Returns the event of a warpgroup's rows, from the tile's `offset` on, a Maybe where the problem has none."""
        return event if self.rows_from(offset, self.box) else Maybe(event)

    def kv(self, block: int) -> int:
        """Returns which KV block the loop takes `block`-th, from 0 on; raises Unsafe if the tile has no more blocks."""
        found = range(*self.blocks)
        if block >= len(found):
            raise Unsafe(f"it takes more than the {len(found)} KV blocks of rows from {self.row} on")
        return kv_index(block, found, self.cut.kv_order)

    def place_of_kv(self, block: int) -> Place:
        """Returns (row, head, batch) of the first row, in K and V, of the KV block that the loop takes `block`-th."""
        return self.place_of_block(self.kv(block))

    def copied(self, tensor: str, block: int | None = None) -> Place:
        """Returns (first element, rows) to copy of a tensor's KV block, or of Q's row tile if `block` is None.

        The rows are those that the tensor has there.
        """
        if block is None:
            first, rows = self.tensors[tensor].element(self.batch, self.head, self.row), self.cut.block_M
            return first, self.rows_from(0, rows)
        # A tile beyond the keys is never issued; its number tells which rows it must have.
        row, head, batch = self.place_of_kv(block)
        rows = max(0, min(self.cut.block_N, self.sizes.seq_kv - row))
        return self.tensors[tensor].element(batch, head, row), rows

    def mask(self, block: int, offset: int, rows: int) -> Event | Maybe:
        """Returns the event that masks `rows` rows in the loop's `block`-th KV block, a Maybe where no key is hidden.

        The rows are those from the tile's `offset` on. Where they do not see all of the block the mask is needed, else
        it may be there.
        """
        hides = self.row + offset < self.sizes.seq_q and self.kv(block) not in range(*self.whole(offset, rows))
        return Event("mask") if hides else Maybe(Event("mask"))
