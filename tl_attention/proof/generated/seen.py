"""What a run of generated code keeps of what threads did, and how long it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tl_attention.proof.generated.nodes import NO_REGISTERS, Registers
from tl_attention.proof.generated.threads import Value


@dataclass(slots=True)
class Seen:
    """What a line did, for the threads of a class, by number: each value is one for all of them or has one for each."""

    line: int
    kind: str
    name: str
    threads: np.ndarray
    values: dict[str, Value]
    turn: int
    registers: Registers = NO_REGISTERS


@dataclass(frozen=True)
class Lengths:
    """How much of long loops runs: `tiles` of a block, and iterations.

    Of a loop of more than `head` + 2 * `period` iterations, these so many first and at least `period` last ones run,
    and between them a multiple of `period` is left out. `ends` runs the first and the last iteration alone, for all
    threads together however long their loops are.
    """

    tiles: int
    head: int = 1 << 62
    period: int = 1
    ends: bool = False

    def iterations(self, count: int) -> Iterator[tuple[int, int]]:
        """(iteration, how many were left out before it)."""
        rest = count - self.head
        if rest <= 2 * self.period:
            yield from ((t, 0) for t in range(count))
            return
        left_out = (rest - self.period) // self.period * self.period
        yield from ((t, 0) for t in range(self.head))
        yield from ((t, left_out if t == self.head + left_out else 0) for t in range(self.head + left_out, count))
