"""This module proves kernels whose grid has a block for each row tile, and whose threads all do the same."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.run.coverage import Coverage
from tl_attention.codeproof.run.stream import Stream
from tl_attention.codeproof.run.threads import Threads
from tl_attention.codeproof.terms.comparison import Block, Comparison, blocks_of
from tl_attention.codeproof.terms.run import TermRun
from tl_attention.codeproof.terms.stream import TermStream
from tl_attention.codeproof.terms.term import Refused
from tl_attention.codeproof.tiles.row_tiles import RowTiles
from tl_attention.codeproof.tiles.term_proof import TermProof, without_heads
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.lengths import Lengths
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.variant import Sizes
from tl_attention.problem.warpgroup import WARP
from tl_attention.program.events import Event, Expected, Loop, written_out

WHO = "a block"


class BlockProof(TermProof):
    """A BlockProof proves what any block of one generated kernel does for its row tile, at all sizes."""

    proof: RowTileProof

    def __init__(self, proof: RowTileProof):
        super().__init__(proof)
        symbol, row_tiles = self.facts.symbol, ceildiv(self.sizes.seq_q, proof.rows)
        self.grid = row_tiles, self.sizes.heads, self.sizes.batch
        self.place = x, y, z = [
            symbol(f"blockIdx_{dim}", 0, float("inf"), below=count) for dim, count in zip("xyz", self.grid)
        ]
        self.there = [count - 1 - at for count, at in zip(self.grid, self.place)]
        row = proof.rows * (row_tiles - 1 - x if proof.longest_first else x)
        self.tile = self.tile_at(row, y, z, 0)

    def check(self) -> Coverage:
        """Raises Unsafe unless a block does for any tile what is expected; returns which lines ran."""
        try:
            self.check_launch(*self.grid)
            with self.facts.assuming(*self.there):
                return self._check_tile()
        except Refused as error:
            raise Unsafe(str(error)) from None

    def _check_tile(self) -> Coverage:
        names = {**self.names, **{f"blockIdx_{dim}": at for dim, at in zip("xyz", self.place)}}
        run = TermRun(self.proof.kernel, self.proof.threads, names, self.facts, 1, None)
        run.go()
        stream = TermStream(run, np.arange(len(run.threads)), WHO, self.proof.reading(self.tensors))
        found = blocks_of(stream.events())
        first, end = self.tile.blocks
        count = self.facts.named(end - first)
        least = self.proof.program.least_blocks
        self.facts.show(f"a tile's KV blocks less {least}", count - least)
        self.check_heads(WHO, found, self.tile)
        with self.facts.assuming(count - least):
            compare = Comparison(self.facts, WHO, self.proof.alone, lambda event: self.placed(event, self.tile)).compare
            compare([*self.proof.ordered(without_heads(found))], self.proof.expected(self.tile, count))
        self.coverage.note(run)
        return self.coverage


class RowTileProof(Proof):
    """A RowTileProof proves a kernel whose grid has one block for each (row tile, head, batch)."""

    @property
    def longest_first(self) -> bool:
        """Says whether a head's first block takes its last row tile; False unless a lowering says otherwise."""
        return False

    @abstractmethod
    def expected(self, tile: RowTiles, blocks: Any) -> Iterator[Expected | Loop]:
        """Yields the events that a block must do for its tile of so many KV blocks, in order."""

    def alone(self, event: Event | Block) -> bool:
        """Says whether an event may stand anywhere; no event may unless a lowering says otherwise."""
        return False

    def ordered(self, found: Iterable[Event | Block]) -> Iterable[Event | Block]:
        """Returns what a block does in an order in which it is compared; by default as it is."""
        return found

    def check_numbers(self, found: Sequence[Event]) -> None:
        """Raises Unsafe where those of a block's events that may stand anywhere are not enough, in a run with numbers."""

    @cached_property
    def threads(self) -> Threads:
        return Threads(np.array([0]), 1, tuple(range(self.kernel.signature.threads // WARP)))

    @property
    def rows(self) -> int:
        return self.schedule.block_M

    def check_terms(self) -> Coverage:
        """Raises Unsafe unless any block is right at all sizes; returns which lines ran."""
        return BlockProof(self).check()

    @property
    def loops(self) -> Iterable[int]:
        """Returns how many KV blocks a block is run with, in problems with numbers."""
        return self.program.least_blocks, self.program.span + 1

    def sizes(self) -> Iterator[Sizes]:
        for blocks in self.loops:
            seq_kv = blocks * self.schedule.block_N - self.schedule.block_N // 3
            yield Sizes(2, 3 * self.code.variant.group, min(2 * self.rows - 3, seq_kv), seq_kv)

    def check_at(self, sizes: Sizes) -> None:
        tiles = ceildiv(sizes.seq_q, self.rows)
        x, y, z = tiles - 1, sizes.heads - 1, sizes.batch - 1
        names = {**self.names(sizes), "blockIdx_x": x, "blockIdx_y": y, "blockIdx_z": z}
        run, reading = self.run(self.threads, names), self.reading(self.tensors(sizes))
        found = list(Stream(run, np.arange(len(run.threads)), WHO, reading).events())
        row = self.rows * (tiles - 1 - x if self.longest_first else x)
        tile = RowTiles(self.cut, Lengths(sizes.seq_q, sizes.seq_kv), row, y, z, 0, True, reading.tensors)
        expected = written_out(self.expected(tile, tile.count))
        self.check_numbers(found)
        told: list[Any] = [event for event in self.ordered(found) if not self.alone(event)]
        self.compare(WHO, told, expected, [tile])
        self.note(run, [event for event in told if event.kind != "mask"])
