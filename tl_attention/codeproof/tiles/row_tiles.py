"""This module is the oracle of tiles: it says which rows a tile has, and which KV blocks the tile visits.

It also says which of the KV blocks need a mask, and where rows lie. Places and sizes are numbers, or unknowns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tl_attention.codeproof.run.threads import Value
from tl_attention.codeproof.terms.comparison import Skippable
from tl_attention.codeproof.terms.facts import Facts
from tl_attention.codeproof.terms.term import as_number, term
from tl_attention.codeproof.tiles.tensors import Tensor
from tl_attention.problem.tiling import visited_blocks, whole_blocks
from tl_attention.problem.variant import Variant
from tl_attention.problem.warpgroup import ROWS
from tl_attention.program.events import OF_PARTS, Event, Maybe, Where

# The tensors that results go to, and of packed sequences those of parts and those of all keys.
RESULTS = {"output": ("Output", "Merged"), "lse": ("LSE", "MergedLSE")}


@dataclass(frozen=True)
class Cut:
    """A Cut says how a variant's kernel cuts a problem into row tiles and KV blocks, and their order."""

    variant: Variant
    rows: int  # that share KV blocks
    block_M: int  # of these rows, those of one block
    block_N: int
    least: int  # KV blocks of a tile
    kv_order: str


@dataclass
class RowTile:
    """A RowTile is the place of a row tile in its problem, whose sizes may be unknown within some facts."""

    cut: Cut
    # The problem's, or those of one sequence.
    sizes: Any
    row: Value  # the first
    head: Value
    batch: Value
    rank: int  # among the tiles that share KV blocks
    tensors: Mapping[str, Tensor]
    facts: Facts
    # The arithmetic of sizes.
    ops: Any
    # Of packed sequences: the first row of the tile's sequence among all rows of Q, and of K and V.
    begins: tuple[Value, Value] | None = None
    # Of keys in parts: the first KV block of the tile's part, and the one behind its last. A batch's results are those
    # of batch `result`; those of a packed sequence, where it is `split`, are rows of tiles from `result` on.
    part: tuple[Value, Value] | None = None
    result: Value | None = None
    split: Value = 0
    # Of keys in pages: by how many rows a key is behind where it were if pages lay in the order of the block table.
    page_shift: Callable[[Value], Value] | None = None
    # Of packed sequences: numbers of rows that are padded, such as LSE for gradients, lie so many rows further.
    further: Value | None = None
    # Of keys as rows: which of the heads of Q that share the tile's head.
    member: int | None = None

    @property
    def box(self) -> int:
        """Returns how many rows of a head a warpgroup has."""
        return self.cut.variant.box

    @cached_property
    def blocks(self) -> tuple[Value, Value]:
        """Returns (first, end) of the KV blocks that the tile visits."""
        cut, first, ops = self.cut, self.row - self.rank * self.cut.block_M, self.ops
        least = cut.least if self.part is None else 0
        start, end = visited_blocks(self.sizes, cut.variant.mask, first, cut.rows, cut.block_N, least, ops)
        if self.part is not None:
            own_start, own_end = self.part
            start = ops.min(ops.max(start, own_start), own_end - 1)
            # One block more would be another part's.
            end = ops.max(ops.min(end, own_end), start + 1)
        start, count = self.facts.named(start), self.facts.named(end - start)
        return start, start + count

    @property
    def count(self) -> Value:
        """Returns how many KV blocks the tile has."""
        first, end = self.blocks
        return self.facts.named(end - first)

    def unmasked_blocks(self, offset: int, rows: int) -> tuple[Value, Value]:
        """Returns (first, end) of the KV blocks that need no mask for `rows` rows, from the tile's `offset` on."""
        cut = self.cut
        return whole_blocks(self.sizes, cut.variant.mask, self.row + offset, rows, cut.block_N, self.ops)

    def kv_block(self, block: Value) -> Value:
        """Returns the number of the KV block that the loop takes `block`-th, from 0 on."""
        first, end = self.blocks
        return end - 1 - block if self.cut.kv_order == "descending" else first + block

    def rows_left(self, offset: int = 0) -> Value:
        """Returns how many rows the problem has from the tile's `offset` on; 0 or less where the problem has ended."""
        return self.sizes.seq_q - self.row - offset

    def of_member(self, member: int) -> RowTile:
        """Returns the tile, whose rows are keys, with the blocks of this one of the heads of Q that share its head."""
        return replace(self, member=member)

    # --- places --------------------------------------------------------------------------------------------------

    def coordinates(self, offset: int = 0) -> tuple[Value, Value, Value]:
        """Returns (row, head, batch) of the tile's row number `offset`, its first by default.

        Of packed sequences the batch is the row behind the sequence's last.
        """
        first, batch = (0, self.batch) if self.begins is None else (self.begins[0], self.begins[0] + self.sizes.seq_q)
        return first + self.row + offset, self.head, batch

    def kv_coordinates(self, block: Value) -> tuple[Value, ...]:
        """Returns (row, head, batch) of the first row, in K and V, of the KV block that the loop takes `block`-th.

        Where keys lie in pages, these are those of each box of the block, one behind the other.
        """
        first, batch = (0, self.batch) if self.begins is None else (self.begins[1], self.begins[1] + self.sizes.seq_kv)
        row, group = first + self.cut.block_N * self.kv_block(block), self.sizes.group
        head = self.head // group if self.member is None else self.head * group + self.member
        if self.page_shift is None:
            return row, head, batch
        # Numbers are not computed with as Terms.
        row, batch = as_number(row), as_number(batch)
        rows = [row + box for box in range(0, self.cut.block_N, self.cut.variant.key_box)]
        found = [(row + shift, head, batch + shift) for row, shift in zip(rows, map(self.page_shift, rows))]
        return tuple(itertools.chain(*found))

    def of_numbers(self, place: tuple[Value, Value, Value]) -> tuple[Value, Value, Value]:
        """Returns where the numbers of rows lie that belong to rows at this (row, head, batch)."""
        row, head, batch = place
        return (row, head, batch) if self.further is None else (row + self.further, head, 0)

    def copied_rows(self, tensor: str, block: Value | None = None) -> tuple[Value, Value]:
        """Returns (first element, number of rows from there to the tensor's end) of a KV block, or of Q's row tile."""
        row, head, batch = self.coordinates() if block is None else self.kv_coordinates(block)[:3]
        left = self.rows_left() if block is None else self.sizes.seq_kv - row
        return self.tensors[tensor].element(batch, head, row), left

    def stored_rows(self, kind: str, offset: int = 0) -> tuple[Value, ...]:
        """Returns (first element, rows left, distance of rows, distance of heads) of a result of all of a row's keys.

        The rows begin at the tile's `offset`; `kind` is output or lse.
        """
        row, head, batch = self.coordinates(offset)
        if self.begins is not None:
            batch = 0
        elif self.result is not None:
            batch = self.result
        tensor = self.tensors[RESULTS[kind][self.begins is not None and self.result is not None]]
        return tensor.element(batch, head, row), self.rows_left(offset), *self._apart(tensor)

    def store_event(self, event: Event, offset: int) -> Any:
        """Returns the event that stores rows from an offset on, as a Maybe where these rows may not exist."""
        if self.begins is None or self.result is None:
            return Maybe(event) if self.facts.sign(term(-self.rows_left(offset))) > 0 else event
        tensor = self.tensors[RESULTS[event.kind][0]]
        element = (self.result + offset // self.box * ROWS) * tensor.row_stride
        place = element, self.rows_left(offset), *self._apart(tensor)
        return Where(self.split, (replace(event, name=OF_PARTS, place=place),), (event,))

    def _apart(self, tensor: Tensor) -> tuple[Value, Value]:
        return tensor.row_stride, tensor.head_stride if self.cut.variant.tile_heads > 1 else 0

    def mask(self, block: Value, offset: int, rows: int) -> Skippable:
        """Returns the event that masks `rows` rows, from the tile's `offset` on, in the loop's `block`-th KV block.

        It may be left out where all keys are seen, or no row is there.
        """
        kv, (first, end) = self.kv_block(block), self.unmasked_blocks(offset, rows)
        shown = ("an unmasked KV block has hidden keys behind", end - 1 - kv), ("or before", kv - first)
        return Skippable(Event("mask"), shown, (self.rows_left(offset) - 1,))
