"""This file changes the inputs of a test between calls. It needs nothing but torch, as it stands beside a submission.

A changed input keeps its address and its version counter. The worker draws the changes, and evaluate.py makes them
again to know what each timed output should be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

# One of so many parts of each head's keys changes before a timed call, which changes every row of the output.
PARTS = 16
# So many rows of each head are read of a timed output. Every second of their queries is new, the first one included.
ROWS = 4


class Change(NamedTuple):
    """A change holds four offsets along seq_len: where keys and queries change, and where their new values are."""

    key: int  # where new keys go
    key_from: int  # where they come from, in the second inputs
    row: int  # where new queries go
    row_from: int  # where they come from


class Inputs:
    """The inputs of a test's calls, which begin as the first inputs and take over values of the second ones."""

    def __init__(self, first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> None:
        self.data = tuple(first)
        self.second = tuple(second)
        # These have the same memory, and version counters of their own.
        self._aliases = tuple(tensor.data for tensor in first)
        seq_len = first[0].shape[2]
        self.keys = max(1, seq_len // PARTS)
        self.rows = min(ROWS, seq_len)
        self.step = seq_len // self.rows

    def draw(self, randrange: Callable[[int], int]) -> Change:
        """Draws a change. `randrange(n)` returns a number of 0 to n - 1."""
        seq_len = self.data[0].shape[2]
        keys, rows = seq_len - self.keys + 1, seq_len - (self.rows - 1) * self.step
        return Change(randrange(keys), randrange(keys), randrange(rows), randrange(rows))

    def rows_from(self, row: int, every: int = 1) -> tuple[slice, ...]:
        """Returns the index of the rows that are read where `row` is the first, or of every second one of them."""
        return (slice(None), slice(None), slice(row, row + (self.rows - 1) * self.step + 1, self.step * every))

    def change_keys(self, change: Change) -> None:
        """Changes one part of each head's K and V."""
        for tensor, values in zip(self._aliases[1:], self.second[1:]):
            part = values[:, :, change.key_from : change.key_from + self.keys]
            tensor[:, :, change.key : change.key + self.keys].copy_(part)

    def change_queries(self, change: Change) -> None:
        """Changes every second query whose row is read."""
        values = self.second[0][self.rows_from(change.row_from, every=2)]
        self._aliases[0][self.rows_from(change.row, every=2)].copy_(values)

    def change_all(self) -> None:
        """Makes the inputs equal to the second ones."""
        for tensor, values in zip(self._aliases, self.second):
            tensor.copy_(values)
