"""This module proves a Program against source order by value numbering, and says in words which dependence breaks.

Every statement is run on symbols: the value it writes is named by the statement and the values that it read. A Program
is legal when each read, and the results after the loop, see the value that source order gives them, for every number of
blocks up to two more than twice its span, whichever way asynchronous work falls.
"""

from __future__ import annotations

from dataclasses import dataclass

from tl_attention.errors import ScheduleRefused
from tl_attention.program.machine import EARLY, LATE, Deadlock, Policy, execute
from tl_attention.program.program import CONSUMER, Program, offset
from tl_attention.schedule.loop.table import Statement, Table, whole

AFTER_LOOP = "the output"


@dataclass(frozen=True)
class Write:
    """A Write is a value, known by its number, with the statement and the KV block that wrote it."""

    statement: str
    block: int
    value: int


@dataclass(frozen=True)
class Violation:
    """A Violation is the first read that sees another value than in source order, in a loop over `blocks` KV blocks."""

    blocks: int
    policy: Policy
    statement: str
    block: int
    buffer: str
    expected: Write
    found: Write | None
    words: str


class _WrongRead(Exception):
    def __init__(self, statement: str, block: int, buffer: str, found: Write | None):
        self.statement, self.block, self.buffer, self.found = statement, block, buffer, found


class _Symbols:
    """A _Symbols runs statements on numbers that stand for values, and keeps what each buffer holds."""

    def __init__(self, table: Table, numbers: dict, expected: dict[tuple[str, int, str], Write] | None = None):
        self.statements, self.rings_of = table.by_name, table.rings
        self.inputs, self.results_of = table.inputs, table.results
        self.numbers = numbers
        self.expected = expected
        self.reads: dict[tuple[str, int, str], Write] = {}
        # A buffer without an initial value has a value of its own, as if somebody had written it.
        self.buffers = {
            buffer: Write(table.names[0], -1, self._constant(table.initial.get(whole(buffer), f"start of {buffer}")))
            for s in table.statements
            for buffer in s.writes
        }
        self.zero, self.minus_inf = self._constant("0"), self._constant("-inf")
        self.rings: dict[tuple[str, int], Write] = {}
        self.done: set[tuple[str, int]] = set()

    def run(self, statement: str, block: int, slot: dict[str, int]) -> None:
        entry = self.statements[statement]
        inputs = [
            self._read(statement, block, buffer, slot).value for buffer in entry.reads if buffer not in self.inputs
        ]
        value = self._passed_on(entry, inputs)
        if value is None:
            # From the same inputs a statement writes the same value every time, unless it depends on the block itself.
            key = (statement, block if entry.of_block else None, *inputs)
            value = self._constant(entry.constant) if entry.constant else self._number(key)
        written = Write(statement, block, value)
        self.done.add((statement, block))
        for buffer in entry.writes:
            if buffer in self.rings_of:
                self.rings[buffer, slot[self.rings_of[buffer]]] = written
            else:
                self.buffers[buffer] = written

    def _number(self, key: tuple) -> int:
        """Returns the number of the value that the key names; equal keys get equal numbers."""
        return self.numbers.setdefault(key, len(self.numbers))

    def _constant(self, value: str) -> int:
        return self._number(("constant", value))

    def _passed_on(self, entry: Statement, inputs: list[int]) -> int | None:
        """Returns the number of the input that a statement passes on unchanged, or None where it computes a value."""
        if entry.identity == "copy" or (entry.identity == "zero" and inputs[0] == self.zero):
            return inputs[0]
        if entry.identity == "maximum" and self.minus_inf in inputs:
            return next((value for value in inputs if value != self.minus_inf), self.minus_inf)
        return None

    def results(self, blocks: int) -> None:
        for buffer in self.results_of:
            self._read(AFTER_LOOP, blocks, buffer, {})

    def _read(self, statement: str, block: int, buffer: str, slot: dict[str, int]) -> Write:
        if buffer in self.rings_of:
            write = self.rings.get((buffer, slot[self.rings_of[buffer]]))
        else:
            write = self.buffers[buffer]
        key = (statement, block, buffer)
        if self.expected is not None and (write is None or write.value != self.expected[key].value):
            raise _WrongRead(statement, block, buffer, write)
        assert write is not None
        self.reads[key] = write
        return write


def source_order(table: Table, blocks: int, numbers: dict) -> dict[tuple[str, int, str], Write]:
    """Returns what each read sees when the loop runs in source order, as Writes by (statement, block, buffer)."""
    symbols = _Symbols(table, numbers)
    for block in range(blocks):
        for name in table.names:
            symbols.run(name, block, dict.fromkeys(table.loads, 0))
    symbols.results(blocks)
    return symbols.reads


def find_violation(program: Program, policies: tuple[Policy, ...] = (LATE, EARLY)) -> Violation | str | None:
    """Runs a Program under each policy, and returns its first wrong read, a deadlock as text, or None if it is legal.

    Loops of the fewest blocks are tried first.
    """
    numbers: dict = {}
    for blocks in range(1, 2 * program.span + 3):
        expected = source_order(program.table, blocks, numbers)
        for policy in policies:
            symbols = _Symbols(program.table, numbers, expected)
            try:
                execute(program, blocks, symbols, policy)
                symbols.results(blocks)
            except _WrongRead as wrong:
                read = expected[wrong.statement, wrong.block, wrong.buffer]
                written = read.block < 0 or (read.statement, read.block) in symbols.done
                return Violation(
                    blocks,
                    policy,
                    wrong.statement,
                    wrong.block,
                    wrong.buffer,
                    read,
                    wrong.found,
                    _words(program, blocks, wrong, read, written),
                )
            except Deadlock as deadlock:
                return f"{deadlock}; no operation that is left can free it (buffers: {program.rings})"
    return None


def check(program: Program) -> None:
    """Raises ScheduleRefused if a Program deadlocks, or if a read in it sees another value than in source order."""
    violation = find_violation(program)
    if isinstance(violation, Violation):
        raise ScheduleRefused(violation.words)
    if violation:
        raise ScheduleRefused(violation)


def _words(program: Program, blocks: int, wrong: _WrongRead, expected: Write, written: bool) -> str:
    """Returns the message for a read of a wrong value; the right one is overwritten if `written`, else not there."""
    reader, buffer, found = wrong.statement, wrong.buffer, wrong.found
    emitted = [
        (step.op.statement, step.block) for step in program.roles(blocks)[CONSUMER] if step.op.kind in ("run", "issue")
    ]
    lag = {op.statement: op.lag for op in program.consumer + program.producer if op.kind in ("run", "issue")}
    loop_end = reader == AFTER_LOOP
    time = blocks if loop_end else wrong.block + lag[reader]

    def at(statement: str, block: int) -> str:
        if statement == AFTER_LOOP:
            return AFTER_LOOP
        if block < 0:
            return "the code before the loop"
        return f"{statement}({offset(block - time, 'n' if loop_end else 't')})"

    def late(instance: tuple[str, int], than: tuple[str, int]) -> str:
        """Returns words for why `instance` runs after `than`, or "" unless the threads that compute issue both."""
        if instance not in emitted or than not in emitted:
            return ""
        return ", emitted later," if emitted.index(instance) > emitted.index(than) else ", in flight,"

    read, source = (reader, wrong.block), (expected.statement, expected.block)
    needs = f"{at(*read)} needs what {at(*source)} wrote"
    if not written:
        sees = ", and nothing has yet"
        if found and (found.block >= 0 or whole(buffer) in program.table.initial):
            sees = f" and would see what {at(found.statement, found.block)} wrote"
        return f"{at(*read)} reads {buffer} before {at(*source)}{late(source, read)} has written it: {needs}{sees}"
    assert found is not None
    writer = (found.statement, found.block)
    if loop_end:
        return f"{at(*writer)} is the last to write {buffer}: {needs}"
    return f"{at(*writer)} overwrites {buffer} before {at(*read)}{late(read, writer)} has read it: {needs}"
