"""This module holds what threads of a run receive of tiles: numbers from counters, and entries in shared memory.

The n-th read of a number in shared memory gets the n-th number that was put there: that reads and writes alternate is
for the proof of the events to show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Protocol

import numpy as np

from tl_attention.codeproof.run.threads import ThreadClass, Threads, Value, collapse
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.packed import some_page_shift


class TileList(Protocol):
    """A TileList is the list of packed sequences' tiles that each block reads; its first entry is number 0."""

    def count(self, blocks: np.ndarray) -> Value:
        """Returns how many tiles each head has in each block's problem."""

    def few(self, blocks: np.ndarray) -> Value:
        """Returns how many tiles are of sequences of few queries; each other tile has a second entry."""

    def turns_from(self, blocks: np.ndarray) -> Value:
        """Returns the first of the heads that take turns, tile by tile."""

    def words(self, blocks: np.ndarray, entries: np.ndarray) -> np.ndarray:
        """Returns these entries' numbers, (TILE_WORDS, blocks); raises Unsafe for one that is not in the list."""


@dataclass
class TileNumbers:
    """TileNumbers keeps the counters of tiles, and the tiles that warps have received, for all threads of a run."""

    threads: Threads
    counter: InitVar[Mapping[str, Sequence[int]]]  # each counter's values when the run begins
    whole: bool  # whether all threads of the launch run
    entries: TileList | None  # the list of packed sequences' tiles

    def __post_init__(self, counter: Mapping[str, Sequence[int]]) -> None:
        self.counters = {name: list(values) for name, values in counter.items()}
        self._last: dict[str, int] = {}
        self._put: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        # How often each warp has waited to be told of a tile.
        self._told = np.zeros(len(self.threads) // self.threads.lanes, dtype=int)
        # The threads that have waited for the kernel before this one.
        self._after = np.zeros(len(self.threads), dtype=bool)

    def add(self, threads: ThreadClass, counter: str, index: int, step: int) -> np.ndarray:
        """Adds `step` to a counter for each thread in turn, and returns what each thread found there."""
        counts = self.counters[counter]
        before = counts[index] + step * np.arange(len(threads.threads))
        counts[index] += step * len(threads.threads)
        self._last[counter] = int(threads.threads[-1])
        return before

    def set(self, threads: ThreadClass, counter: str, index: int, value: int) -> None:
        """Sets a counter; raises Unsafe unless one thread does so, the last that has added to the counter.

        No other thread comes after that one. Runs of part of a launch do not check it.
        """
        if self.whole and threads.threads.tolist() != [self._last.get(counter)]:
            raise Unsafe(f"{len(threads.threads)} threads write {counter}, expected the last that added to it")
        self.counters[counter][index] = value

    def put(self, threads: ThreadClass, name: str, word: Value, values: Value) -> None:
        """Notes what each thread says of the next tile in shared memory: its number, or a word of its entry."""
        for block, index, value in self._each(threads, word, values):
            self._put[name, block, index].append(value)

    def receive(self, threads: ThreadClass) -> None:
        """Notes that threads have waited until the next tile's number or entry was in shared memory."""
        self._told[np.unique(threads.threads // self.threads.lanes)] += 1

    def get(self, threads: ThreadClass, name: str, word: Value) -> Value:
        """Returns what threads read of a tile in shared memory: after a warp's n-th wait that of the n-th tile.

        The events say in which of its places the tile is. Raises Unsafe if none is waited for, or nothing is written.
        """
        warps, first, count = np.unique(threads.threads // self.threads.lanes, return_index=True, return_counts=True)
        blocks = self.threads.place[threads.threads[first]]
        words = np.broadcast_to(word, len(threads.threads))[first]
        written = [self._put[name, *key] for key in zip(blocks.tolist(), words.tolist())]
        turns = (self._told[warps] - 1).tolist()
        if any(not 0 <= turn < len(values) for turn, values in zip(turns, written)):
            raise Unsafe(f"{name} is read where no tile is waited for, or told")
        return collapse(np.repeat(np.array([values[turn] for turn, values in zip(turns, written)]), count))

    def page_shift(self, key: Value, names: Mapping[str, Value]) -> Value:
        """Returns what the block table of proofs with numbers says of a key, by the names of the kernel's numbers."""
        return some_page_shift(key, names["page_size"], names["page_rows"])

    def wait_for_list(self, threads: ThreadClass) -> None:
        """Notes that threads have waited until the kernel that lists the tiles has ended."""
        self._after[threads.threads] = True

    def tile_list(self, threads: ThreadClass) -> TileList:
        """Returns the list of tiles; raises Unsafe if threads read the list that have not waited for its end."""
        assert self.entries is not None
        if not self._after[threads.threads].all():
            raise Unsafe("the list of tiles is read while another kernel may still write it")
        return self.entries

    def leaders(self, threads: ThreadClass, *values: Value) -> tuple[ThreadClass, tuple[np.ndarray, ...]]:
        """Returns (the first lanes of the warps of a class, as a class, and each value for these lanes).

        Raises Unsafe unless the class has whole warps, whose lanes have the same values.
        """
        lanes = self.threads.lanes
        if not threads.whole_warps(lanes):
            raise Unsafe("a part of a warp hands over a tile, or draws its number")
        of_lanes = [np.broadcast_to(value, threads.threads.shape) for value in values]
        if any((value != np.repeat(value[::lanes], lanes)).any() for value in of_lanes):
            raise Unsafe("lanes of a warp hand over different tiles")
        leading = np.zeros(len(threads.threads), dtype=bool)
        leading[::lanes] = True
        return threads.part(leading), tuple(value[::lanes] for value in of_lanes)

    def _each(self, threads: ThreadClass, *values: Value) -> Iterator[tuple[int, ...]]:
        blocks = self.threads.place[threads.threads]
        return zip(blocks.tolist(), *(np.broadcast_to(value, blocks.shape).tolist() for value in values))
