"""A row tile, and which rows of the tensors its block's copies must be of, where every thread loads.

Of long loops the middle is left out: KV blocks count as if it were not there, and `left_out` says how many it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import kv_index, whole_blocks
from tl_attention.proof.events import Event
from tl_attention.proof.generated.refused import Unsafe
from tl_attention.proof.generated.tensors import Tensor
from tl_attention.schedule.schedule import Schedule


@dataclass
class RowTile:
    """`place` is (row, head, batch), `blocks` are the KV blocks that it visits."""

    schedule: Schedule
    shape: AttentionShape
    tensors: Mapping[str, Tensor]
    place: tuple[int, int, int]
    blocks: range
    left_out: int = 0

    def kv(self, block: int) -> int:
        """The KV block of the loop's block number `block`."""
        step = block + self.left_out
        if step >= len(self.blocks):
            raise Unsafe(f"it takes more than the {len(self.blocks)} KV blocks of rows from {self.place[0]} on")
        return kv_index(step, self.blocks, self.schedule.kv_order)

    def check_q(self, event: Event) -> None:
        """The rows of Q are the tile's."""
        self._check_rows(event, self.place[0], self.shape.seq_q, self.schedule.block_M)

    def check_kv(self, event: Event, block: int) -> None:
        """The rows of K, or of V, are those of the loop's block number `block`, for the heads that share them."""
        block_N = self.schedule.block_N
        # A tile beyond the keys is never issued; its number tells which rows it must have.
        self._check_rows(event, block_N * self.kv(block), self.shape.seq_kv, block_N, self.shape.group)

    def _check_rows(self, event: Event, row: int, rows: int, of_tile: int, group: int = 1) -> None:
        """It copies the tile's rows from `row` on, as many of them as the tensor has, `rows` for each head.

        The tensor has one head for `group` of Q's.
        """
        tensor = self.tensors[event.name]
        first = tensor.element(self.place[2], self.place[1] // group, row)
        wanted = (first, max(0, min(of_tile, rows - row)))
        if event.place != wanted:
            # Counted over all heads, if the tensor is contiguous.
            (found, copied), apart = event.place, tensor.row_stride
            raise Unsafe(
                f"{event.name} gets {copied} rows from {found // apart} on, expected {wanted[1], wanted[0] // apart}"
            )

    def check_unmasked(self, block: int) -> None:
        """No score of the loop's block number `block` is hidden."""
        schedule = self.schedule
        whole = range(*whole_blocks(self.shape, self.shape.mask, self.place[0], schedule.block_M, schedule.block_N))
        kv = self.kv(block)
        if kv not in whole:
            raise Unsafe(f"KV block {kv} of rows from {self.place[0]} on is not masked")
