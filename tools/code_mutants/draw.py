"""Mutants that only the numbers can show, drawn and packed with their source for the GPU's machine."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Sequence
from pathlib import Path

from code_mutants.kernels import KERNELS, lowered
from code_mutants.operations import mutants
from code_mutants.reading import is_numbers, read
from code_mutants.rows import Row, Rows, class_of

CONTROL = "as generated"


def drawn(files: Sequence[Rows], count: int, least: int, seed: str) -> list[tuple[str, Row]]:
    """(kernel, row) of so many of the numbers' class: the least of each kind first, then any."""
    generator = random.Random(seed)
    of_kind: dict[str, list[tuple[str, Row]]] = {}
    for rows in files:
        for row in rows.found.values():
            kind = class_of(row, rows.head["digest"])
            if row["drawn"] and is_numbers(kind):
                of_kind.setdefault(kind, []).append((rows.head["kernel"], row))
    chosen: list[tuple[str, Row]] = []
    rest: list[tuple[str, Row]] = []
    for _, found in sorted(of_kind.items()):
        found.sort(key=lambda pair: (pair[0], pair[1]["key"]))
        generator.shuffle(found)
        chosen += found[:least]
        rest += found[least:]
    generator.shuffle(rest)
    return [*chosen, *rest][:count]


def pack(file: Path, chosen: Sequence[tuple[str, Row]], numbers: int, seed: str) -> int:
    """Write them, and each of their kernels as it is generated; returns how many there are."""
    packed: list[Row] = []
    for kernel in sorted({kernel for kernel, _ in chosen}):
        code = lowered(KERNELS[kernel])
        verdict = read(KERNELS[kernel].schedule, code)
        sources = {m.key: m.of(code).source for m in mutants(code, verdict, numbers, f"{seed} {kernel}") if m.drawn}
        packed.append({"kernel": kernel, "key": CONTROL, "kind": CONTROL, "shown": "", "source": code.source})
        for row in (row for name, row in chosen if name == kernel):
            told = {field: row[field] for field in ("key", "kind", "operation", "line", "shown")}
            packed.append({"kernel": kernel, **told, "source": sources[row["key"]]})
    with lzma.open(file, "wt") as written:
        written.writelines(f"{json.dumps(row)}\n" for row in packed)
    return len(packed)


def unpacked(file: Path) -> list[Row]:
    """The rows of a pack, with their source."""
    with lzma.open(file, "rt") as lines:
        return [json.loads(line) for line in lines]
