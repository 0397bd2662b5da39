"""This module proves kernels whose grid has a block for each row tile, and whose threads all do the same."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.run.coverage import Coverage
from tl_attention.codeproof.run.run import Run
from tl_attention.codeproof.run.stream import Stream
from tl_attention.codeproof.run.threads import Threads
from tl_attention.codeproof.terms.comparison import Comparison, Nested, blocks_of
from tl_attention.codeproof.terms.run import TermRun
from tl_attention.codeproof.tiles.row_tiles import RowTile
from tl_attention.codeproof.tiles.term_proof import TermProof, without_heads
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.variant import Sizes
from tl_attention.problem.warpgroup import WARP
from tl_attention.program.events import Event, Expected, Repeat

WHO = "a block"


class BlockProof(TermProof):
    """A BlockProof proves what any block of a generated kernel does for its row tile, at all sizes or with numbers."""

    proof: RowTileProof

    def __init__(self, proof: RowTileProof, *, given: Mapping[str, int] | None = None):
        super().__init__(proof, given=given)
        row_tiles = ceildiv(self.sizes.seq_q, proof.rows)
        self.grid = row_tiles, self.sizes.heads, self.sizes.batch
        self.place = x, y, z = [
            self.symbol(f"blockIdx_{dim}", 0, inf, below=count) for dim, count in zip("xyz", self.grid)
        ]
        self.tile = self.tile_at(proof.rows * (row_tiles - 1 - x if proof.longest_first else x), y, z, 0)

    def check(self) -> Coverage:
        """Raises Unsafe or Refused unless a block does for any tile what is expected; returns which lines ran."""
        run = TermRun(self.proof.kernel, self.proof.threads, self.read, self.facts, 1, None)
        self.check_launch(*self.grid)
        with self.facts.assuming(*(count - 1 - at for count, at in zip(self.grid, self.place))):
            self.check_events(run)
        coverage = Coverage()
        coverage.note(run)
        return coverage

    @property
    def read(self) -> dict[str, Any]:
        """Returns, by name, the values that the block reads."""
        return {**self.names, **{f"blockIdx_{dim}": at for dim, at in zip("xyz", self.place)}}

    def check_events(self, run: Run) -> list[Event | Nested]:
        """Raises Unsafe unless the block does in this run what is expected; returns what it does."""
        run.go()
        reading = self.proof.reading(self.tensors)
        acts = blocks_of(Stream(run, np.arange(len(run.threads)), WHO, reading).events())
        count, least = self.tile.count, self.proof.program.least_blocks
        self.facts.show(f"a tile's KV blocks less {least}", count - least)
        self.check_heads(WHO, acts, self.tile)
        with self.facts.assuming(count - least):
            expected = self.proof.expected(self.tile, count)
            Comparison(self.facts, WHO, self.proof.alone).compare([*self.proof.ordered(without_heads(acts))], expected)
        return acts


class RowTileProof(Proof):
    """A RowTileProof proves a kernel whose grid has one block for each (row tile, head, batch)."""

    @property
    def longest_first(self) -> bool:
        """Says whether a head's first block takes its last row tile; False unless a lowering says otherwise."""
        return False

    @abstractmethod
    def expected(self, tile: RowTile, blocks: Any) -> Iterator[Expected | Repeat]:
        """Yields the events that a block must do for its tile of so many KV blocks, in order."""

    def alone(self, event: Event | Nested) -> bool:
        """Says whether an event may stand anywhere; no event may unless a lowering says otherwise."""
        return False

    def ordered(self, found: Iterable[Event | Nested]) -> Iterable[Event | Nested]:
        """Returns what a block does in an order in which it is compared; by default as it is."""
        return found

    def check_numbers(self, found: Sequence[Event]) -> None:
        """Raises Unsafe if, in a run with numbers, a block's events that may stand anywhere are not enough."""

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
            yield Sizes(2, 3 * self.code.variant.some_group, min(2 * self.rows - 3, seq_kv), seq_kv)

    def check_at(self, sizes: Sizes) -> None:
        # The last block.
        x, y, z = ceildiv(sizes.seq_q, self.rows) - 1, sizes.heads - 1, sizes.batch - 1
        block = BlockProof.from_numbers(self, sizes, blockIdx_x=x, blockIdx_y=y, blockIdx_z=z)
        run = Run(self.kernel, self.threads, block.read)
        events: list[Any] = block.check_events(run)
        self.check_numbers(events)
        self.note(run, [event for event in events if event.kind != "mask" and not self.alone(event)])
