"""This module proves, for all sizes, that a role of a warp-specialised kernel does for any tile what its Program says.

The sizes, the tile's number, the tiles and the loads that have been before, and the window's sides are unknown. What
the Program expects is asked of the same Roles, RowTiles, Mask and order of tiles that numbers are asked of.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.run.coverage import Coverage
from tl_attention.codeproof.run.stream import Stream
from tl_attention.codeproof.run.threads import Threads, Value
from tl_attention.codeproof.terms.comparison import Comparison, Nested, blocks_of
from tl_attention.codeproof.terms.run import LEAVE, TILES, TermRun
from tl_attention.codeproof.terms.term import Term, is_not_negative, term
from tl_attention.codeproof.tiles.term_proof import without_heads
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.codeproof.warp_specialized.unknown_numbers import UnknownNumbers
from tl_attention.codeproof.warp_specialized.unknowns import UnknownTiles
from tl_attention.kernels.warp_specialized.launches import merging_blocks
from tl_attention.kernels.warp_specialized.roles import Roles
from tl_attention.problem.bounds import LARGEST
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.packed import TOLD_WORDS
from tl_attention.problem.warpgroup import WARPS
from tl_attention.program.events import Event, Process, Repeat, Where

Alone = Callable[[Process, dict[tuple[int, int], Process], Event], bool]
Started = Callable[[list[Any], Process], list[Any]]


# The operators of launches on unknown sizes, which are not negative.
TERMS = SimpleNamespace(ceildiv=ceildiv, truncdiv=operator.floordiv)


class TileProof(UnknownTiles):
    """A TileProof proves what one generated kernel's roles do for any tile, at all sizes."""

    def __init__(self, proof: Proof, roles: Roles, alone: Alone, started: Started):
        super().__init__(proof, roles)
        self.coverage = Coverage()
        # Whether an event concerns its process alone; a process's events, without those of its start.
        self.alone, self.started = alone, started

    def check(self, idle: Sequence[Event]) -> Coverage:
        """Raises Unsafe or Refused unless all roles do for any tile what is expected; returns which lines ran.

        `idle` are the events of the warps beside the producer warp, which have no role.
        """
        cluster = self.roles.cluster
        blocks = (self.total if self.one_tile else self.workers) * cluster
        self.check_launch(blocks, 1, 1, cluster=cluster)
        if merging := self.proof.plan.merging:
            given = SimpleNamespace(**{name: SimpleNamespace(shape=shape) for name, shape in self.shapes.items()})
            given.workers, per_sm = self.workers, self.schedule.kernel.blocks_per_sm
            found, wanted = merging.blocks.at(self.names), merging_blocks(given, self.variant, per_sm, TERMS)
            self.facts.show_equal("the number of blocks that merge parts", found, wanted)
        for process in self.roles.processes:
            self.check_role(process)
        for block in range(cluster):
            events = blocks_of(self._events(Process(block, -1, WARPS - 1)))
            Comparison(self.facts, f"an idle warp of block {block}", lambda event: False).compare(events, idle)
        return self.coverage

    def check_role(self, process: Process) -> None:
        """Raises Unsafe unless a role does for any tile what is expected, and before and behind all tiles."""
        events = blocks_of(self._events(process))
        tiles = [(number, one) for number, one in enumerate(events) if isinstance(one, Nested) and one.kind == TILES]
        if len(tiles) != 1:
            raise Unsafe(f"{process} has {len(tiles)} loops over tiles")
        ((at, loop),) = tiles
        if process.warpgroup < 0 and self.roles.dynamic:
            self.received.check_counters(self.workers * self.roles.cluster)
        elif self.received.counted or self.received.resets:
            raise Unsafe(f"{process} counts blocks or resets what counts tiles")
        together = len(self.roles.cluster_sync)
        before, behind = self.started(events[:at], process)[together:], without_heads(events[at + 1 :])
        compare = Comparison(self.facts, str(process), partial(self.alone, process, {})).compare
        compare(before, self._handed(self.roles.before_tiles(process), self.cluster))
        self._check_tile(process, loop)
        compare(behind, (*self.roles.behind_tiles(process), *self.roles.cluster_sync))

    def _handed(self, expected: Iterable[Any], number: Value) -> Iterator[Any]:
        """Yields what is expected with what is handed over of the tile of a number, which may be none."""
        for event in expected:
            if isinstance(event, Repeat):
                yield event._replace(body=partial(self._of_body, event.body, number))
            elif isinstance(event, Where):
                yield event._replace(events=[*self._handed(event.events, number)])
            elif self.packed and isinstance(event, Event) and event.kind == "take":
                is_there = self.total - 1 - number
                with self.facts.assuming(is_there):
                    entry = replace(event, place=self.entry_and_head(number))
                yield Where(is_not_negative(is_there), (entry,), (event,))
            else:
                yield event

    def _of_body(self, body: Callable[[Any], Iterable[Any]], number: Value, iteration: Any) -> Iterator[Any]:
        return self._handed(body(iteration), number)

    def _events(self, process: Process) -> list[Event]:
        y = self.roles.warpgroups if process.warpgroup < 0 else process.warpgroup
        # The producer is a warpgroup's first warp, and idle are the others.
        warps = (0,) if process.warps == 1 else tuple(range(WARPS))[-process.warps :]
        threads = Threads(np.array([process.block]), 1, warps, first_y=y)
        names = {
            **self.names,
            "blockIdx_x": self.roles.cluster * self.cluster + process.block,
            "tl__block_rank_in_cluster": process.block,
        }
        self.received = UnknownNumbers(self)
        with self.facts.assuming(*self.exists_if):
            # What follows from its place is known where code computes it.
            self.tile(process.block)
        self.received.run = self.run = TermRun(
            self.proof.kernel, threads, names, self.facts, self.roles.cluster, self.received
        )
        self.run.go()
        self.coverage.note(self.run)
        stream = Stream(self.run, np.arange(len(threads)), str(process), self.proof.reading(self.tensors))
        return [*stream.events()]

    def _check_tile(self, process: Process, tiles: Nested) -> None:
        leave, *inside = tiles.inside
        if not isinstance(leave, Nested) or leave.kind != LEAVE:
            raise Unsafe(f"{process} does not begin a tile by asking whether it is there")
        exists = is_not_negative(self.word("told", 0) if self.packed else self.total - 1 - self.number)
        self.facts.show_equal(f"the end of the tiles of {process}", leave.value, 1 - exists)
        with self.facts.assuming(*self.exists_if):
            tile = self.tile(process.block)
            count = tile.count
            least = self.proof.program.least_blocks
            self.facts.show(f"a tile's KV blocks less {least}", count - least)
            with self.facts.assuming(count - least):
                expected = self.roles.tile_events(process, self.turn, self.base, count, tile, self.ops)
                compare = Comparison(self.facts, str(process), partial(self.alone, process, {}))
                if process.warpgroup >= 0:
                    self.check_heads(str(process), inside, tile)
                compare.compare(without_heads(inside), self._handed(expected, term(self.received.next_number)))
                self._check_carried(process, count)

    def _check_carried(self, process: Process, count: Term) -> None:
        """Raises Unsafe unless what is carried from tile to tile is right at first, and behind a tile for the next."""
        show = self.facts.show_equal
        for name, (before, started) in self.run.carried.items():
            end = self.run.ends[name]
            if end is None:
                raise Unsafe(f"{process}: {name} has no value behind a tile")
            if started is self.number:
                show(f"{name} of {process} at first", before, self.cluster)
                if self.one_tile:
                    self.facts.show(f"no tile behind the first of {process}", term(end) - self.total)
                else:
                    # Of a batch a number that a counter gives is read where it is told.
                    read = self.roles.dynamic and not self.packed
                    wanted = self.facts.symbol("next number", 0, LARGEST) if read else self.received.next_number
                    show(f"the next tile's number of {process}", end, wanted)
            elif started.symbols <= {f"told.{word}" for word in range(TOLD_WORDS)}:
                (symbol,) = started.symbols
                wanted = self.word("next", int(symbol.partition(".")[2]))
                show(f"what {name} of {process} tells of the next tile", end, wanted)
            else:
                show(f"{name} of {process} at first", before, 0)
                more = 1 if started is self.turn else self.roles.members * count
                show(f"{name} of {process} behind a tile", end, started + more)
