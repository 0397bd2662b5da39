"""This module proves kernels whose grid has a block for each row tile, and whose threads all do the same."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from tl_attention.codeproof.comparison import executed
from tl_attention.codeproof.proof import MOST_KEYS, Proof
from tl_attention.codeproof.run.stream import Stream
from tl_attention.codeproof.run.threads import Threads, Value
from tl_attention.codeproof.tiles.alike import numbered
from tl_attention.codeproof.tiles.row_tiles import RowTiles
from tl_attention.codeproof.tiles.tensors import Tensor
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.lengths import Lengths, cuts
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import row_tiles
from tl_attention.problem.variant import Sizes
from tl_attention.problem.warpgroup import WARP
from tl_attention.program.events import Event, Expected


class RowTileProof(Proof):
    """A RowTileProof proves a kernel whose grid has one block for each (row tile, head, batch)."""

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
