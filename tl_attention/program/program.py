"""The Program: the loop as a short list of operations. `derivation.py` makes it from a schedule.

It is derived as one iteration of the steady state. Prologue and epilogue are the same iteration with the operations
left out whose KV block does not exist, so there is one list to prove and to run. The lowering's passes then add what
its kernel does besides, and leave out what it need not do: that is the whole Program, its phases, which is emitted,
explained and compared with the generated code.

Two models of the machine:

`synchronous`, what `lowering: pipelined` gets from TileLang: every product is issued and waited for at once, and a
load is issued by the threads that compute, `num_stages - 1` blocks ahead of its reader.

`asynchronous`, what a Hopper SM can do: a producer issues the loads as far ahead as the rings allow, and a product
stays in flight until an operation needs its result or overwrites its operands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from tl_attention.loop.table import Table
from tl_attention.program.operation import Operation
from tl_attention.program.phases import Phases, Step, phases_of, unroll
from tl_attention.schedule.dialect import Model

CONSUMER, PRODUCER = "consumer", "producer"


@dataclass(frozen=True)
class Program:
    """The operations of one iteration for each role, and the number of buffers of each load's ring.

    `passes` make the phases that run of those of the consumer's iterations, in order. `emitted` says that the kernel runs
    them one after another as they are; else TileLang places them.
    """

    table: Table
    model: Model
    consumer: tuple[Operation, ...]
    producer: tuple[Operation, ...]
    buffers: dict[str, int]
    passes: tuple[Callable[[Phases], Phases], ...] = field(default=(), compare=False, repr=False)
    emitted: bool = field(default=False, compare=False, repr=False)

    def roles(self, blocks: int) -> dict[str, tuple[Step, ...]]:
        """Every role's steps for a loop over `blocks` KV blocks, in order, as derived: before any pass."""
        listed = {CONSUMER: self.consumer, PRODUCER: self.producer}
        return {role: tuple(unroll(ops, blocks, self.table.products)) for role, ops in listed.items() if ops}

    @cached_property
    def phases(self) -> Phases:
        """What the threads that compute do: the whole Program, after every pass."""
        phases = phases_of(self.consumer, 4 * self.span, self.table.products)
        for change in self.passes:
            phases = change(phases)
        return phases

    @property
    def counts_loads(self) -> bool:
        """Whether a wait for a load leaves later ones in flight, as one for a product does: threads issue them in groups."""
        return self.emitted and self.model == "synchronous"

    @property
    def loads(self) -> tuple[str, ...]:
        """The producer's loads, in its order."""
        return tuple(op.statement for op in self.producer if op.kind == "issue")

    @property
    def rings(self) -> str:
        """Every ring with its number of buffers, in words: K_shared 2, V_shared 2."""
        return ", ".join(f"{self.table.ring_of(load)} {count}" for load, count in self.buffers.items())

    @property
    def iterations_around(self) -> tuple[int, int]:
        """(first, last + 1) of the iterations of a one-block loop: how far prologue and epilogue reach."""
        lags = [op.lag for op in self.consumer]
        return min(lags), max(lags) + 1

    @property
    def least_blocks(self) -> int:
        """Blocks that the loop runs at least: short loops get blocks that are masked whole.

        Where TileLang places them it guards, in 0.1.15, each part of the prologue by itself, and with it the wait for a
        load that an earlier part issued; a loop this long has no such guard. Prologue, steady state and epilogue that
        are emitted one after another are this long together.
        """
        if self.model == "synchronous" and not self.emitted:
            first, last = self.iterations_around
            return max(1, last - first - 1)
        return self.phases.least_blocks

    @property
    def span(self) -> int:
        """Blocks after which the loop shows every state it can be in: pipeline depth and rings."""
        first, last = self.iterations_around
        return last - first + max(self.buffers.values())


def offset(distance: int, origin: str = "t") -> str:
    """A block relative to iteration t, or to another one: `t`, `t-1`."""
    return origin if distance == 0 else f"{origin}{distance:+d}"
