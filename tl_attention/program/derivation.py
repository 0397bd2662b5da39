"""Schedule -> Program: waits, acquires and releases derived from what the statements read and write."""

from __future__ import annotations

from collections.abc import Iterator

from tl_attention.errors import ScheduleRefused
from tl_attention.loop.statements import BY_NAME, LOADS, PRODUCTS, READER, RING, Statement, Table
from tl_attention.program.program import Op, Program, offset
from tl_attention.schedule.dialect import Model
from tl_attention.schedule.options import Releases, Waits
from tl_attention.schedule.schedule import Schedule

# What may be at fault where a statement stands at the wrong place, the likelier first.
PLACE_KEYS = ("order",), ("group",), ("stage",), ("split",)


def derive(schedule: Schedule, model: Model | None = None) -> Program:
    """The Program of a schedule that orders the loop itself. It need not be legal: see `legality.check`.

    `model` is the lowering's own by default. Raises ValueError for a lowering without a Program.
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
        ahead = {load: schedule.buffers(load) - 1 for load in producers}
        emission = [(load, stage_of[READER[load]] - ahead[load]) for load in producers] + emission
        producers = ()
    buffers = {load: schedule.buffers(load) if load in producers else _placed_buffers(load, emission) for load in LOADS}
    iteration = _Iteration(emission, table, model, schedule.wait_before, schedule.release_before)
    producer = tuple(Op(kind, load, 0) for load in producers for kind in ("acquire", "issue"))
    return Program(table, model, tuple(iteration.ops()), producer, buffers)


def _as_the_kernel_has_it(emission: list[tuple[str, int]], table: Table) -> list[tuple[str, int]]:
    """The order of the kernel's own statements: fused ones gone, moved ones right before where they belong."""
    kept = []
    for name, stage in emission:
        kept += [(moved, stage) for moved, before in table.moved.items() if before == name]
        if name not in table.fused and name not in table.moved:
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
    """Derives the operations of one iteration from the emission order.

    When a product must be done is (iterations since it was issued, place in the order before which).
    """

    def __init__(self, emission: list[tuple[str, int]], table: Table, model: Model, waits: Waits, releases: Releases):
        self.emission = emission
        self.statements = table.by_name
        # Statements that a schedule cannot name, and those that come right before one that it can.
        self.unnamed = {*table.moved, *LOADS}
        self.moved = {before: [m for m, b in table.moved.items() if b == before] for before in table.moved.values()}
        self.place = {name: index for index, (name, _) in enumerate(emission)}
        self.stage = dict(emission)
        if model == "synchronous":
            self.done = {name: (0, self.place[name] + 1) for name in PRODUCTS}
        else:
            derived = self._in_issue_order({name: self._first_conflict(name) for name in PRODUCTS})
            asked = {name: self._earlier(name, before, derived[name]) for name, before in waits if before}
            self.done = self._in_issue_order(derived | asked) | asked
        self.released = {load: self._later(load, before) for load, before in releases if before}

    def ops(self) -> Iterator[Op]:
        for place, (name, lag) in enumerate(self.emission):
            statement = self.statements[name]
            yield from self._completions(place)
            for buffer in statement.reads:
                if buffer in RING:
                    yield Op("wait", RING[buffer], lag)
            if statement.kind == "load":
                yield Op("acquire", name, lag)
            yield Op("run" if statement.kind == "vector" else "issue", name, lag)
        yield from self._completions(len(self.emission))

    def _completions(self, place: int) -> Iterator[Op]:
        """The waits for products before this place, each with the releases of what the product was the last to read."""
        due = [(name, self.stage[name] + passed) for name, (passed, at) in self.done.items() if at == place]
        # In issue order: the oldest block first, then by place.
        for name, lag in sorted(due, key=lambda entry: (self.stage[entry[0]] - entry[1], self.place[entry[0]])):
            yield Op("wait", name, lag)
            for buffer in self.statements[name].reads:
                if buffer in RING and RING[buffer] not in self.released:
                    yield Op("release", RING[buffer], lag)
        for load, (at, lag) in self.released.items():
            if at == place:
                yield Op("release", load, lag)

    def _in_issue_order(self, done: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Products complete in issue order, so one is also done where a later one has to be."""
        return {
            name: min(
                (passed + (self.place[other] < self.place[name]), place) for other, (passed, place) in done.items()
            )
            for name in done
        }

    def _earlier(self, product: str, before: str, derived: tuple[int, int]) -> tuple[int, int]:
        """When a product is done that is waited for at `before`, the last one that comes by the derived place."""
        passed, place = derived

        def done(name: str) -> tuple[int, int]:
            wanted = self._named(name)
            return passed - (wanted > place), wanted

        issued = 0, self.place[product]
        if done(before) <= issued:
            block = offset(-self.stage[product] - passed)
            needs, stage = self.emission[place]
            raise ScheduleRefused(
                f"wait_before.{product}: {before} does not come between the issue of {product}({block}) and "
                f"{needs}({offset(-stage)}), by which it must be done: expected one of "
                f"{', '.join(name for name in self._nameable if done(name) > issued)}",
                "wait_before",
                product,
                others=PLACE_KEYS,
            )
        return done(before)

    def _later(self, load: str, before: str) -> tuple[int, int]:
        """(place, lag there) of the release of a load's buffer: `before`, in the iteration in which its reader is done.

        A statement that has gone by then would come again an iteration later, which nobody who names it means.
        """
        reader, buffer = READER[load], BY_NAME[load].writes[0]
        passed, place = self.done[reader]
        wanted = self._named(before)
        if wanted < place:
            later = [name for name in self._nameable if self._named(name) >= place]
            expected = f"expected one of {', '.join(later)}" if later else "no statement comes later, remove it"
            raise ScheduleRefused(
                f"release_before.{load}: {before}({offset(-self.stage[before])}) comes before "
                f"{reader}({offset(-self.stage[reader] - passed)}) is done, which reads {buffer}: {expected}",
                "release_before",
                load,
                others=PLACE_KEYS,
            )
        return wanted, self.stage[reader] + passed

    @property
    def _nameable(self) -> list[str]:
        """The statements that a schedule may name for a wait or a release, in order."""
        return [name for name, _ in self.emission if name not in self.unnamed]

    def _named(self, statement: str) -> int:
        """The place of a statement that a schedule names: a moved one, which it cannot, goes with the one behind it."""
        return min(self.place[name] for name in (statement, *self.moved.get(statement, ())))

    def _first_conflict(self, name: str) -> tuple[int, int]:
        """When a product must be done: before the first statement that conflicts with it."""
        product, length = self.statements[name], len(self.emission)
        for step in range(self.place[name] + 1, self.place[name] + 1 + 2 * length):
            if self._conflict(product, self.statements[self.emission[step % length][0]]):
                return step // length, step % length
        raise AssertionError(f"nothing ever needs {name}")

    @staticmethod
    def _conflict(product: Statement, later: Statement) -> bool:
        """Whether `product` must be done before `later` starts."""
        if later.kind == "load":
            # A load that is issued in the order overwrites a ring buffer that the product reads.
            return later.writes[0] in product.reads
        touched = set(later.reads) | set(later.writes)
        # wgmmas that accumulate into the same registers follow each other without a wait.
        hazards = touched & set(product.writes) if later.kind != "product" else set()
        return bool(hazards | (set(later.writes) & set(product.reads) - set(product.writes)))
