"""A Timeline says what each role of some thread blocks did from when to when, in cycles of its SM's clock.

A measured one is decoded from the buffer where a kernel's threads noted the time (`decoded`). A file holds JSON.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from pydantic import ConfigDict, Field

from tl_attention.codeproof.marks import HEAD, LIMIT, MOST_BLOCKS, OWN, RECORDS
from tl_attention.errors import InputError
from tl_attention.lab.files import json_text, user_file
from tl_attention.lab.files.kinds import TIMELINE
from tl_attention.lab.trace.about import ONLY, About, Count
from tl_attention.schedule.files import reading
from tl_attention.schedule.files.schedule_file import OneLine
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.key_words import dotted

Form = Literal["tl-attention timeline 3"]
(FORM,) = get_args(Form)
# The bytes of a mark's slot, and those that no file of a timeline has.
SLOT, MOST_BYTES = 4, 256 * reading.MIB
# A clock's time in cycles, or a timer's in nanoseconds.
Time = Annotated[int, Field(ge=0, lt=2**63)]


class What(NamedTuple):
    """A What is the kind and the name of what a role does, such as ("wait", "K_full") or ("vector", "exp+cast")."""

    kind: OneLine
    name: OneLine

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


class Span(NamedTuple):
    """A Span is one thing that a role did, from cycle `start` to cycle `end`."""

    what: What
    start: int
    end: int
    tile: int  # the role's tile, from 0 on
    number: int  # of this kind and name in the tile, from 0 on: the KV block's where there is one of it for each


@dataclass(frozen=True)
class Line:
    """A Line is what one role of a thread block noted."""

    __pydantic_config__: ClassVar[ConfigDict] = ONLY

    block: Count
    role: Count
    sm: Count  # on which the block ran
    wall_ns: Time  # the GPU's own timer
    clock: Time  # the SM's cycle at that time
    times: tuple[Time, ...]  # of the marks, in cycles
    marks: tuple[Count, ...]  # which marks they are


@dataclass(frozen=True)
class Timeline:
    """A Timeline has the lines of all roles that were traced, what each mark means, and how it came about."""

    about: About
    roles: Annotated[tuple[OneLine, ...], Field(min_length=1)]  # their names
    mhz: Annotated[float, Field(ge=1, le=100_000)]  # of the SM clock
    whats: tuple[What, ...]  # of each mark
    arrives: tuple[tuple[OneLine, ...], ...]  # of each mark, the barriers at which the role arrives until the next one
    lines: Annotated[tuple[Line, ...], Field(min_length=1)]

    def zero(self, line: Line) -> float:
        """Returns the cycle of a line's SM at which the first traced block began, the same for all lines of an SM."""
        first = min(other.wall_ns for other in self.lines)
        # The GPU's timer goes on in steps of 32 ns, so that each line of an SM would say something else.
        own = next(other for other in self.lines if other.sm == line.sm)
        return own.clock - (own.wall_ns - first) * self.mhz / 1e3

    def spans(self, line: Line) -> Iterator[Span]:
        """Yields what a role did, in order; each span ends where the next begins, and the last mark only ends one."""
        tile, seen = -1, Counter[What]()
        for time, end, mark in zip(line.times, line.times[1:], line.marks):
            what = self.whats[mark]
            if what.kind == "tile":
                tile += 1
                seen.clear()
            yield Span(what, time, end, tile, seen[what])
            seen[what] += 1

    @cached_property
    def blocks(self) -> Mapping[int, Mapping[int, Sequence[Span]]]:
        """Returns for each thread block the spans of its lines, by the lines' indices."""
        found: dict[int, dict[int, list[Span]]] = defaultdict(dict)
        for number, line in enumerate(self.lines):
            found[line.block][number] = [*self.spans(line)]
        return found

    def write(self, file: Path) -> None:
        """Writes the timeline as JSON. After a line's first time each is told by the cycles since the one before."""
        told = asdict(self) | {"about": self.about.known()}
        for line in told["lines"]:
            line["times"] = np.diff(line["times"], prepend=0).tolist()
        user_file.write(file, json.dumps({"form": FORM, **told}, separators=(",", ":")) + "\n", TIMELINE)

    @classmethod
    def read(cls, file: Path) -> Timeline:
        """Reads a timeline from its file; raises InputError, with the path of the key, where the file has none."""
        text, _ = reading.read(file, MOST_BYTES, "timeline")
        where = f"{file}: no timeline"
        json_text.parse_object(text, where, "what `trace` recorded")
        told = json_text.checked(_File, text, where)
        lines = tuple(replace(line, times=(*accumulate(line.times),)) for line in told.lines)
        found = cls(told.about, told.roles, told.mhz, told.whats, told.arrives, lines)
        try:
            if len(found.whats) != len(found.arrives):
                raise RuleBroken(f"{len(found.arrives)} entries, expected {len(found.whats)}, one a mark", "arrives")
            for number, line in enumerate(lines):
                _check(line, number, len(found.roles), len(found.whats))
        except RuleBroken as broken:
            raise InputError(f"{where}: {dotted(broken.key)}{broken}") from None
        return found


@dataclass(frozen=True)
class _File(Timeline):
    """A _File is a timeline as its file has it: the times of a line are differences."""

    __pydantic_config__: ClassVar[ConfigDict] = ONLY

    form: Form = field(kw_only=True)


def _check(line: Line, number: int, roles: int, marks: int) -> None:
    """Raises RuleBroken unless a line is of one of the roles, and its times do not fall and are of known marks."""
    of, place = f"thread block {line.block}, role {line.role}", ("lines", number)
    if not 0 <= line.role < roles:
        raise RuleBroken(f"{of}, expected a role below {roles}", *place, "role")
    if len(line.times) != len(line.marks):
        raise RuleBroken(f"{of} has {len(line.times)} times and {len(line.marks)} marks", *place, "times")
    if any(b < a for a, b in zip(line.times, line.times[1:])) or max(line.times, default=0) >= 2**63:
        raise RuleBroken(f"{of} has times that fall or are too large", *place, "times")
    if wrong := [mark for mark in line.marks if not 0 <= mark < marks]:
        raise RuleBroken(f"{of} has a mark {wrong[0]}, expected one below {marks}", *place, "marks")


# --- the buffer of a traced kernel -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """A Window says which thread blocks are traced, and which iterations of each role are kept."""

    blocks: tuple[int, ...]
    # Of all loops that have marks: one over tiles counts once a tile, one over KV blocks once a block.
    skip: int
    iterations: int

    def head(self, roles: int, marks: int) -> np.ndarray:
        """Returns the first words of a traced kernel's buffer; raises InputError where it cannot hold the window."""
        record = MOST_BLOCKS * roles * marks * SLOT
        if not 0 < len(self.blocks) <= MOST_BLOCKS:
            raise InputError(f"{len(self.blocks)} thread blocks to trace, expected 1 to {MOST_BLOCKS}")
        if not 0 <= self.skip <= (1 << 31) // record - 1:
            raise InputError(f"{self.skip} iterations to leave out, expected 0 to {(1 << 31) // record - 1}")
        if not 0 < self.iterations <= LIMIT // record:
            raise InputError(
                f"{self.iterations} iterations to trace, expected 1 to {LIMIT // record}: the buffer is full then"
            )
        return np.array([self.skip, len(self.blocks), *self.blocks], dtype=np.int64)


def decoded(words: np.ndarray, window: Window, roles: int, marks: int) -> tuple[Line, ...]:
    """Returns the lines of a buffer that a kernel with so many roles and marks has written, int64 (TRACE_WORDS,).

    Raises InputError where the buffer holds what no such kernel writes.
    """
    behind = words.view(np.uint32)[RECORDS // SLOT :][: LIMIT // SLOT]
    count = len(behind) // (MOST_BLOCKS * roles * marks)
    records = behind[: count * MOST_BLOCKS * roles * marks].reshape(count, MOST_BLOCKS, roles, marks)
    own = words[HEAD:][: MOST_BLOCKS * roles * OWN].reshape(MOST_BLOCKS, roles, OWN)
    found: list[Line] = []
    for n, block in enumerate(window.blocks):
        for role in range(roles):
            wall_ns, clock, sm = (int(word) for word in own[n, role])
            noted = records[: window.iterations, n, role]
            if not sm or not noted.any():
                raise InputError(f"thread block {block}, role {role} noted nothing: is there such a block?")
            number, mark = noted.nonzero()
            # The clock's lower half turns over every few seconds: times count on from the begin.
            times = clock + (noted[number, mark].astype(np.int64) - clock) % (1 << 32)
            order = np.lexsort((mark, times, number))
            line = Line(block, role, sm - 1, wall_ns, clock, tuple(times[order].tolist()), tuple(mark[order].tolist()))
            try:
                _check(line, len(found), roles, marks)
            except RuleBroken as broken:
                raise InputError(f"the trace is damaged: {broken}") from None
            found.append(line)
    return tuple(found)
