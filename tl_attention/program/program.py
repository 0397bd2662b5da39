"""The Program: the loop as a short list of operations. `derivation.py` makes it from a schedule.

A Program holds one iteration of the steady state. Prologue and epilogue are the same iteration with the operations
left out whose KV block does not exist, so there is one list to prove, to run and to emit.

Two models of the machine:

`synchronous`, what `lowering: pipelined` gets from TileLang: every product is issued and waited for at once, and a
load is issued by the threads that compute, `num_stages - 1` blocks ahead of its reader.

`asynchronous`, what a Hopper SM can do: a producer issues the loads as far ahead as the rings allow, and a product
stays in flight until an operation needs its result or overwrites its operands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tl_attention.loop.statements import PRODUCTS, Table
from tl_attention.schedule.dialect import Model

Kind = Literal["run", "issue", "wait", "acquire", "release"]
CONSUMER, PRODUCER = "consumer", "producer"


@dataclass(frozen=True)
class Op:
    """One operation of an iteration: in iteration t it concerns KV block t - lag.

    `run` a vector statement; `issue` a load or a product; `wait` until that load or product is done; `acquire` a
    free buffer for that load; `release` that load's buffer.
    """

    kind: Kind
    statement: str
    lag: int


@dataclass(frozen=True)
class Step:
    """An Op in a given iteration: `block` is a number; for a product's wait, `outstanding` may stay in flight."""

    op: Op
    block: int
    outstanding: int = 0


@dataclass(frozen=True)
class Program:
    """The operations of one iteration for each role, and the number of buffers of each load's ring."""

    table: Table
    model: Model
    consumer: tuple[Op, ...]
    producer: tuple[Op, ...]
    buffers: dict[str, int]

    def roles(self, blocks: int) -> dict[str, tuple[Step, ...]]:
        """Every role's steps for a loop over `blocks` KV blocks, in order."""
        roles = {CONSUMER: tuple(_unroll(self.consumer, blocks))}
        if self.producer:
            roles[PRODUCER] = tuple(_unroll(self.producer, blocks))
        return roles

    @property
    def iterations_around(self) -> tuple[int, int]:
        """(first, last + 1) of the iterations of a one-block loop: how far prologue and epilogue reach."""
        lags = [op.lag for op in self.consumer]
        return min(lags), max(lags) + 1

    @property
    def least_blocks(self) -> int:
        """Blocks that the loop runs at least: short loops get blocks that are masked whole.

        In the synchronous model TileLang 0.1.15 guards each part of the prologue by itself, and with it the wait for a
        load that an earlier part issued; a loop this long has no such guard. In the asynchronous model prologue,
        steady state and epilogue are emitted one after another, and together are this long.
        """
        if self.model == "synchronous":
            first, last = self.iterations_around
            return max(1, last - first - 1)
        view = phases(self)
        start, _ = view.steady
        return max(1, start - (view.epilogue[0][0] - view.blocks if view.epilogue else 0))

    @property
    def span(self) -> int:
        """Blocks after which the loop shows every state it can be in: pipeline depth and rings."""
        first, last = self.iterations_around
        return last - first + max(self.buffers.values())


def _unroll(ops: tuple[Op, ...], blocks: int) -> Iterator[Step]:
    """All iterations of `ops`, without the operations whose block does not exist."""
    issued: list[tuple[str, int]] = []
    lags = [op.lag for op in ops]
    for t in range(min(lags), blocks + max(lags)):
        for op in ops:
            block = t - op.lag
            if not 0 <= block < blocks:
                continue
            product = op.statement in PRODUCTS
            if op.kind == "issue" and product:
                issued.append((op.statement, block))
            if op.kind == "wait" and product:
                target = (op.statement, block)
                # A wait whose product was not issued waits for nothing: legality.py sees the missing value.
                after = len(issued) - issued.index(target) - 1 if target in issued else len(issued)
                yield Step(op, block, after)
            else:
                yield Step(op, block)


def offset(distance: int, origin: str = "t") -> str:
    """A block relative to iteration t, or to another one: `t`, `t-1`."""
    return origin if distance == 0 else f"{origin}{distance:+d}"


@dataclass(frozen=True)
class Phases:
    """A role's steps split where they repeat: `prologue` and `epilogue` iterations around the `steady` one.

    `blocks` is the loop length that was unrolled; epilogue blocks count from its end.
    """

    prologue: tuple[tuple[int, tuple[Step, ...]], ...]
    steady: tuple[int, tuple[Step, ...]]
    epilogue: tuple[tuple[int, tuple[Step, ...]], ...]
    blocks: int


def phases(program: Program, role: str = CONSUMER) -> Phases:
    """Prologue, steady state and epilogue of a role, found where its iterations start and cease to repeat."""
    ops = program.consumer if role == CONSUMER else program.producer
    blocks = 4 * program.span
    iterations: dict[int, list[Step]] = {}
    for step in _unroll(ops, blocks):
        iterations.setdefault(step.block + step.op.lag, []).append(step)
    shapes = {t: tuple((s.op, s.outstanding) for s in steps) for t, steps in iterations.items()}
    steady_shape = Counter(shapes.values()).most_common(1)[0][0]
    steady = [t for t in sorted(shapes) if shapes[t] == steady_shape]
    first, last = steady[0], steady[-1]
    listed = [(t, tuple(iterations[t])) for t in sorted(iterations)]
    return Phases(
        prologue=tuple(entry for entry in listed if entry[0] < first),
        steady=(first, tuple(iterations[first])),
        epilogue=tuple(entry for entry in listed if entry[0] > last),
        blocks=blocks,
    )
