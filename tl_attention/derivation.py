"""Schedule -> Program: waits, acquires and releases derived from what the statements read and write."""

from __future__ import annotations

from typing import Iterator

from tl_attention.errors import ScheduleRefused
from tl_attention.options import Releases, Waits
from tl_attention.program import Model, Op, Program
from tl_attention.schedule import Schedule
from tl_attention.statements import FUSED, LOADS, MASK_BEFORE, PRODUCTS, READER, RING, Statement, Table


def derive(schedule: Schedule, model: Model | None = None) -> Program:
    """The Program of a schedule that orders the loop itself. It need not be legal: see `legality.check`.

    `model` is the lowering's own by default. Raises ValueError for a lowering without a Program.
    """
    if not schedule.has_program:
        raise ValueError(f"lowering {schedule.lowering} has no Program: the compiler decides the order")
    specialized = schedule.lowering == "warp_specialized"
    model = model or own_model(schedule)
    table = schedule.table
    emission = [(statement, stage) for group, stage in schedule.emission for statement in group]
    if specialized:
        emission = _without_fused(emission)
    producers = schedule.producers
    if model == "synchronous" and producers:
        ahead = schedule.num_stages - 1
        stage_of = dict(emission)
        emission = [(load, stage_of[READER[load]] - ahead) for load in producers] + emission
        producers = ()
    buffers = {load: schedule.buffers(load) if load in producers else _placed_buffers(load, emission) for load in LOADS}
    iteration = _Iteration(emission, table, model, schedule.wait_before, schedule.release_before)
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

    def __init__(self, emission: list[tuple[str, int]], table: Table, model: Model, waits: Waits, releases: Releases):
        self.emission = emission
        self.statements = table.by_name
        self.model = model
        self.place = {name: index for index, (name, _) in enumerate(emission)}
        self.stage = dict(emission)
        # (place, lag) before which each product must be done.
        self.done = {name: self._done_before(name) for name in PRODUCTS}
        if model == "asynchronous":
            self.done = {name: self._earlier(name, getattr(waits, name)) for name in PRODUCTS}
        self.released = {load: self._later(load, getattr(releases, load)) for load in LOADS}

    def ops(self) -> Iterator[Op]:
        for place, (name, lag) in enumerate(self.emission):
            statement = self.statements[name]
            yield from self._waits_before(place)
            for load, at in self.released.items():
                if at and at[0] == place:
                    yield Op("release", load, at[1])
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
            if buffer in RING and self.released[RING[buffer]] is None:
                yield Op("release", RING[buffer], lag)

    def _earlier(self, product: str, before: str | None) -> tuple[int, int]:
        """Where the product is waited for: at `before`, the last time that it comes up by the derived place."""
        place, lag = self.done[product]
        if before is None:
            return place, lag
        wanted = self.place[before]
        passed = lag - self.stage[product] - (wanted > place)
        if (passed, wanted) <= (0, self.place[product]):
            raise ScheduleRefused(
                f"wait_before: {before} comes before {product} is issued again; expected a statement between {product} "
                f"and {self.emission[place][0]}, which needs its result"
            )
        return wanted, self.stage[product] + passed

    def _later(self, load: str, before: str | None) -> tuple[int, int] | None:
        """Where the load's buffer is released, or None for right after its reader is waited for."""
        if before is None:
            return None
        place, lag = self.done[READER[load]]
        wanted = self.place[before]
        return wanted, lag + (wanted < place)

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
