"""This module proves the generated pipelined kernel against the Program: order, waits, barriers, fences and tiles.

The order must be the same, waits, barriers and fences must be enough, and tiles must be right. `T.Pipelined` derives
the waits for the loads itself, and TileLang 0.1.15 gets some orders wrong without a word (a load that was committed
last is not waited for). So what TileLang generated is checked, not what it was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import lcm
from typing import Any

from tl_attention.codeproof.pipelined.replay import OUTPUT, WAITS, Q, check_waits
from tl_attention.codeproof.terms.comparison import Nested
from tl_attention.codeproof.tiles.row_tile_proof import RowTileProof
from tl_attention.codeproof.tiles.row_tiles import RowTile
from tl_attention.codeproof.tiles.tiles import Tile
from tl_attention.program.events import Event, Expected, Repeat
from tl_attention.program.program import Operation


class PipelinedProof(RowTileProof):
    """A PipelinedProof proves that one generated T.Pipelined kernel does what its Program says.

    Its threads all do the same.
    """

    @cached_property
    def tiles(self) -> dict[str, Tile]:
        variant, schedule = self.code.variant, self.schedule
        buffers = {name.removeprefix("load_").upper(): count for name, count in self.program.buffers.items()}
        return {
            Q: Tile(Q, schedule.block_M, variant.tile_dim, 1, of_tensor=variant.head_dim),
            "K": Tile("K", schedule.block_N, variant.tile_dim, buffers["K"], of_tensor=variant.head_dim),
            "V": Tile("V", schedule.block_N, variant.tile_dim_v, buffers["V"], of_tensor=variant.head_dim_v),
        }

    def expected(self, tile: RowTile, blocks: Any) -> Iterator[Expected | Repeat]:
        yield Event("write", Q, place=tile.copied_rows(Q))
        yield from self.program.phases.events(blocks, lambda block, op: self._operation(op, block, tile))
        if self.lse:
            yield Event("lse", place=tile.stored_rows("lse"))
        if any(descriptor.tensor == OUTPUT for descriptor in self.plan.descriptors):
            # The output goes through the buffer of Q.
            yield Event("write", Q, reads=((Q, 0, 0),))
            yield Event("store", Q, reads=((Q, 0, 0),), place=tile.coordinates())
        else:
            yield Event("output", place=tile.stored_rows("output"))

    def _operation(self, op: Operation, block: Any, tile: RowTile) -> Iterator[Any]:
        """Yields the expected events of an operation, if that is to issue a load or the product of a loaded tile."""
        if op.kind != "issue":
            return
        statement = op.statement
        load, *_ = self.program.table.loads_of(statement) or (statement,)
        ring = load.removeprefix("load_").upper()
        slot = block % self.program.buffers[load]
        if load == statement:
            yield Event("load", ring, slot, place=tile.copied_rows(ring, block))
            return
        if ring == "K":
            yield tile.mask(block, 0, self.rows)
        reads = ((ring, slot, block), *(((Q, 0, 0),) if ring == "K" else ()))
        # It adds to what its accumulators have, which is -inf where scores are hidden.
        yield Event("product", ring, slot, reads=reads, place=(1,))

    def alone(self, event: Event | Nested) -> bool:
        return event.kind in WAITS

    def check_numbers(self, found: Sequence[Event]) -> None:
        check_waits(found)

    def ordered(self, found: Iterable[Event | Nested]) -> Iterator[Event | Nested]:
        """Yields what a block does with all masks before a product of K merged into one, right before that product.

        The masks may stand anywhere behind the product before. Behind the last one they hide nothing.
        """
        masked = False
        for one in found:
            if isinstance(one, Nested):
                one = replace(one, inside=[*self.ordered(one.inside)])
            if isinstance(one, Event) and one.kind == "write" and one.name != Q:
                # Element by element threads load a tile themselves.
                one = replace(one, kind="load")
            if isinstance(one, Event) and one.kind == "mask":
                masked = True
                continue
            if masked and (isinstance(one, Nested) or (one.kind == "product" and one.name == "K")):
                yield Event("mask")
                masked = False
            yield one

    @property
    def loops(self) -> Iterable[int]:
        # Waits and barriers may stand anywhere, as long as they are enough in loops so long that they repeat.
        return range(1, self.program.span + lcm(*self.program.buffers.values()) + 2)
