"""Says how each record of docs/results.md was made: its card, date, commit, number of rounds, method and command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pages.made import RESULTS
from tl_attention.lab.measure.records import parse_object, read_lines
from tl_attention.lab.show.table import markdown

COUNT = re.compile(r"(\d+) rounds, ")
# tl-attention's own version stands in the record's line, not among the other versions.
OWN = "tl-attention"
EVALUATED = "the leaderboard's own: CUDA events around each call, as many calls as its rule asks for"


@dataclass(frozen=True)
class MadeBy:
    """A MadeBy says how a record was made."""

    cells: tuple[str, ...]  # of the record's line in a table
    rounds: str  # how many
    names: str  # of its schedules

    def __str__(self) -> str:
        return " | ".join(self.cells)


def lines(file: str) -> list[dict[str, Any]]:
    """Reads the lines of a record that were measured; an evaluation becomes what it says of the machine."""
    found = [parse_object(line, where) for where, line in read_lines(RESULTS / file)]
    return [evaluation_row(one) if "environment" in one else one for one in found if one.get("method") or "rows" in one]


def evaluation_row(line: dict[str, Any]) -> dict[str, Any]:
    """Returns an evaluation in the form of the other lines."""
    said, timing = line["environment"], line["rows"][-1].get("timing") or {}
    names = ("torch", "tilelang", "python", "cuda", "cudnn", OWN)
    return {
        **said,
        "device": said["device_name"],
        "method": EVALUATED,
        "versions": {name: said[name] for name in names},
        "n": timing.get("n"),
    }


def records(files: Sequence[str]) -> dict[str, object]:
    """Says how each of these records was made, their devices and versions, and which methods there are."""
    methods: dict[str, str] = {}
    every = {file: lines(file) for file in files}
    rows = [row for of_file in every.values() for row in of_file]
    return {
        "of": {file: made(of_file, methods) for file, of_file in every.items()},
        "methods": markdown(["method", "what it is"], [[letter, f"{words}."] for words, letter in methods.items()]),
        "machine": machine(rows),
        "devices": " and one ".join(sorted({row["device"] for row in rows})),
    }


def made(rows: Sequence[dict[str, Any]], methods: dict[str, str]) -> MadeBy:
    """Says how a record of these lines was made; a method that is new gets the next letter."""
    first = rows[0]
    runs = sorted({f"{row.get('run', '')[:10]} {row['commit']}".strip() for row in rows})
    letters = [methods.setdefault(COUNT.sub("", row["method"]), chr(ord("A") + len(methods))) for row in rows]
    counts = sorted({int(found[1]) for row in rows if (found := COUNT.search(row["method"]))})
    rounds = " or ".join(map(str, counts))
    cells = (
        first["device"],
        "; ".join(runs),
        " and ".join(sorted({row["versions"][OWN] for row in rows})),
        f"{rounds} rounds" if rounds else samples(rows),
        ", ".join(dict.fromkeys(letters)),
    )
    names = sorted({row["name"] for row in rows if row.get("sizes") != "peer" and "name" in row})
    return MadeBy(cells, rounds, " ".join(names))


def samples(rows: Sequence[dict[str, Any]]) -> str:
    """Says how often something was measured, where there are no rounds."""
    found = sorted({int(row["n"]) for row in rows if row.get("n")}, reverse=True)
    if found:
        return f"{' or '.join(map(str, found))} calls"
    if "tried" in rows[0]:
        return f"{sum(row['tried'] for row in rows):.0f} inputs"
    if "seqs" in rows[0]:
        return f"{len(rows[0]['seqs'])} steps"
    return f"{len({row['seed'] for row in rows})} seeds" if "losses" in rows[0] else "1 launch"


def machine(rows: Sequence[dict[str, Any]]) -> str:
    """Says the versions and the card's settings that all records share; where they differ, each of them."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        said = {**row["versions"], "nvcc": row["nvcc"], "driver": row["driver"]}
        for name, version in said.items():
            if name != OWN and version != "none":
                found.setdefault(name, {})[version] = None
    versions = ", ".join(f"{name} {' or '.join(of)}" for name, of in found.items())
    watts = " or ".join(dict.fromkeys(f"{float(row['power_limit_w']):.0f} W" for row in rows))
    return f"All records have {versions}, and a power limit of {watts}."
