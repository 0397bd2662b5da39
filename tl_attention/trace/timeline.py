"""A Timeline says what each role of some thread blocks did from when to when, in cycles of its SM's clock.

A measured one is decoded from the buffer in which a kernel's threads noted the time (`decoded`). A file has one as JSON.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tl_attention.errors import InputError
from tl_attention.files import user_file
from tl_attention.proof.code.marks import HEAD, LIMIT, MOST_BLOCKS, OWN, RECORDS

FORM = "tl-attention timeline 3"
# The bytes of a mark's slot, and those that no file of a timeline has.
SLOT, MOST_BYTES = 4, 256 * user_file.MIB


class What(NamedTuple):
    """A What is the kind and the name of what a role does, such as ("wait", "K_full") or ("vector", "exp+cast")."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


class Span(NamedTuple):
    """A Span is one thing that a role did, from cycle `start` to cycle `end`.

    It was the role's `number`-th of this kind and name in its tile number `tile`, both from 0 on: the number of the KV
    block where there is one of it for each.
    """

    what: What
    start: int
    end: int
    tile: int
    number: int


@dataclass(frozen=True)
class Line:
    """A Line is what one role of a thread block noted: the times of its marks, in cycles, and which marks they are.

    `sm` is the SM on which the block ran. At cycle `clock` of that SM the GPU's own timer stood at `wall_ns`.
    """

    block: int
    role: int
    sm: int
    wall_ns: int
    clock: int
    times: tuple[int, ...]
    marks: tuple[int, ...]


@dataclass(frozen=True)
class Timeline:
    """A Timeline has the lines of all roles that were traced, what each mark means, and how it came about.

    `about` says of which kernel, problem and machine it is, by name. `roles` are their names. The SM clock ran at `mhz`.
    Between a mark and the next one the role arrives at the barriers that `arrives` names for the mark.
    """

    about: Mapping[str, Any]
    roles: tuple[str, ...]
    mhz: float
    whats: tuple[What, ...]
    arrives: tuple[tuple[str, ...], ...]
    lines: tuple[Line, ...]

    def zero(self, line: Line) -> float:
        """Returns the cycle of a line's SM at which the first traced thread block began, the same for all lines of an SM."""
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
        """Writes the timeline as JSON. Behind a line's first time stand how many cycles each is after the one before."""
        told = asdict(self)
        for line in told["lines"]:
            line["times"] = np.diff(line["times"], prepend=0).tolist()
        user_file.write(file, json.dumps({"form": FORM, **told}, separators=(",", ":")) + "\n")

    @classmethod
    def read(cls, file: Path) -> Timeline:
        """Reads a timeline from its file; raises InputError where the file has none."""
        text, _ = user_file.read(file, MOST_BYTES, "timeline")
        try:
            told = json.loads(text)
            if told["form"] != FORM:
                raise ValueError(f"its form is {told['form']!r}, expected {FORM!r}")
            lines = tuple(
                Line(**{**line, "times": (*accumulate(line["times"]),), "marks": (*line["marks"],)})
                for line in told["lines"]
            )
            whats, arrives = tuple(What(*what) for what in told["whats"]), tuple(map(tuple, told["arrives"]))
            if len(whats) != len(arrives):
                raise ValueError(f"{len(whats)} marks, but arrivals of {len(arrives)}")
            found = cls(told["about"], (*told["roles"],), told["mhz"], whats, arrives, lines)
            for line in lines:
                _check(line, len(found.roles), len(found.whats))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{file}: no timeline: {' '.join(str(error).split())[:200]}") from None
        return found


def _check(line: Line, roles: int, marks: int) -> None:
    """Raises ValueError unless a line is of one of the roles, its times do not fall, and each is of a mark that there is."""
    if not 0 <= line.role < roles:
        raise ValueError(f"block {line.block} has a role {line.role} that there is not")
    if len(line.times) != len(line.marks) or any(b < a for a, b in zip(line.times, line.times[1:])):
        raise ValueError(f"the times of block {line.block}, role {line.role} are damaged")
    if any(not 0 <= mark < marks for mark in line.marks):
        raise ValueError(f"block {line.block}, role {line.role} has a mark that there is not")


# --- the buffer of a traced kernel -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """A Window says which thread blocks are traced, and from which iteration on how many of each role are kept.

    Iterations are those of all loops that have marks: one over tiles counts once a tile, one over KV blocks once a block.
    """

    blocks: tuple[int, ...]
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
                _check(line, roles, marks)
            except ValueError as error:
                raise InputError(f"the trace is damaged: {error}") from None
            found.append(line)
    return tuple(found)
