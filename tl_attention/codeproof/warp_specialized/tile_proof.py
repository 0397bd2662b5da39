"""This module proves, for all sizes, that a role of a warp-specialised kernel does for any tile what its Program says.

The sizes, the tile's number, the tiles and the loads that have been before, and the window's sides are unknown. What the
Program expects is asked of the same Roles, RowTiles, Mask and order of tiles that numbers are asked of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tl_attention.codeproof.comparison import COUNTS, OF_HEADS
from tl_attention.codeproof.launch import check_descriptors
from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.read.nodes import PER_HEAD
from tl_attention.codeproof.run.thread_slice import Reading
from tl_attention.codeproof.run.threads import Threads, Value
from tl_attention.codeproof.terms.comparison import Block, Comparison, blocks_of
from tl_attention.codeproof.terms.run import LEAVE, TILES, TermRun
from tl_attention.codeproof.terms.stream import TermStream
from tl_attention.codeproof.terms.term import Refused, Term, holds, term
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.codeproof.warp_specialized.told import Told
from tl_attention.codeproof.warp_specialized.unknowns import TermTile, Unknowns
from tl_attention.kernels.warp_specialized.roles import Roles
from tl_attention.problem.bounds import LARGEST
from tl_attention.problem.features import features_of
from tl_attention.problem.packed import TOLD_WORDS
from tl_attention.problem.warpgroup import ROWS, WARPS
from tl_attention.program.events import Event, Loop, Process, Where

Alone = Callable[[Process, dict[tuple[int, int], Process], Event], bool]
Started = Callable[[list[Any], Process], list[Any]]


class TileProof(Unknowns):
    """A TileProof proves what one generated kernel's roles do for any tile, at all sizes.

    `alone` says which events concern their process alone, which `started` takes the start of its events from.
    """

    def __init__(self, proof: Proof, roles: Roles, alone: Alone, started: Started):
        super().__init__(proof, roles)
        self.alone, self.started = alone, started
        # The lines that ran.
        self.ran: set[int] = set()

    def check_launch(self) -> None:
        """Raises Unsafe unless the host's descriptors and grid are those of the tensors and tiles, at all sizes."""
        proof, cluster = self.proof, self.roles.cluster
        check_descriptors(proof.plan, proof.tiles, self.tensors, self.shapes, self.names, self.variant.dtype)
        grid = [term(part.at(self.names)) for part in proof.plan.grid]
        wanted = (self.total if self.one_tile else self.workers) * cluster
        for found, expected in zip(grid, (wanted, 1, 1), strict=True):
            self.facts.show_equal("the number of blocks", found, expected)
        if proof.plan.cluster != (cluster, 1, 1):
            raise Unsafe(f"clusters of {proof.plan.cluster}, expected {cluster}")

    def check(self) -> None:
        """Raises Unsafe unless all roles do for any tile what is expected."""
        try:
            self.check_launch()
            for process in self.roles.processes:
                self.check_role(process)
        except Refused as error:
            raise Unsafe(str(error)) from None

    def check_role(self, process: Process) -> None:
        """Raises Unsafe unless a role does for any tile what is expected, and before and behind all tiles."""
        found = blocks_of(self._events(process))
        tiles = [(number, one) for number, one in enumerate(found) if isinstance(one, Block) and one.kind == TILES]
        if len(tiles) != 1:
            raise Unsafe(f"{process} has {len(tiles)} loops over tiles")
        ((at, loop),) = tiles
        if process.warpgroup < 0 and self.roles.dynamic:
            self.told.check_counters(self.workers * self.roles.cluster)
        elif self.told.counted or self.told.resets:
            raise Unsafe(f"{process} counts blocks or resets what counts tiles")
        together = len(self.roles.together)
        before, behind = self.started(found[:at], process)[together:], without_heads(found[at + 1 :])
        compare = Comparison(self.facts, str(process), partial(self.alone, process, {}), self._placed).compare
        compare(before, self._handed(self.roles.before_tiles(process), self.cluster))
        self._check_tile(process, loop)
        compare(behind, (*self.roles.behind_tiles(process), *self.roles.together))

    def _handed(self, expected: Iterable[Any], number: Value) -> Iterator[Any]:
        """Yields what is expected with what is handed over of the tile of a number, which may be none."""
        for event in expected:
            if isinstance(event, Loop):
                yield event._replace(body=partial(self._of_body, event.body, number))
            elif isinstance(event, Where):
                yield event._replace(events=[*self._handed(event.events, number)])
            elif self.packed and isinstance(event, Event) and event.kind == "take":
                heads = self.of_results
                there = replace(event, place=(number // heads, number % heads))
                yield Where(holds(self.total - 1 - number), (there,), (event,))
            else:
                yield event

    def _of_body(self, body: Callable[[Any], Iterable[Any]], number: Value, iteration: Any) -> Iterator[Any]:
        return self._handed(body(iteration), number)

    def _events(self, process: Process) -> list[Event]:
        producer = process.warpgroup < 0
        y = self.roles.warpgroups if producer else process.warpgroup
        threads = Threads(np.array([process.block]), 1, (0,) if producer else tuple(range(WARPS)), first_y=y)
        names = {
            **self.names,
            "blockIdx_x": self.roles.cluster * self.cluster + process.block,
            "tl__block_rank_in_cluster": process.block,
        }
        self.told = Told(self)
        self.told.run = self.run = TermRun(self.proof.kernel, threads, names, self.facts, self.roles.cluster, self.told)
        self.run.go()
        self.ran |= self.run.ran
        boxes = {descriptor.name: descriptor.box[0] for descriptor in self.proof.plan.descriptors}
        heads = self.variant.tile_heads, self.variant.box
        reading = Reading(
            self.proof.tiles,
            self.proof.products,
            self.tensors,
            self.variant.dtype,
            boxes,
            self.variant.parts,
            self.variant.parts and self.packed,
            heads,
        )
        stream = TermStream(self.run, np.arange(len(threads)), str(process), reading)
        stream.left = lambda: self.tile(process.block).left(self.variant.box * process.warpgroup)
        return [*stream.events()]

    def _check_tile(self, process: Process, tiles: Block) -> None:
        leave, *inside = tiles.inside
        if not isinstance(leave, Block) or leave.kind != LEAVE:
            raise Unsafe(f"{process} does not begin a tile by asking whether it is there")
        there = holds(self.word("told", 0) if self.packed else self.total - 1 - self.number)
        self.facts.show_equal(f"the end of the tiles of {process}", leave.value, 1 - there)
        with self.facts.assuming(*self.there):
            tile = self.tile(process.block)
            first, end = tile.blocks
            count = self.facts.named(end - first)
            least = self.proof.program.least_blocks
            self.facts.show(f"a tile's KV blocks less {least}", count - least)
            with self.facts.assuming(count - least):
                expected = self.roles.of_tile(process, self.turn, self.base, count, tile, self.ops)
                compare = Comparison(
                    self.facts, str(process), partial(self.alone, process, {}), partial(self._placed, tile=tile)
                )
                if process.warpgroup >= 0:
                    self._check_heads(process, inside, tile)
                compare.compare(without_heads(inside), self._handed(expected, term(self.told.next_number)))
                self._check_carried(process, count)

    def _check_heads(self, process: Process, found: list[Event | Block], tile: TermTile) -> None:
        """Raises Unsafe unless each number of a tile's head is read once, and what counts once counts in whole tiles."""
        for feature in features_of(self.variant.acting):
            read = [one for one in found if isinstance(one, Event) and (one.kind, one.name) == (PER_HEAD, feature.name)]
            if feature.per_head and len(read) != 1:
                raise Unsafe(f"{process} reads {feature.name} {len(read)} times")
            for one in read:
                self.facts.show_equal(f"line {one.step}: the head of {feature.name} of {process}", one.value, tile.head)
            if feature.counts_once and self.packed and self.variant.parts:
                self._check_counted(process, found, feature.name, tile.there)

    def _check_counted(self, process: Process, found: list[Event | Block], name: str, split: Term) -> None:
        counted = [
            (term(block.value), side is block.otherwise)
            for block in found
            if isinstance(block, Block)
            for side in (block.inside, block.otherwise)
            if any(isinstance(one, Event) and (one.kind, one.name) == (COUNTS, name) for one in side)
        ]
        if len(counted) != 1:
            raise Unsafe(f"{process}: {name} count {len(counted)} times")
        for condition, otherwise in counted:
            here = 1 - condition if otherwise else condition
            self.facts.show_equal(f"where {name} count for {process}", here, 1 - split)

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
                    wanted = self.facts.symbol("next number", 0, LARGEST) if read else self.told.next_number
                    show(f"the next tile's number of {process}", end, wanted)
            elif started.symbols <= {f"told.{word}" for word in range(TOLD_WORDS)}:
                (symbol,) = started.symbols
                wanted = self.word("next", int(symbol.partition(".")[2]))
                show(f"what {name} of {process} tells of the next tile", end, wanted)
            else:
                show(f"{name} of {process} at first", before, 0)
                show(f"{name} of {process} behind a tile", end, started + (1 if started is self.turn else count))

    def _placed(self, event: Event, tile: TermTile | None = None) -> tuple[Any, ...]:
        if tile is None or event.kind not in ("output", "lse"):
            return event.place
        row, head, batch = event.place
        whole = self.packed and self.variant.parts and not event.name
        names = {"output": ("Output", "Merged"), "lse": ("LSE", "MergedLSE")}
        tensor = self.tensors[names[event.kind][whole]]
        if event.name:
            element, left = row * tensor.row_stride, tile.sizes.seq_q - tile.row - head
        else:
            element = tensor.element(0 if self.packed else batch, head, row)
            left = tile.sizes.seq_q + tile.queries[0] - row
        if event.kind == "output" and self.schedule.kernel.output == "direct":
            left = self.ops.min(left, ROWS)
        return element, left, tensor.row_stride, tensor.head_stride if self.variant.tile_heads > 1 else 0


def without_heads(found: list[Event | Block]) -> list[Event | Block]:
    """Returns what a process does but for reads of numbers of heads, and arithmetic with these."""
    kept: list[Event | Block] = []
    for one in found:
        if isinstance(one, Block):
            kept.append(replace(one, inside=without_heads(one.inside), otherwise=without_heads(one.otherwise)))
        elif one.kind not in OF_HEADS:
            kept.append(one)
    return kept
