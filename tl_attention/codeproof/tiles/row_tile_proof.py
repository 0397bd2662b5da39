"""This module proves kernels whose grid has a block for each row tile, and whose threads all do the same."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from tl_attention.codeproof.comparison import executed
from tl_attention.codeproof.launch import check_descriptors
from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.read.nodes import COUNTER, Step, every
from tl_attention.codeproof.run.iterations import Iterations, check_equalities
from tl_attention.codeproof.run.run import Extent, Run
from tl_attention.codeproof.run.stream import Stream
from tl_attention.codeproof.run.threads import Threads, Value
from tl_attention.codeproof.tiles.alike import Likeness, kv_loops, numbered
from tl_attention.codeproof.tiles.row_tiles import RowTiles
from tl_attention.codeproof.tiles.tensors import Tensor
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.lengths import FAR, Lengths, at_edges, cuts, ends, far_windows, windows
from tl_attention.problem.mask import Mask, ceildiv
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import row_tiles
from tl_attention.problem.variant import Sizes
from tl_attention.problem.warpgroup import WARP
from tl_attention.program.events import Event, Expected

# The longest period in iterations: a longer one would take too long to run.
MOST_ITERATIONS = 4096
# The keys of the longest loops that are tried; most of their iterations are left out.
MOST_KEYS = 1 << 24
# A window that reaches far is tried at so many sizes.
OF_FAR = 2


class RowTileProof(Proof):
    """A RowTileProof proves a kernel whose grid has one block for each (row tile, head, batch)."""

    @cached_property
    def iterations(self) -> Iterations:
        """Returns how the kernel's lines depend on loop counters; raises Unsafe if their period is too long to run."""
        found = Iterations.of(self.kernel.body, self.cycles)
        if found.period > MOST_ITERATIONS:
            raise Unsafe(f"it repeats after {found.period} iterations, expected at most {MOST_ITERATIONS}")
        return found

    def check_everywhere(self, mask: Mask, fixed: Sizes | None) -> None:
        """Raises Unsafe unless the kernel is right at all sizes; its mask may have sides that are read at run time.

        `mask` is one with sides that are numbers.
        """
        check_equalities(self.kernel.body)
        code = self.code
        for own in windows(code.variant.mask, self.rows, self.schedule.block_N):
            # A window that is read at run time has a value now.
            self.code = replace(code, variant=replace(code.variant, mask=own))
            self._check_all(*([fixed], [fixed]) if fixed else (self.sizes(), self.grids()))
        for own in far_windows(code.variant.mask) if fixed is None else ():
            self.code = replace(code, variant=replace(code.variant, mask=own))
            self._check_all(itertools.islice((of for of in self.sizes() if of.seq_kv > FAR), OF_FAR), ())

    def extent(self, tiles: int) -> Extent:
        """Returns how much runs: the repeating middle of long loops is left out."""
        period = self.iterations.period
        return Extent(tiles, self.program.span + period, period)

    def _check_all(self, sizes: Iterable[Any], grids: Iterable[Any]) -> None:
        """Raises Unsafe unless the kernel is right at these sizes, in these grids, and in sample problems."""
        for self.at in sizes:
            tensors, shapes = self.tensors(self.at), self._shapes(self.at)
            check_descriptors(self.plan, self.tiles, tensors, shapes, self.names(self.at), self.code.variant.dtype)
            self.check_at(self.at, 0, 0)
        for self.at in grids:
            self.check_grid(self.at)
        self._check_periods(self.code.variant.sizes is not None)
        self.at = None
        self.check_samples()

    def check_alike(
        self,
        turns: Sequence[RowTiles],
        threads: Threads,
        names: Mapping[str, Any],
        ys: int,
        rows: int,
        after: np.ndarray | None = None,
        **how: Any,
    ) -> None:
        """Runs blocks of many problems, and raises Unsafe unless they treat all of these tiles alike.

        Each y has `rows` rows of its own. `after` is as in Likeness.
        """
        given = {**self.sample_names(turns[0].sizes), **names}
        given = {n: value[threads.place] if isinstance(value, np.ndarray) else value for n, value in given.items()}
        lengths = Extent(len(turns), ends=True)
        run = Run(self.kernel, threads, given, lengths, iterations=self.iterations, whole=False, **how)
        run.go()
        self.coverage.note_trips(run)
        found = Likeness(run, turns, self.iterations.period, after)
        found.check()
        found.check_loops(kv_loops(self.kernel), ys, rows, self.program)

    def _check_periods(self, fixed: bool) -> None:
        """Runs and checks tiles again where a line missed some iterations of a period, from each iteration of it on."""
        tried: set[tuple[Sizes, int]] = set()
        while wanting := self.coverage.wanting(self.iterations, fixed):
            missing = [(line, core) for line, core in wanting if self.coverage.reached[line] not in tried]
            if not missing:
                return
            place = self.coverage.reached[missing[-1][0]]
            tried.add(place)
            states = max(
                self.iterations.states(*lacks) for lacks in missing if self.coverage.reached[lacks[0]] == place
            )
            self.at, tile = place
            # From the first iteration too: the place may be of a run whose events were not looked at.
            for start in range(states):
                self.check_at(self.at, start, tile)

    def note_places(self, run: Run, *streams: Iterable[Event]) -> None:
        """Adds to the coverage a run of which only tiles' places were checked, and to the digest its streams."""
        self.coverage.note_places(run, self._steps)
        self._digest(streams)

    @cached_property
    def _steps(self) -> frozenset[int]:
        """Returns the line numbers of the calls in the kernel's code, except the calls on a counter of tiles.

        What a counter of tiles is left as shows where all tiles are looked at.
        """
        return frozenset(n.line for n in every(self.kernel.body) if isinstance(n, Step) and n.kind != COUNTER)

    def lengths(self, most: int, rows: int, edges: int) -> Iterator[Lengths]:
        """Yields (seq_q, seq_kv) for loops of up to `most` KV blocks, of at most `rows` rows, and those of `at_edges`.

        `edges` rows are masked together.
        """
        yield from ends(most, rows, self.schedule.block_N)
        yield from at_edges(self.code.variant, self.rows, self.schedule.block_N, edges)

    @property
    def longest_first(self) -> bool:
        """Says whether a head's first block takes its last row tile; False unless a lowering says otherwise."""
        return False

    @abstractmethod
    def expected(self, tile: RowTiles, executed: int) -> Iterator[Expected]:
        """Yields the events that a block must do for its tile, in order, where `executed` of its KV blocks run."""

    def checked(self, found: Sequence[Event]) -> Sequence[Event]:
        """Returns those of a block's events that are compared with the expected ones; by default all.

        Raises Unsafe where the other events are not enough.
        """
        return found

    @property
    def _warps(self) -> tuple[int, ...]:
        return tuple(range(self.kernel.signature.threads // WARP))

    @property
    def cycles(self) -> tuple[int, ...]:
        return tuple(self.program.buffers.values())

    @property
    def rows(self) -> int:
        return self.schedule.block_M

    def sizes(self) -> Iterator[Sizes]:
        group = self.code.variant.group
        for lengths in self.lengths(self.program.span + self.iterations.period + 1, 2 * self.rows, self.rows):
            yield Sizes(2, 3 * group, *lengths)
        # Loops so long that no number in the code is larger.
        yield Sizes(1, group, 5, MOST_KEYS)

    def grids(self) -> Iterator[Sizes]:
        block_M, block_N, group = self.schedule.block_M, self.schedule.block_N, self.code.variant.group
        yield Sizes(2, 2 * group, 2 * block_M + 1, 3 * block_M - 7)
        # The window's edges lie in tiles of their own, with keys before and after them that no row of the tiles sees.
        for lengths in [*cuts(self.code.variant.mask, block_M, block_N, block_M)][:1]:
            yield Sizes(1, group, lengths.seq_q + 3 * block_M, lengths.seq_kv + 4 * block_M)

    def check_grid(self, sizes: Sizes) -> None:
        """Raises Unsafe unless the grid has a block for each tile, and its corner blocks do what their tiles need.

        The blocks where groups of heads meet are checked, too.
        """
        tiles = row_tiles(AttentionShape.of(self.code.variant, sizes), self.schedule.block_M)
        group = self.code.variant.group
        x, y, z = ({*range(min(size, 3)), size - 1} for size in (tiles, sizes.heads, sizes.batch))
        y |= {head % sizes.heads for head in (group - 1, group, -group - 1, -group)}
        self._check_blocks(sizes, product(sorted(x), sorted(y), sorted(z)))

    def check_at(self, sizes: Sizes, start: int, tile: int) -> None:
        tiles = row_tiles(AttentionShape.of(self.code.variant, sizes), self.schedule.block_M)
        self._check_blocks(sizes, {(0, 0, 0), (tiles - 1, sizes.heads - 1, sizes.batch - 1)})

    def check_samples(self) -> None:
        sizes, number = numbered(self.code.variant, self.rows, self.schedule.block_N, without_rows=False)
        tiles = ceildiv(sizes.seq_q, self.rows)
        x, y, z = number % tiles, number // tiles % sizes.heads, number // tiles // sizes.heads
        threads = Threads(np.zeros(len(x), dtype=int), 1, self._warps, lanes=1)
        names = {"blockIdx_x": x, "blockIdx_y": y, "blockIdx_z": z}
        turn = self._tiles(sizes, tiles, x, y, z, self.sample_tensors(sizes))
        self.check_alike([turn], threads, names, 1, self.rows)

    def _tiles(
        self, sizes: Any, row_tiles: Value, x: Value, y: Value, z: Value, tensors: Mapping[str, Tensor]
    ) -> RowTiles:
        """Returns the tile of each block (x, y, z), as RowTiles, in grids that have `row_tiles` row tiles."""
        row = self.rows * (row_tiles - 1 - x if self.longest_first else x)
        return RowTiles(self.cut, sizes, row, y, z, 0 * x, x >= 0, tensors)

    def _check_blocks(self, sizes: Sizes, blocks: Iterable[tuple[int, int, int]]) -> None:
        wanted = (row_tiles(AttentionShape.of(self.code.variant, sizes), self.rows), sizes.heads, sizes.batch)
        grid = tuple(part.at(sizes._asdict()) for part in self.plan.grid)
        if grid != wanted or self.plan.cluster != (1, 1, 1):
            raise Unsafe(f"a grid of {grid} blocks, expected {wanted}")
        for x, y, z in blocks:
            names = {**self.names(sizes), "blockIdx_x": x, "blockIdx_y": y, "blockIdx_z": z}
            run, reading = self.run(Threads(np.array([0]), 1, self._warps), names), self.reading(sizes)
            found = list(Stream(run, np.arange(len(run.threads)), f"block {x, y, z}", reading).events())
            tile = self._tiles(Lengths(sizes.seq_q, sizes.seq_kv), wanted[0], x, y, z, reading.tensors)
            who = f"rows from {tile.row} on"
            told = self.checked(found)
            self.compare(who, told, self.expected(tile, *executed(who, found, [tile])), [tile])
            self.note(run, [event for event in told if event.kind != "mask"])
