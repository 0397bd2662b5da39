"""A schedule's Program is derived here: waits, acquires and releases follow from what statements read and write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Literal, NamedTuple

from tl_attention.errors import ScheduleRefused
from tl_attention.program.program import Operation, Program, offset
from tl_attention.schedule.dialect import Model
from tl_attention.schedule.loop.table import Statement, Table
from tl_attention.schedule.options import Releases, Waits
from tl_attention.schedule.schedule import Schedule

DependenceKind = Literal["flow", "anti", "output"]
# What may be at fault where a statement stands at the wrong place, the likelier first.
PLACE_KEYS = ("order",), ("group",), ("stage",), ("split",)


class Dependence(NamedTuple):
    """A Dependence is an order that two statements must keep, because both touch a buffer and one writes it.

    `later` of KV block k + `distance` may not start before `earlier` of block k is done with `buffer`.
    """

    earlier: str
    later: str
    distance: int
    # flow: one writes what the other reads; anti: one reads what the other overwrites; output: both write the buffer.
    kind: DependenceKind
    buffer: str


def dependences(table: Table, buffers: Mapping[str, int]) -> tuple[Dependence, ...]:
    """Returns every dependence through a buffer between a loop's statements, within a KV block and to later ones.

    `buffers` has how many buffers each load's ring has. Two statements depend on each other where they touch the same
    memory and one of them writes it, also where a third one writes it in between: what is implied by other dependences
    is listed too. A buffer has one version: its next use may come with the same block or with the next one. A ring's
    slot is used again as many blocks later as the ring has slots. The values are not looked at: an order that breaks a
    dependence may still be right, as where a statement writes what was there before.
    """

    def distance(a: Statement, b: Statement, kind: DependenceKind, buffer: str) -> int:
        if buffer in table.rings:
            return 0 if kind == "flow" else buffers[table.rings[buffer]]
        return int(table.number[a.name] >= table.number[b.name])

    return tuple(
        Dependence(a.name, b.name, distance(a, b, kind, buffer), kind, buffer)
        for a, b in product(table.statements, repeat=2)
        for buffer, kind in _shared(a, b)
    )


def _shared(a: Statement, b: Statement) -> Iterator[tuple[str, DependenceKind]]:
    """Yields the buffers for which `b` depends on `a` when `b` comes later, each with the kind of dependence."""
    for buffer in dict.fromkeys((*a.reads, *a.writes)):
        if buffer in a.writes and buffer in b.reads:
            yield buffer, "flow"
        if buffer in a.reads and buffer in b.writes:
            yield buffer, "anti"
        if buffer in a.writes and buffer in b.writes:
            yield buffer, "output"


def derive(schedule: Schedule, model: Model | None = None) -> Program:
    """Derives a schedule's Program, its statements in order with the waits, acquires and releases that they need.

    The schedule orders the loop itself. The Program need not be legal: see `legality.check`.

    `model` is the lowering's own by default. Raises ValueError for a lowering without a Program, and ScheduleRefused
    for a wait or a release at a place where it cannot be.
    """
    if not schedule.has_program:
        raise ValueError(f"lowering {schedule.lowering} has no Program: the compiler decides the order")
    model = model or schedule.dialect.model or "synchronous"
    table = schedule.table
    emission = _as_the_kernel_has_it(
        [(statement, stage) for group, stage in schedule.emission for statement in group], table
    )
    producers = schedule.producers
    if model == "synchronous" and producers:
        stage_of = dict(emission)
        first = {load: min(stage_of[reader] for reader in table.readers[load]) for load in producers}
        emission = [(load, first[load] - (schedule.buffers(load) - 1)) for load in producers] + emission
        producers = ()
    buffers = {
        load: schedule.buffers(load) if load in producers else _placed_buffers(load, emission, table)
        for load in table.loads
    }
    iteration = _Iteration(emission, table, model, buffers, schedule.wait_before, schedule.release_before)
    producer = tuple(Operation(kind, load, 0) for load in producers for kind in ("acquire", "issue"))
    # What a lowering adds holds for its own model only.
    is_native = model == schedule.dialect.model
    passes = schedule.dialect.passes if is_native else ()
    bound = tuple(partial(change, schedule=schedule, buffers=buffers) for change in passes)
    emitted = is_native and schedule.dialect.emitted
    return Program(table, model, tuple(iteration.operations()), producer, buffers, bound, emitted)


def _as_the_kernel_has_it(emission: list[tuple[str, int]], table: Table) -> list[tuple[str, int]]:
    """Returns the (statement, stage) pairs without fused statements, and with moved ones where the table puts them."""
    kept = []
    for name, stage in emission:
        kept += [(moved, stage) for moved, before in table.moved.items() if before == name]
        if name not in table.fused and name not in table.moved:
            kept.append((name, stage))
    return kept


def _placed_buffers(load: str, emission: list[tuple[str, int]], table: Table) -> int:
    """Returns how many buffers a load needs for the KV blocks between its own place in the order and its readers."""
    names = [name for name, _ in emission]
    stage = dict(emission)
    between = [
        stage[reader] - stage[load] + (names.index(load) < names.index(reader)) for reader in table.readers[load]
    ]
    return max(1, *between)


class _Iteration:
    """An _Iteration derives the operations of one iteration, waits and releases among them, from the emission order."""

    def __init__(
        self,
        emission: list[tuple[str, int]],
        table: Table,
        model: Model,
        buffers: dict[str, int],
        waits: Waits,
        releases: Releases,
    ):
        self.emission, self.table, self.model = emission, table, model
        # Statements that a schedule cannot name, and those that come right before one that it can.
        self.unnamed = {*table.moved, *table.loads}
        self.moved = {before: [m for m, b in table.moved.items() if b == before] for before in table.moved.values()}
        self.place = {name: index for index, (name, _) in enumerate(emission)}
        self.stage = dict(emission)
        # When each statement is done: (iterations since it was issued, place in the order before which it is done).
        at_once = {name: (0, place + 1) for name, place in self.place.items()}
        if model == "synchronous":
            self.done = at_once
        else:
            edges = dependences(table, buffers)
            derived = self._in_issue_order({name: self._first_conflict(name, edges) for name in table.products})
            asked = {
                name: self._earlier(name, before, derived[name])
                for name, before in waits
                if before and name in table.products
            }
            self.done = at_once | self._in_issue_order(derived | asked) | asked
        # A load that a producer issues in this model is no place for a wait.
        placed = [(load, before) for load, before in waits if before in self.place and load in table.loads]
        self.awaited = {load: self._awaited(load, before) for load, before in placed}
        self.released = {load: self._later(load, before) for load, before in releases if before}

    def operations(self) -> Iterator[Operation]:
        for place, (name, lag) in enumerate(self.emission):
            kind = self.table.by_name[name].kind
            yield from self._completions(place)
            yield from (Operation("wait", load, at) for load, (at, where) in self.awaited.items() if where == place)
            yield from (Operation("wait", load, lag) for load in self._first_read(name))
            if kind == "load":
                yield Operation("acquire", name, lag)
            yield Operation("run" if kind == "vector" else "issue", name, lag)
            if kind == "vector":
                yield from self._releases(name, lag)
        yield from self._completions(len(self.emission))

    def _completions(self, place: int) -> Iterator[Operation]:
        """Yields the waits for products that must be done at this place, each with its releases, and set releases."""
        due = [
            (name, self.stage[name] + self.done[name][0]) for name in self.table.products if self.done[name][1] == place
        ]
        # In issue order: the oldest block first, then by place.
        for name, lag in sorted(due, key=lambda entry: (self.stage[entry[0]] - entry[1], self.place[entry[0]])):
            yield Operation("wait", name, lag)
            yield from self._releases(name, lag)
        for load, (at, lag) in self.released.items():
            if at == place:
                yield Operation("release", load, lag)

    def _releases(self, reader: str, lag: int) -> Iterator[Operation]:
        """Yields the unplaced releases of the buffers whose last reader is this statement, which is done now."""
        for load in self.table.loads_of(reader):
            if load not in self.released and self._last_reader(load) == reader:
                yield Operation("release", load, lag)

    def _first_read(self, reader: str) -> Iterator[str]:
        """Yields the loads that a statement must wait for: each once, as no other reader comes before it.

        Where threads issue the loads, the lowering's passes leave out the waits that it does not need.
        """
        for load in dict.fromkeys(self.table.loads_of(reader)):
            if self.model == "synchronous" or self._first_reader(load) == reader:
                yield load

    def _first_reader(self, load: str) -> str:
        """Returns the name of the one of a load's readers that comes first."""
        return min(self.table.readers[load], key=lambda name: (self.stage[name], self.place[name]))

    def _last_reader(self, load: str) -> str:
        """Returns the name of the one of a load's readers that is done last with the load's buffer."""
        return max(
            self.table.readers[load], key=lambda name: (self.stage[name] + self.done[name][0], self.done[name][1])
        )

    def _in_issue_order(self, done: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Returns, by product, when it is done, (iterations later, place): products end in issue order."""
        return {
            name: min(
                (passed + (self.place[other] < self.place[name]), place) for other, (passed, place) in done.items()
            )
            for name in done
        }

    def _earlier(self, product: str, before: str, derived: tuple[int, int]) -> tuple[int, int]:
        """Returns (iterations later, place) where a product is done if a schedule asks for its wait before `before`."""
        passed, place = derived

        def done(name: str) -> tuple[int, int]:
            wanted = self._named(name)
            return passed - (wanted > place), wanted

        issued = 0, self.place[product]
        if done(before) <= issued:
            block = offset(-self.stage[product] - passed)
            needs, stage = self.emission[place]
            possible = ", ".join(name for name in self._nameable if done(name) > issued)
            raise _misplaced(
                *("wait_before", product, before),
                f"does not come between the issue of {product}({block}) and {needs}({offset(-stage)}), by which it must "
                f"be done: expected one of {possible}",
            )
        return done(before)

    def _awaited(self, load: str, before: str) -> tuple[int, int]:
        """Returns (lag, place in the order) of the wait for a load that is to stand before the statement `before`."""
        first = self._first_reader(load)

        def at(name: str) -> tuple[int, int]:
            wanted = self._named(name)
            return self.stage[first] - (wanted > self.place[first]), wanted

        if load not in self.place:  # A producer issues it.
            return at(before)
        issued = self.stage[load], self.place[load]
        possible = [name for name, _ in self.emission if name not in self.table.moved and at(name) > issued]
        # Where its reader comes first the order is wrong as a whole, and the proof says how.
        if possible and at(before) <= issued:
            raise _misplaced(
                *("wait_before", load, before),
                f"does not come between the issue of {load}({offset(-issued[0])}) and "
                f"{first}({offset(-self.stage[first])}), which reads it: expected one of {', '.join(possible)}",
            )
        return at(before)

    def _later(self, load: str, before: str) -> tuple[int, int]:
        """Returns (place in the order, lag) of the release that a schedule asks for before `before`."""
        reader, buffer = self._last_reader(load), self.table.ring_of(load)
        passed, place = self.done[reader]
        wanted = self._named(before)
        if wanted < place:
            later = [name for name in self._nameable if self._named(name) >= place]
            expected = f"expected one of {', '.join(later)}" if later else "no statement comes later, remove it"
            raise _misplaced(
                *("release_before", load, f"{before}({offset(-self.stage[before])})"),
                f"comes before the end of {reader}({offset(-self.stage[reader] - passed)}), which reads {buffer}: {expected}",
            )
        return wanted, self.stage[reader] + passed

    @property
    def _nameable(self) -> list[str]:
        """Returns the names of the statements that a schedule may name for a wait or a release, in order."""
        return [name for name, _ in self.emission if name not in self.unnamed]

    def _named(self, statement: str) -> int:
        """Returns the place in the order of a statement, or of the first moved one that stands right before it."""
        return min(self.place[name] for name in (statement, *self.moved.get(statement, ())))

    def _first_conflict(self, name: str, edges: tuple[Dependence, ...]) -> tuple[int, int]:
        """Returns (iterations later, place) of the first statement that depends on a product and must come after it."""
        needing = {edge.later for edge in edges if edge.earlier == name and not self._follow_each_other(edge)}
        length = len(self.emission)
        for step in range(self.place[name] + 1, self.place[name] + 1 + 2 * length):
            if self.emission[step % length][0] in needing:
                return step // length, step % length
        raise AssertionError(f"nothing ever needs {name}")

    def _follow_each_other(self, edge: Dependence) -> bool:
        """Returns True if a dependence is between two products that accumulate into the same registers."""
        statements = self.table.by_name[edge.earlier], self.table.by_name[edge.later]
        return all(s.kind == "product" and edge.buffer in s.writes for s in statements)


def _misplaced(key: str, name: str, before: str, words: str) -> ScheduleRefused:
    return ScheduleRefused(f"{key}.{name}: {before} {words}", key, name, others=PLACE_KEYS)
