"""This module proves the generated warp-specialised kernel: threads run their roles' events, on the right tiles.

`races.py` has proved these events; what else could make threads wait for each other is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.read.copies import CLEAR
from tl_attention.codeproof.run.coverage import Coverage
from tl_attention.codeproof.run.run import Run
from tl_attention.codeproof.run.stream import Stream
from tl_attention.codeproof.run.threads import Threads
from tl_attention.codeproof.terms.comparison import Comparison
from tl_attention.codeproof.tiles.row_tiles import RowTile
from tl_attention.codeproof.tiles.term_proof import without_heads
from tl_attention.codeproof.tiles.tiles import Tile
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.codeproof.warp_specialized.packed_proof import ListedTiles, packed_sizes
from tl_attention.codeproof.warp_specialized.small_kernels import check_listing, check_merging
from tl_attention.codeproof.warp_specialized.tile_proof import TileProof
from tl_attention.codeproof.warp_specialized.unknowns import UnknownTiles
from tl_attention.kernels.warp_specialized.dialect import split_registers
from tl_attention.kernels.warp_specialized.roles import Roles, tile_lists
from tl_attention.problem.bounds import GRID_YZ
from tl_attention.problem.lengths import ends
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.packed import TILES_TOLD, TOLD_WORDS
from tl_attention.problem.variant import Sizes
from tl_attention.problem.warpgroup import MEETING, ROWS, WARP, WARPS
from tl_attention.program.events import NAMED, Event, Process

# Tiles of a block that run one after another.
TILES = 2


class RolesProof(Proof):
    """A RolesProof proves that the threads of one generated warp-specialised kernel run the events of their roles."""

    @cached_property
    def roles(self) -> Roles:
        return Roles.of(self.schedule, self.program, self.code.variant.packed)

    @cached_property
    def tiles(self) -> dict[str, Tile]:
        variant, block_N = self.code.variant, self.schedule.block_N
        swizzled = {descriptor.tensor: descriptor.swizzle != 0 for descriptor in self.plan.descriptors}
        q_swizzled = not self.roles.q_in_registers or swizzled.get("Q", True)
        slots = self.roles.slots
        box, pages = (variant.key_box, block_N // variant.key_box) if variant.key_box else (0, 0)
        p = {"P": Tile("P", ROWS, block_N, slots("P"))} if self.roles.p_in_shared else {}
        return {
            "Q": Tile("Q", ROWS, variant.tile_dim, slots("Q"), q_swizzled, heads=variant.tile_heads, box=variant.box),
            "K": Tile("K", block_N, variant.tile_dim, slots("K"), box=box, pages=pages),
            "V": Tile("V", block_N, variant.tile_dim_v, slots("V"), box=box, pages=pages),
            **p,
        }

    @property
    def operands(self) -> tuple[Tile | str, Tile | str]:
        q = "Q_local" if self.roles.q_in_registers else self.tiles["Q"]
        return q, self.tiles["P"] if self.roles.p_in_shared else "acc_s_cast"

    @property
    def barriers(self) -> dict[str, int]:
        return {name: self.roles.slots(name.partition("_")[0]) for name in self.roles.counts}

    @property
    def numbers(self) -> dict[str, int]:
        if self.roles.packed:
            return {"next_tile": TILES_TOLD * TOLD_WORDS}
        return {"next_tile": 2} if self.roles.dynamic else {}

    @property
    def rows(self) -> int:
        return self.code.variant.rows_of(self.schedule.block_M) * self.schedule.kernel.cluster

    def check_code(self) -> None:
        variant = self.code.variant
        if variant.parts:
            check_merging(self.kernel, self.plan, variant, self.schedule.block_M)
        if not self.roles.packed:
            return
        tile = self.schedule.block_M, self.roles.cluster, self.schedule.block_N
        check_listing(self.kernel, self.plan, tile, variant)
        self.roles.prove()

    def sizes(self) -> Iterator[Any]:
        # So many heads that each block has TILES tiles.
        variant = self.code.variant
        heads = ceildiv(TILES * self.workers, variant.subgroups)
        heads = min(heads, GRID_YZ // variant.some_group) * variant.some_group
        if self.roles.packed:
            yield from packed_sizes(self, heads)
            return
        for lengths in ends(self.program.span + 2, self.rows, self.schedule.block_N):
            yield Sizes(1, heads, *lengths)
        # No tile, for blocks that look for one: the terms' problems have rows.
        if self.schedule.kernel.tile_scheduler != "one_tile":
            yield Sizes(2, 2 * variant.some_group, 0, self.rows)

    def check_terms(self) -> Coverage:
        """Raises Unsafe unless every role is right on any tile at all sizes; returns which lines ran."""
        # Every block's are alike.
        idle = [*self._start(Process(0, -1, WARPS - 1)), *self.roles.cluster_sync]
        return TileProof(self, self.roles, _alone, self._started).check(idle)

    def check_at(self, sizes: Any) -> None:
        cluster, entries = self.roles.cluster, ListedTiles.of(sizes, self) if self.roles.packed else None
        given = {"parts": 2, "part_blocks": self.program.span // 2 + 1}
        if entries:
            given = {"few": entries.tiles_of_few, "many": entries.many, "in_turns": entries.in_turns}
        known = UnknownTiles.from_numbers(self, sizes, self.roles, **given)
        threads = Threads(np.arange(cluster), self.roles.warpgroups + 1, tuple(range(WARPS)))
        counter = {"TileCounter": (0, 0)}
        run = Run(self.kernel, threads, known.names, TILES, cluster, counter, whole=False, entries=entries)
        run.go()
        reading, users, streams = self.reading(known.tensors), self._users(), list[list[Any]]()
        for process in self.roles.processes:
            stream: Any = Stream(run, self._threads(run, process), str(process), reading)
            events: list[Any] = self._started([*stream.events()], process)
            tiles = known.first_tiles(entries.entries if entries else None, TILES, process.block)
            self._check_heads(known, process, events, tiles)
            expected = self.roles.expected(process, [int(tile.count) for tile in tiles], tiles)
            alone = partial(_alone, process, users)
            Comparison(known.facts, str(process), alone).compare(without_heads(events), expected)
            streams.append(events)
        self.note(run, *streams)

    def _users(self) -> dict[tuple[int, int], Process]:
        """Returns a process for each (block, named barrier) that the events of a process are expected to use."""
        tiles = tile_lists(self.program)[-1]
        events = ((process, event) for process in self.roles.processes for event in self.roles.events(process, tiles))
        return {(process.block, event.index): process for process, event in events if event.name == NAMED}

    def _check_heads(self, found: UnknownTiles, process: Process, events: list[Any], tiles: Sequence[RowTile]) -> None:
        """Raises Unsafe unless a warpgroup reads the numbers of its tiles' heads, tile by tile."""
        begins = [n for n, event in enumerate(events) if (event.kind, event.name) == ("wait", "Q_full")]
        for tile, begin, end in zip(tiles, begins, (*begins[1:], len(events))) if process.warpgroup >= 0 else ():
            found.check_heads(str(process), events[begin:end], tile)

    def _threads(self, run: Run, process: Process) -> np.ndarray:
        threads = run.threads
        group = process.warpgroup if process.warpgroup >= 0 else self.roles.warpgroups
        mine = (threads.place == process.block) & (threads.y == group) & (threads.x < process.warps * WARP)
        return np.flatnonzero(mine)

    def _started(self, events: list[Event], process: Process) -> list[Event]:
        """Returns a process's events after its start and a cluster's meeting; raises Unsafe if the start is wrong."""
        # The mbarriers must be initialised first, and registers moved next, once.
        counts = {
            Event("init", name, slot, count)
            for name, count in self.roles.counts.items()
            for slot in range(self.roles.slots(name.partition("_")[0]))
        }
        inits = [event for event in events if event.kind == "init"]
        if len(inits) != len(counts) or set(inits) != counts:
            raise Unsafe(
                f"its mbarriers are initialised as {_words(inits)}, expected {_words(sorted(counts, key=str))}"
            )
        begin = [*inits, *self._start(process)]
        if events[: len(begin)] != begin:
            raise Unsafe(f"{process} starts with {', '.join(map(str, events[: len(begin)]))}")
        rest = [*self.roles.cluster_sync, *events[len(begin) :]]
        if process.warpgroup < 0 and self.code.variant.idle_rows:
            # Before the first load, of other rows; the warpgroups read behind the loads.
            at = len(self.roles.cluster_sync)
            cleared = [*(Event(CLEAR, "Q", slot) for slot in range(self.roles.warpgroups)), Event("fence")]
            if rest[at : at + len(cleared)] != cleared:
                raise Unsafe(f"{process} does not begin with the idle rows of Q")
            del rest[at : at + len(cleared)]
        if any(event.kind == CLEAR for event in rest):
            raise Unsafe(f"{process} clears rows of Q")
        if any("registers" in event.kind for event in rest):
            raise Unsafe(f"{process} moves registers again")
        return rest

    def _start(self, process: Process) -> list[Event]:
        """Returns the events, expected before a process's role, by which it sees all barriers, and moves registers."""
        split = split_registers(self.schedule)
        kind = "fewer registers" if process.warpgroup < 0 else "more registers"
        moved = [Event(kind, value=split[process.warpgroup < 0])] if split else []
        return [Event("init fence"), Event("sync"), *self.roles.cluster_sync, *moved]


def _alone(process: Process, users: dict[tuple[int, int], Process], event: Event) -> bool:
    """Says whether an event is a fence, or a barrier of the process alone; raises Unsafe if another process uses it."""
    if event.kind == "sync" and event.name == NAMED and event.value == process.warps * WARP and event.index >= MEETING:
        user = users.setdefault((process.block, event.index), process)
        if user != process:
            raise Unsafe(f"{user} and {process} both use named barrier {event.index}")
        return True
    return event.kind == "fence"


def _words(events: Sequence[Event]) -> str:
    return ", ".join(f"{event.name}[{event.index}] {event.value}" for event in events)
