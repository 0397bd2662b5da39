"""Schedule -> Program: the loop as a short list of operations, with waits, acquires and releases derived.

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
from dataclasses import dataclass
from typing import Iterator, Literal

from tl_attention.schedule import Schedule
from tl_attention.statements import (
    FUSED, LOADS, MASK_BEFORE, PRODUCTS, READER, RING, SOURCE, WARP_SPECIALIZED, Statement, Table,
)

Model = Literal["synchronous", "asynchronous"]
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


def derive(schedule: Schedule, model: Model | None = None) -> Program:
    """The Program of a schedule that orders the loop itself. It need not be legal: see `legality.check`.

    `model` is the lowering's own by default. Raises ValueError for a lowering without a Program.
    """
    if not schedule.has_program:
        raise ValueError(f"lowering {schedule.lowering} has no Program: the compiler decides the order")
    specialized = schedule.lowering == "warp_specialized"
    model = model or own_model(schedule)
    table = WARP_SPECIALIZED if specialized else SOURCE
    emission = [(statement, stage) for group, stage in schedule.emission for statement in group]
    if specialized:
        emission = _without_fused(emission)
    producers = schedule.producers
    if model == "synchronous" and producers:
        ahead = schedule.num_stages - 1
        stage_of = dict(emission)
        emission = [(load, stage_of[READER[load]] - ahead) for load in producers] + emission
        producers = ()
    buffers = {load: schedule.num_stages if load in producers else _placed_buffers(load, emission) for load in LOADS}
    iteration = _Iteration(emission, table, model)
    producer = tuple(Op(kind, load, 0) for load in producers for kind in ("acquire", "issue"))
    return Program(table, model, tuple(iteration.ops()), producer, buffers)


def own_model(schedule: Schedule) -> Model:
    """How the schedule's lowering drives the machine."""
    return "asynchronous" if schedule.lowering == "warp_specialized" else "synchronous"


def _without_fused(emission: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The order of the warp-specialised kernel's statements: fused ones gone, the mask where acc_s is first read."""
    kept = []
    for name, stage in emission:
        if name == MASK_BEFORE:
            kept.append(("mask", stage))
        if name not in FUSED and name != "mask":
            kept.append((name, stage))
    return kept


def _placed_buffers(load: str, emission: list[tuple[str, int]]) -> int:
    """Buffers that a load needs that is issued at a place in the order: the blocks between it and its reader."""
    names = [name for name, _ in emission]
    stage = dict(emission)
    reader = READER[load]
    before = names.index(load) < names.index(reader)
    return max(1, stage[reader] - stage[load] + before)


class _Iteration:
    """Derives the operations of one iteration from the emission order."""

    def __init__(self, emission: list[tuple[str, int]], table: Table, model: Model):
        self.emission = emission
        self.statements = table.by_name
        self.model = model
        self.place = {name: index for index, (name, _) in enumerate(emission)}
        self.stage = dict(emission)
        # (place, lag) before which each product must be done.
        self.done = {name: self._done_before(name) for name in PRODUCTS}

    def ops(self) -> Iterator[Op]:
        for place, (name, lag) in enumerate(self.emission):
            statement = self.statements[name]
            yield from self._waits_before(place)
            for buffer in statement.reads:
                if buffer in RING:
                    yield Op("wait", RING[buffer], lag)
            if statement.kind == "load":
                yield Op("acquire", name, lag)
            yield Op("run" if statement.kind == "vector" else "issue", name, lag)
            if statement.kind == "product" and self.model == "synchronous":
                yield from self._completion(name, lag)

    def _waits_before(self, place: int) -> Iterator[Op]:
        due = [(name, lag) for name, (at, lag) in self.done.items() if at == place]
        # In issue order: the oldest block first, then by place.
        for name, lag in sorted(due, key=lambda entry: (-entry[1] + self.stage[entry[0]], self.place[entry[0]])):
            yield from self._completion(name, lag)

    def _completion(self, product: str, lag: int) -> Iterator[Op]:
        """Wait for a product, then release the ring buffers that it was the last to read."""
        yield Op("wait", product, lag)
        for buffer in self.statements[product].reads:
            if buffer in RING:
                yield Op("release", RING[buffer], lag)

    def _done_before(self, name: str) -> tuple[int, int] | None:
        """The place, and the lag there, before which product `name` must be done: as late as is legal.

        Products complete in issue order, so a product is also done where a later one has to be.
        """
        if self.model == "synchronous":
            return (-1, 0)
        own = self._first_conflict(name)
        others = [
            self._first_conflict(other, issued_after=name) for other in PRODUCTS if other != name
        ]
        place, passed = min([own, *others], key=lambda where: (where[1], where[0]))
        return place, self.stage[name] + passed

    def _first_conflict(self, name: str, issued_after: str | None = None) -> tuple[int, int]:
        """(place, iterations passed since `name`, or `issued_after`, was issued) of the first conflicting statement.

        With `issued_after`, the first instance of `name` that is issued after that product counts.
        """
        start = self.place[name]
        passed_before = 0 if issued_after is None or start > self.place[issued_after] else 1
        length = len(self.emission)
        for step in range(start + 1, start + 1 + 2 * length):
            place, passed = step % length, step // length
            if self._conflict(self.statements[name], self.statements[self.emission[place][0]]):
                return place, passed + passed_before
        raise AssertionError(f"nothing ever needs {name}")

    def _conflict(self, product: Statement, later: Statement) -> bool:
        """Whether `product` must be done before `later` starts."""
        if later.kind == "load":
            # A load that is issued in the order overwrites a ring buffer that the product reads.
            return later.writes[0] in product.reads
        touched = set(later.reads) | set(later.writes)
        # wgmmas that accumulate into the same registers follow each other without a wait.
        hazards = touched & set(product.writes) if later.kind != "product" else set()
        return bool(hazards | (set(later.writes) & set(product.reads) - set(product.writes)))


# --- views -----------------------------------------------------------------------------------------------------


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


