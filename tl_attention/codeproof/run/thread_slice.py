"""This module holds what some threads of a process did, and what the events are read with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tl_attention.codeproof.run.run import Observation
from tl_attention.codeproof.run.threads import PER_THREAD, Value
from tl_attention.codeproof.terms.spread import Spread, broadcast
from tl_attention.codeproof.terms.term import Term
from tl_attention.codeproof.tiles.tensors import Tensor
from tl_attention.codeproof.tiles.tiles import Product, Tile
from tl_attention.codeproof.verdict import Unsafe


@dataclass(frozen=True)
class Reading:
    """A Reading holds the tiles, products, tensors, dtype and boxes by which what threads did is read as events."""

    tiles: Mapping[str, Tile]
    products: Mapping[str, Product]
    tensors: Mapping[str, Tensor]
    dtype: str
    # How many columns a row of a TMA box has, by descriptor.
    boxes: Mapping[str, int]
    # Results are those of parts of the keys; of packed sequences only those of split ones.
    parts: bool = False
    split: bool = False
    # How many heads of Q have rows in a tile, and how many each for a warpgroup.
    heads: tuple[int, int] = (1, 0)
    # By each result of a kernel of gradients, the accumulators that are stored there.
    results: Mapping[str, str] = field(default_factory=dict)

    def is_of_parts(self, tensor: str) -> bool:
        """Says whether a tensor takes results of parts of the keys, as fp32, and not the results of all keys."""
        return self.parts and not (self.split and tensor.startswith("Merged"))


@dataclass(slots=True)
class ThreadSlice:
    """A ThreadSlice is what a line did for some threads of a process, the `count` threads `mine` of an Observation."""

    seen: Observation
    mine: np.ndarray
    count: int

    def value(self, name: str) -> Value:
        """Returns the value of this name for these threads, an array with one for each where they differ."""
        value = self.seen.values[name]
        return value[self.mine] if isinstance(value, PER_THREAD) and self.count < len(value) else value

    def same(self, name: str) -> int:
        """Returns the one value of this name that all of these threads have; raises Unsafe where they differ."""
        value = self.value(name)
        if not isinstance(value, PER_THREAD):
            return value
        arrays = value.parts.values() if isinstance(value, Spread) else (value,)
        if any((of != of[0]).any() for of in arrays):
            raise Unsafe(f"line {self.seen.line + 1}: {name} differs between threads of one role")
        return value[0] if isinstance(value, Spread) else value[0].item()

    @property
    def line(self) -> int:
        """Returns the line's number, from 1."""
        return self.seen.line + 1

    def each(self, name: str) -> Any:
        """Returns the value of this name for each of these threads, always as an array or, of Terms, a Spread."""
        value = self.value(name)
        if isinstance(value, Term):
            return broadcast(value, self.count)
        return value if isinstance(value, PER_THREAD) else np.full(self.count, value)

    def check_one_thread(self) -> None:
        """Raises Unsafe unless exactly one thread of the process runs the line."""
        if self.count != 1:
            raise Unsafe(f"line {self.line}: {self.count} threads of one role run it, expected one")
