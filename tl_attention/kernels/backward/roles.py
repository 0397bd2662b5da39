"""The roles of a kernel of gradients are those of the forward's, on a loop's own rings, residents and results."""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import cached_property
from typing import Any

from tl_attention.kernels.warp_specialized.roles import Roles
from tl_attention.problem.warpgroup import ROWS
from tl_attention.program.events import Event, Expected, Place, PlacedTile, Where
from tl_attention.program.program import Program
from tl_attention.schedule.loop.table import symbol
from tl_attention.schedule.schedule import Schedule

# The event by which a warpgroup finds LSE and D of its rows, and stores both; what it reads and writes, in order.
ROW_FACTS = "row facts"
STRIDED, STORED_FACTS = ("O", "dO"), ("RowLSE", "RowD")
# A kernel has dLSE only where the LSE has a gradient.
OF_FACTS = (*STRIDED, "LSE", *STORED_FACTS, "dLSE")


def tensors_of_facts(there: Container[str]) -> tuple[str, ...]:
    """Returns the names in OF_FACTS of the tensors that are there."""
    return tuple(name for name in OF_FACTS if name in there)


class GradientRoles(Roles):
    """GradientRoles derives the events of a thread block that computes gradients, alone, one tile after another."""

    @classmethod
    def of(cls, schedule: Schedule, program: Program, packed: bool = False, group: int = 1) -> GradientRoles:
        """Returns the roles for heads of Q of which `group` share K and V; a tile of keys works on all of these."""
        members = group if schedule.table.rows == "keys" else 1
        dynamic = schedule.kernel.tile_scheduler == "dynamic"
        return cls(program, schedule.block_M // ROWS, 1, dynamic, packed, False, False, "direct", members)

    @cached_property
    def vectors(self) -> dict[str, str]:
        """Returns, by ring, the name of the numbers of rows that come with its tiles, such as LSE with those of Q."""
        of = ((self.rings[load], self.table.by_name[load].writes[1:]) for load in self.table.loads)
        return {ring: symbol(more[0]) for ring, more in of if more}

    def _load(
        self, name: str, slot: int, lap: int, block: int, into: tuple[int, ...], step: int, place: Place,
        tile: PlacedTile | None,
    ) -> Iterator[Event]:  # fmt: skip
        *before, arrive = super()._load(name, slot, lap, block, into, step, place, tile)
        yield from before
        # For races they are part of the tile: they come in the same phase, and are released with it.
        if tile and name in self.vectors:
            vector = self.vectors[name]
            yield Event("expect", f"{vector} by {name}_full", slot, 1)
            yield Event("load", vector, slot, blocks=into, step=step, place=tile.of_numbers(place))
        yield arrive

    def begun(self, tile: PlacedTile, own: int) -> Iterator[Expected]:
        """Yields what a warpgroup does with a tile's rows, from `own` on, before it waits for their tiles."""
        if self.table.rows == "keys":
            return
        row, head, batch = tile.coordinates(own)
        further, _, alone = tile.of_numbers((row, head, batch))
        at = dict.fromkeys(OF_FACTS, (batch, head, row)) | dict.fromkeys(STORED_FACTS, (alone, head, further))
        places = (tile.tensors[name].element(*at[name]) for name in tensors_of_facts(tile.tensors))
        apart = (tile.tensors[name].row_stride for name in STRIDED)
        yield Event(ROW_FACTS, place=(tile.rows_left(own), *apart, *places))

    def _stored(self, tile: PlacedTile, own: int) -> Iterator[Expected | Where]:
        row, head, batch = tile.coordinates(own)
        for name in self.table.stored:
            tensor: Any = tile.tensors[name]
            place = tensor.element(batch, head, row), tile.rows_left(own), tensor.row_stride, 0
            yield tile.store_event(Event("output", name, place=place), own)
