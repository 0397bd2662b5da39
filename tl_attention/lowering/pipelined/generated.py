"""Proves the generated pipelined kernel against the Program: same order, enough waits, barriers and fences, right tiles.

`T.Pipelined` derives the waits for the loads itself, and TileLang 0.1.15 gets some orders wrong without a word (a
load that was committed last is not waited for). So what it generated is checked, not what it was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from tl_attention.lowering.device_code import OF_FEATURES
from tl_attention.lowering.pipelined.replay import Q, Replay
from tl_attention.program.program import Program
from tl_attention.proof.events import Event
from tl_attention.proof.generated.per_head import PER_HEAD, check_per_head
from tl_attention.proof.generated.refused import Unsafe
from tl_attention.proof.generated.row_tile import RowTile
from tl_attention.proof.generated.row_tile_proof import RowTileProof
from tl_attention.proof.generated.tiles import Product, Tile
from tl_attention.proof.generated.verdict import GeneratedCode, Verdict
from tl_attention.schedule.schedule import Schedule

# What an event moves or multiplies; others order these.
MOVED = {"load", "product", "write", "store", "output", "lse", "left out", PER_HEAD}


class PipelinedProof(RowTileProof):
    """The proof of one kernel, whose threads all do the same."""

    @property
    def prelude(self) -> str:
        return OF_FEATURES["LSE"] if self.lse else ""

    @cached_property
    def tiles(self) -> dict[str, Tile]:
        variant, schedule = self.code.variant, self.schedule
        buffers = {name.removeprefix("load_").upper(): count for name, count in self.program.buffers.items()}
        return {
            Q: Tile(Q, schedule.block_M, variant.tile_dim, 1, of_tensor=variant.head_dim),
            "K": Tile("K", schedule.block_N, variant.tile_dim, buffers["K"], of_tensor=variant.head_dim),
            "V": Tile("V", schedule.block_N, variant.tile_dim_v, buffers["V"], of_tensor=variant.head_dim_v),
        }

    @cached_property
    def products(self) -> dict[str, Product]:
        variant, block_N, tiles = self.code.variant, self.schedule.block_N, self.tiles
        return {
            "acc_s": Product("acc_s", tiles[Q], tiles["K"], block_N, variant.tile_dim, False),
            "acc_o": Product("acc_o", "acc_s_cast", tiles["V"], variant.tile_dim_v, block_N, True),
        }

    def check_code(self) -> None:
        declared = self.kernel.declared
        if declared.barriers or declared.numbers:
            raise Unsafe(f"it has mbarriers or numbers in shared memory: {declared.barriers} {declared.numbers}")

    def check_tile(self, tile: RowTile, found: Sequence[Event]) -> Iterable[Event]:
        Replay(self.program, tile, self.lse).check(found)
        check_per_head(found, self.code.variant.optional, [tile.place[1]])
        # Its waits and barriers are enough, wherever they stand: others that are enough are the same proof.
        return [event for event in found if event.kind in MOVED]


def check(schedule: Schedule, program: Program, code: GeneratedCode) -> Verdict:
    """The verdict on a kernel. Raises ScheduleRefused."""
    return PipelinedProof(schedule, program, code).verdict()
