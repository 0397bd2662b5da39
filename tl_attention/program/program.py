"""A Program is the loop as a short list of operations. `derivation.py` makes it from a schedule.

It is derived as one iteration of the steady state. Prologue and epilogue are the same iteration without the operations
whose KV block does not exist, so there is one list to prove and to run. The lowering's passes then add what its kernel
does besides, and leave out what the kernel need not do. The result is the whole Program, its phases: they are emitted,
explained and compared with the generated code.

Two models of the machine:

`synchronous`, what `lowering: pipelined` gets from TileLang: every product is issued and waited for at once, and a load
is issued by the threads that compute, `num_stages - 1` blocks ahead of its reader.

`asynchronous`, what a Hopper SM can do: a producer issues the loads as far ahead as the rings allow, and a product
stays in flight until an operation needs its result or overwrites its operands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from tl_attention.program.events import Repeat, written_out
from tl_attention.schedule.dialect import Model
from tl_attention.schedule.loop.table import Table

CONSUMER, PRODUCER = "consumer", "producer"


class Operation(NamedTuple):
    """An Operation is one act of each iteration for one statement, such as to run, issue, await or release it.

    In iteration t it concerns KV block t - lag.
    """

    # run         a vector statement
    # issue       a load or a product
    # wait        until that load has arrived, or until at most `outstanding` products, or loads that are waited for in
    #             groups, are in flight that were issued after that one
    # acquire     a free buffer for that load
    # release     the buffer that the load filled
    # turn, pass  wait for the turn to issue products; give it to the other warpgroup
    # sync        all threads: what each has waited for is there for all, and what it has read may be written over
    # keep        Q in registers, for all blocks
    # hold        exponentials in `registers` (first, end) come before what follows; hold_last: only the last of them
    # fence       what threads have read of that load's buffer may be loaded over once they have released it
    # share       what all warps wrote of that statement's result is there for products to read from shared memory
    # resume      the exponentials that follow come after what stands before
    kind: str
    statement: str
    lag: int
    outstanding: int = 0
    registers: tuple[int, int] = (0, 0)


class Iteration(NamedTuple):
    """An Iteration has the operations of iteration t; in an epilogue t counts from the number of blocks."""

    t: int
    operations: tuple[Operation, ...]


class Step(NamedTuple):
    """A Step is an operation together with the number of the KV block that it concerns."""

    op: Operation
    block: int


@dataclass(frozen=True)
class Phases:
    """Phases are the iterations of a role's loop, the prologue, the iteration that repeats, and the epilogue."""

    prologue: tuple[Iteration, ...]
    steady: Iteration  # repeats from its t on
    epilogue: tuple[Iteration, ...]

    @property
    def end(self) -> int:
        """Returns the first iteration of the epilogue, counted from the number of blocks; 0 without an epilogue."""
        return self.epilogue[0].t if self.epilogue else 0

    @property
    def least_blocks(self) -> int:
        """Returns the number of KV blocks, at least 1, of a loop that is only prologue and epilogue."""
        return max(1, self.steady.t - self.end)

    def events(self, blocks: Any, of: Callable[[Any, Operation], Iterable[Any]]) -> Iterator[Any]:
        """Yields the expected events of a loop over `blocks` KV blocks, at least `least_blocks`, and a Repeat.

        `of` gives what one operation does for a block. The numbers may be integers, or unknowns.
        """

        def iteration(t: Any, operations: Sequence[Operation]) -> Iterator[Any]:
            for op in operations:
                yield from of(t - op.lag, op)

        for t, operations in self.prologue:
            yield from iteration(t, operations)
        first, steady = self.steady
        yield Repeat(first, blocks + self.end - first, lambda t: iteration(t, steady))
        for t, operations in self.epilogue:
            yield from iteration(blocks + t, operations)

    def steps(self, blocks: int) -> Iterator[Step]:
        """Yields Steps, operations of a loop over `blocks` KV blocks in order, each with the number of its block.

        The blocks are at least `least_blocks`.
        """
        assert blocks >= self.least_blocks, f"{blocks} blocks, expected at least {self.least_blocks}"
        steps: Iterator[Any] = written_out(self.events(blocks, lambda block, op: [Step(op, block)]))
        yield from steps


def unroll(operations: Sequence[Operation], blocks: int, products: Collection[str]) -> Iterator[Step]:
    """Repeats an iteration's operations over `blocks` KV blocks, and yields, as Steps, those whose block exists.

    The wait for a product leaves in flight the products that were issued after it.
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
    """Returns, as Phases, prologue, steady iteration and epilogue of a loop of `operations` over `blocks` KV blocks.

    They are found where the iterations start and cease to repeat.
    """
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


@dataclass(frozen=True)
class Program:
    """A Program has the operations of one iteration for each role, and the number of buffers of each load's ring."""

    table: Table
    model: Model
    consumer: tuple[Operation, ...]
    producer: tuple[Operation, ...]
    buffers: dict[str, int]
    # They turn the phases of the consumer's iterations into the phases that run, one pass after another.
    passes: tuple[Callable[[Phases], Phases], ...] = field(default=(), compare=False, repr=False)
    # Whether the kernel runs the operations one after another as they are; otherwise TileLang places them.
    emitted: bool = field(default=False, compare=False, repr=False)

    def roles(self, blocks: int) -> dict[str, tuple[Step, ...]]:
        """Returns every role's steps for a loop over `blocks` KV blocks, in order, before the lowering's passes."""
        listed = {CONSUMER: self.consumer, PRODUCER: self.producer}
        return {role: tuple(unroll(ops, blocks, self.table.products)) for role, ops in listed.items() if ops}

    @cached_property
    def phases(self) -> Phases:
        """Returns the iterations that the threads that compute run, as phases, after the lowering's passes."""
        phases = phases_of(self.consumer, 4 * self.span, self.table.products)
        for change in self.passes:
            phases = change(phases)
        return phases

    @property
    def counts_loads(self) -> bool:
        """Returns True if a wait for a load leaves later loads in flight, as it does for products.

        It does where threads issue loads in groups.
        """
        return self.emitted and self.model == "synchronous"

    @property
    def loads(self) -> tuple[str, ...]:
        """Returns the names of the loads that the producer issues, in its order; none without a producer."""
        return tuple(op.statement for op in self.producer if op.kind == "issue")

    @property
    def rings(self) -> str:
        """Returns every ring with its number of buffers as text, such as `K_shared 2, V_shared 2`."""
        return ", ".join(f"{self.table.ring_of(load)} {count}" for load, count in self.buffers.items())

    @property
    def iterations_around(self) -> tuple[int, int]:
        """Returns (first, last + 1) of the iterations that have an operation in a loop over one KV block.

        They say how far prologue and epilogue reach.
        """
        lags = [op.lag for op in self.consumer]
        return min(lags), max(lags) + 1

    @property
    def least_blocks(self) -> int:
        """Returns how many KV blocks the kernel's loop runs at least; short loops get blocks that are masked whole.

        TileLang 0.1.15, where it places the operations, guards each part of the prologue by itself, and with it the
        wait for a load that an earlier part issued; a loop this long has no such guard. Prologue, steady state and
        epilogue that are emitted one after another are this long together.
        """
        if self.model == "synchronous" and not self.emitted:
            first, last = self.iterations_around
            return max(1, last - first - 1)
        return self.phases.least_blocks

    @property
    def span(self) -> int:
        """Returns how many KV blocks bring the loop into every state, by its pipeline's depth and its deepest ring."""
        first, last = self.iterations_around
        return last - first + max(self.buffers.values())


def offset(distance: int, origin: str = "t") -> str:
    """Returns a distance in blocks as text relative to `origin`, as `t` for 0 and `t-1` for -1."""
    return origin if distance == 0 else f"{origin}{distance:+d}"
