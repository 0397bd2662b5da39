"""The proof of kernels whose grid has a block for each row tile, and whose threads all do the same."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

import numpy as np

from tl_attention.hardware.warpgroup import WARP
from tl_attention.problem.lengths import cuts, ends, without_keys
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import kv_blocks, row_tiles
from tl_attention.problem.variant import Sizes
from tl_attention.proof.events import Event
from tl_attention.proof.generated.alike import Comparison, kv_loops
from tl_attention.proof.generated.proof import MOST_KEYS, Proof
from tl_attention.proof.generated.refused import Unsafe
from tl_attention.proof.generated.row_tile import RowTile
from tl_attention.proof.generated.run import Run
from tl_attention.proof.generated.samples import Samples, numbered, of_threads
from tl_attention.proof.generated.seen import Lengths
from tl_attention.proof.generated.stream import Stream
from tl_attention.proof.generated.threads import Threads


class RowTileProof(Proof):
    """A grid of (row tiles, heads, batch)."""

    @property
    def longest_first(self) -> bool:
        """Whether a head's last row tile is its first block."""
        return False

    @abstractmethod
    def check_tile(self, tile: RowTile, found: Sequence[Event]) -> Iterable[Event]:
        """Raise Unsafe unless a block's events are those of its row tile. The events that tell it from other kernels."""

    @property
    def cycles(self) -> tuple[int, ...]:
        return tuple(self.program.buffers.values())

    @property
    def rows(self) -> int:
        return self.schedule.block_M

    def sizes(self) -> Iterator[Sizes]:
        block_M, block_N = self.schedule.block_M, self.schedule.block_N
        group = self.code.variant.group
        most = self.program.span + self.iterations.period + 1
        mask = self.code.variant.mask
        cut, hidden = cuts(mask, block_M, block_N, block_M), without_keys(mask, block_M, block_N)
        for lengths in (*ends(most, 2 * block_M, block_N), *cut, *hidden):
            yield Sizes(2, 3 * group, *lengths)
        # So long that no number of the code is longer.
        yield Sizes(1, group, 5, MOST_KEYS)

    def grids(self) -> Iterator[Sizes]:
        block_M, block_N, group = self.schedule.block_M, self.schedule.block_N, self.code.variant.group
        yield Sizes(2, 2 * group, 2 * block_M + 1, 3 * block_M - 7)
        # The window's edges in tiles of their own, and keys before and after them that none of these sees.
        for lengths in [*cuts(self.code.variant.mask, block_M, block_N, block_M)][:1]:
            yield Sizes(1, group, lengths.seq_q + 3 * block_M, lengths.seq_kv + 4 * block_M)

    def check_grid(self, sizes: Sizes) -> None:
        """Every block of the grid has its own tile; of a large grid, those at its corners, and where groups meet."""
        tiles = row_tiles(AttentionShape.of(self.code.variant, sizes), self.schedule.block_M)
        group = self.code.variant.group
        x, y, z = ({*range(min(size, 3)), size - 1} for size in (tiles, sizes.heads, sizes.batch))
        y |= {head % sizes.heads for head in (group - 1, group, -group - 1, -group)}
        self._check_blocks(sizes, product(sorted(x), sorted(y), sorted(z)))

    def check_at(self, sizes: Sizes, start: int, tile: int) -> None:
        tiles = row_tiles(AttentionShape.of(self.code.variant, sizes), self.schedule.block_M)
        self._check_blocks(sizes, {(0, 0, 0), (tiles - 1, sizes.heads - 1, sizes.batch - 1)})

    def check_samples(self) -> None:
        schedule, variant = self.schedule, self.code.variant
        block_M = schedule.block_M
        sizes, tiles, number = numbered(variant, block_M, schedule.block_N, without_rows=False)
        x, y, z = number % tiles, number // tiles % sizes.heads, number // tiles // sizes.heads
        row = block_M * (tiles - 1 - x if self.longest_first else x)
        samples = Samples(
            sizes, row, row, y, z, np.zeros_like(x), np.full(len(x), True), block_M, block_M, schedule.block_N, variant.group, variant.mask,
            self.program.least_blocks, self.sample_tensors(sizes),
        )  # fmt: skip
        warps = tuple(range(self.kernel.signature.threads // WARP))
        threads = Threads(np.zeros(len(x), dtype=int), 1, warps, lanes=1)
        names = {**self.sample_names(sizes), "blockIdx_x": x, "blockIdx_y": y, "blockIdx_z": z}
        names = of_threads(names, threads)
        run = Run(self.kernel, threads, names, Lengths(1, ends=True), iterations=self.iterations, whole=False)
        run.go()
        found = Comparison(run, [samples], self.iterations.period)
        found.check()
        found.check_loops(kv_loops(self.kernel), 1, block_M, self.program)

    def _check_blocks(self, sizes: Sizes, blocks: Iterable[tuple[int, int, int]]) -> None:
        shape = AttentionShape.of(self.code.variant, sizes)
        wanted = (row_tiles(shape, self.schedule.block_M), sizes.heads, sizes.batch)
        grid = tuple(part.at(sizes._asdict()) for part in self.plan.grid)
        if grid != wanted or self.plan.cluster != (1, 1, 1):
            raise Unsafe(f"a grid of {grid} blocks, expected {wanted}")
        for x, y, z in blocks:
            run = self._run(sizes, x, y, z)
            expected = self.expected(sizes)
            found = list(Stream(run, np.arange(len(run.threads)), f"block {x, y, z}", expected).events())
            number = wanted[0] - 1 - x if self.longest_first else x
            place = (number * self.schedule.block_M, y, z)
            kv = kv_blocks(shape, self.schedule.block_M, self.schedule.block_N, number, self.program.least_blocks)
            self.note(run, self.check_tile(RowTile(self.schedule, shape, expected.tensors, place, kv), found))

    def _run(self, sizes: Sizes, x: int, y: int, z: int) -> Run:
        warps = self.kernel.signature.threads // WARP
        period = self.iterations.period
        lengths = Lengths(1, self.program.span + period, period)
        names = {**self.names(sizes), "blockIdx_x": x, "blockIdx_y": y, "blockIdx_z": z}
        run = Run(
            self.kernel, Threads(np.array([0]), 1, tuple(range(warps))), names, lengths, iterations=self.iterations
        )
        run.go()
        return run
