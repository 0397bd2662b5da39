"""The roles of a kernel of gradients are those of the forward's, on a loop's own rings, residents and results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tl_attention.kernels.warp_specialized.roles import Roles
from tl_attention.problem.warpgroup import ROWS
from tl_attention.program.events import Event, Expected, PlacedTile, Where
from tl_attention.program.program import Program
from tl_attention.schedule.schedule import Schedule

# The event by which a warpgroup finds LSE and D of its rows, and stores both; what it reads and writes, in order.
ROW_FACTS = "row facts"
OF_FACTS = ("O", "dO", "LSE", "RowLSE", "RowD")


class GradientRoles(Roles):
    """GradientRoles derives the events of a thread block that computes gradients, alone, one tile after another."""

    @classmethod
    def of(cls, schedule: Schedule, program: Program, packed: bool = False) -> GradientRoles:
        return cls(program, schedule.block_M // ROWS, 1, False, packed, False, False, "direct")

    def begun(self, tile: PlacedTile, own: int) -> Iterator[Expected]:
        """Yields what a warpgroup does with a tile's rows, from `own` on, before it waits for their tiles."""
        row, head, batch = tile.coordinates(own)
        places = (tile.tensors[name].element(batch, head, row) for name in OF_FACTS)
        yield Event(ROW_FACTS, place=(*places, tile.rows_left(own)))

    def _stored(self, tile: PlacedTile, own: int) -> Iterator[Expected | Where]:
        row, head, batch = tile.coordinates(own)
        tensor: Any = tile.tensors["dQ"]
        place = tensor.element(batch, head, row), tile.rows_left(own), tensor.row_stride, 0
        yield tile.store_event(Event("output", "dQ", place=place), own)
