"""A loop unrolled: the iterations of its prologue, the one that repeats, and those of its epilogue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tl_attention.program.operation import Iteration, Operation


class Step(NamedTuple):
    """An operation in a given iteration: `block` is a number."""

    op: Operation
    block: int


@dataclass(frozen=True)
class Phases:
    """What a role does: the iterations before the loop, the one that repeats from its t on, and those behind it."""

    prologue: tuple[Iteration, ...]
    steady: Iteration
    epilogue: tuple[Iteration, ...]

    @property
    def end(self) -> int:
        """The first iteration behind those that repeat, from the number of blocks."""
        return self.epilogue[0].t if self.epilogue else 0

    @property
    def least_blocks(self) -> int:
        """The blocks of the shortest loop that prologue and epilogue make together."""
        return max(1, self.steady.t - self.end)

    def iterations(self, blocks: int) -> Iterator[Iteration]:
        """Those of a loop over so many KV blocks, at least `least_blocks`, in order."""
        assert blocks >= self.least_blocks, f"{blocks} blocks, expected at least {self.least_blocks}"
        yield from self.prologue
        for t in range(self.steady.t, blocks + self.end):
            yield Iteration(t, self.steady.operations)
        for t, operations in self.epilogue:
            yield Iteration(blocks + t, operations)

    def steps(self, blocks: int) -> Iterator[Step]:
        """The operations of `iterations`."""
        for t, operations in self.iterations(blocks):
            for op in operations:
                yield Step(op, t - op.lag)


def unroll(operations: Sequence[Operation], blocks: int, products: Collection[str]) -> Iterator[Step]:
    """All iterations of the same operations, without those whose block does not exist.

    The wait for a product leaves in flight what was issued after it.
    """
    issued: list[tuple[str, int]] = []
    lags = [op.lag for op in operations]
    for t in range(min(lags), blocks + max(lags)):
        for op in operations:
            block = t - op.lag
            if not 0 <= block < blocks:
                continue
            product = (op.statement, block)
            if op.kind == "issue" and op.statement in products:
                issued.append(product)
            if op.kind == "wait" and op.statement in products:
                # A wait whose product was not issued waits for nothing: legality.py sees the missing value.
                later = len(issued) - issued.index(product) - 1 if product in issued else len(issued)
                op = op._replace(outstanding=later)
            yield Step(op, block)


def phases_of(operations: Sequence[Operation], blocks: int, products: Collection[str]) -> Phases:
    """The phases of a loop, found where the iterations of one over `blocks` blocks start and cease to repeat."""
    iterations: dict[int, list[Operation]] = {}
    for op, block in unroll(operations, blocks, products):
        iterations.setdefault(block + op.lag, []).append(op)
    listed = [Iteration(t, tuple(iterations[t])) for t in sorted(iterations)]
    repeated = Counter(iteration.operations for iteration in listed).most_common(1)[0][0]
    steady = [iteration for iteration in listed if iteration.operations == repeated]
    return Phases(
        prologue=tuple(iteration for iteration in listed if iteration.t < steady[0].t),
        steady=steady[0],
        epilogue=tuple(Iteration(t - blocks, ops) for t, ops in listed if t > steady[-1].t),
    )
