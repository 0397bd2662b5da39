"""This module holds what some threads of a process did, and what the events are read with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tl_attention.proof.code.run import Seen
from tl_attention.proof.code.tensors import Tensor
from tl_attention.proof.code.threads import Value
from tl_attention.proof.code.tiles import Product, Tile
from tl_attention.proof.code.verdict import Unsafe


@dataclass(frozen=True)
class Reading:
    """A Reading holds what every process's events are read with."""

    tiles: Mapping[str, Tile]
    products: Mapping[str, Product]
    tensors: Mapping[str, Tensor]
    dtype: str
    # How many columns a row of a TMA box has, by descriptor.
    boxes: Mapping[str, int]


@dataclass(slots=True)
class ThreadSlice:
    """A ThreadSlice is what some threads of a process did: `count` threads of a Seen, those in `mine`."""

    seen: Seen
    mine: np.ndarray
    count: int

    def of(self, name: str) -> Value:
        """Returns a value; the value is an array with an entry for each of the threads where they differ."""
        value = self.seen.values[name]
        return value[self.mine] if isinstance(value, np.ndarray) and self.count < len(value) else value

    def one(self, name: str) -> int:
        """Returns a value that must be the same for all of the threads.

        Raises Unsafe where it differs.
        """
        value = self.of(name)
        if not isinstance(value, np.ndarray):
            return value
        if (value != value[0]).any():
            raise Unsafe(f"line {self.seen.line + 1}: {name} differs between threads of one role")
        return value[0].item()

    @property
    def line(self) -> int:
        """Returns the line's number, from 1."""
        return self.seen.line + 1

    def all_of(self, name: str) -> np.ndarray:
        """Returns the value of each of the threads."""
        value = self.of(name)
        return value if isinstance(value, np.ndarray) else np.full(self.count, value)

    def by_one(self) -> None:
        """Raises Unsafe unless one thread runs the line."""
        if self.count != 1:
            raise Unsafe(f"line {self.line}: {self.count} threads of one role run it, expected one")
