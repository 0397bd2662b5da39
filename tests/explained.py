"""Reads the operations off the text of `explain`, and finds the loops that they make in generated code."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from tl_attention.lab.show.explain import explain
from tl_attention.program.planned import Planned
from tl_attention.schedule.schedule import Schedule

BLOCK_LOOP = re.compile(r"^( *)for \(int t\w* = 0; .*?^\1\}$", re.MULTILINE | re.DOTALL)
STATEMENT = re.compile(r"([\w.]+)\((t(?:[+-]\d+)?)\)([^(]*?)(?:, (?=[\w.]+\()|$)")


class Listed(NamedTuple):
    """An operation in a line is `statement` of block t + `distance`, and what else the line says."""

    kind: str
    statement: str
    distance: int
    words: str


class Phase(NamedTuple):
    """A phase has iterations, and says at which t each is: 0, n-1, t."""

    at: tuple[str, ...]
    iterations: tuple[tuple[Listed, ...], ...]

    @property
    def operations(self) -> list[Listed]:
        return [op for iteration in self.iterations for op in iteration]


def explained(schedule: Schedule) -> dict[str, Phase]:
    """Returns each phase with its operations, by name."""
    parts = {re.match(r"[\w ]*", part)[0]: part.splitlines() for part in explain(Planned(schedule)).split("\n\n")}
    found = {"Steady state": Phase(("t",), (tuple(_operations(parts["Steady state"][1:])),))}
    for name in ("Prologue", "Epilogue"):
        heading, *lines = parts[name]
        starts = [number for number, line in enumerate(lines) if line.startswith(" iteration")]
        assert starts[:1] == [0] or (not lines and heading == f"{name}: none")
        found[name] = Phase(
            tuple(lines[start].removeprefix(" iteration t = ") for start in starts),
            tuple(tuple(_operations(lines[a + 1 : b])) for a, b in zip(starts, [*starts[1:], len(lines)])),
        )
    return found


def _operations(lines: list[str]) -> Iterator[Listed]:
    for line in lines:
        kind, about = re.fullmatch(r" ?[ ~] (\w+) +(.+)", line).groups()
        statements = STATEMENT.findall(about)
        assert statements or kind in ("turn", "pass") or about == "load_q", line
        for statement, block, words in statements:
            yield Listed(kind, statement, int(block[1:] or 0), words.lstrip(", "))
        if not statements:
            yield Listed(kind, about, 0, "")
