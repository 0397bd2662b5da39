"""Draws mutants that the proof accepts, builds them here, and packs them for the GPU's machine.

A pack has mutants that only the numbers can show. To check the classes it also has equivalent mutants, and judged ones.
"""

from __future__ import annotations

import base64
import json
import lzma
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from machine_code import NotCompiled, cubin, disassembled

from code_mutants.judged import reason
from code_mutants.kernels import KERNELS, lowered
from code_mutants.operations import Mutant, mutants
from code_mutants.reading import Code, is_numbers, read
from code_mutants.rows import EQUIVALENT, OTHER, SAME, TO_JUDGE, Row, Rows, is_device

CONTROL, JUDGED = "as generated", "judged"
# These give the right numbers.
HARMLESS = (CONTROL, EQUIVALENT, JUDGED)


class _Texts:
    """The texts of a kernel and of its mutants are here by their keys."""

    def __init__(self, kernel: str, numbers: int, seed: str):
        self.code: Code = lowered(KERNELS[kernel])
        verdict = read(KERNELS[kernel].schedule, self.code)
        found = mutants(self.code, verdict, numbers, f"{seed} {kernel}")
        self.found: dict[str, Mutant] = {mutant.key: mutant for mutant in found}

    def __getitem__(self, key: str) -> str:
        return self.code.source if key == CONTROL else self.found[key].of(self.code).source


def drawn(files: Sequence[Rows], count: int, least: int, equivalent: int, seed: str) -> list[tuple[str, Row]]:
    """Draws (kernel, row) of mutants; the row's kind says in which class a mutant is.

    The draw has `count` mutants of the numbers' class, first `least` of each kind and then any; `equivalent` mutants
    that are equivalent; and all mutants that were judged.
    """
    order: list[tuple[str, Row]] = []
    for rows in files:
        kernel = rows.head["kernel"]
        for row, found in rows.classes():
            kind = JUDGED if found == TO_JUDGE and reason(kernel, row) else found
            if is_device(row):
                order.append((kernel, {**row, "kind": kind}))
    order.sort(key=lambda entry: (entry[0], entry[1]["key"]))
    # Whatever is found to be no C++ leaves the others where they are.
    random.Random(seed).shuffle(order)
    of_kind: dict[str, list[tuple[str, Row]]] = {}
    first: list[tuple[str, Row]] = []
    others: list[tuple[str, Row]] = []
    for pair in order:
        alike = of_kind.setdefault(pair[1]["kind"], [])
        alike.append(pair)
        if is_numbers(pair[1]["kind"]):
            (first if len(alike) <= least else others).append(pair)
    return [*[*first, *others][:count], *of_kind.get(EQUIVALENT, [])[:equivalent], *of_kind.get(JUDGED, [])]


def pack(folder: Path, file: Path, count: int, least: int, equivalent: int, numbers: int, seed: str, jobs: int) -> int:
    """Draws, builds and writes mutants of the folder's rows, and their kernels as generated; returns how many it wrote.

    A mutant that turns out to be no C++ is noted in its row, and others are drawn.
    """
    files = {rows.head["kernel"]: rows for rows in map(Rows, sorted(folder.glob("*.jsonl")))}
    texts = {kernel: _Texts(kernel, numbers, seed) for kernel in files}
    with ThreadPoolExecutor(jobs) as pool:
        failed = True
        while failed:
            chosen = drawn(list(files.values()), count, least, equivalent, seed)
            errors = list(pool.map(lambda pair: _error(folder, texts[pair[0]][pair[1]["key"]]), chosen))
            failed = any(errors)
            for (kernel, row), error in zip(chosen, errors):
                if error:
                    files[kernel].learn(row["key"], error=error)
        kernels = sorted({kernel for kernel, _ in chosen})
        rows = [*((kernel, {"key": CONTROL, "kind": CONTROL}) for kernel in kernels), *chosen]
        own = dict(zip(kernels, pool.map(lambda kernel: disassembled(built(folder, texts[kernel][CONTROL])), kernels)))
        packed = list(pool.map(lambda pair: _packed(folder, pair[0], pair[1], texts[pair[0]], own[pair[0]]), rows))
    with lzma.open(file, "wt") as written:
        written.writelines(f"{json.dumps(row)}\n" for row in packed)
    return len(packed)


def _error(folder: Path, text: str) -> str:
    try:
        built(folder, text)
    except NotCompiled as error:
        return str(error)
    return ""


def built(folder: Path, text: str) -> bytes:
    """Compiles a text to a cubin, and keeps the cubin in the folder. Raises NotCompiled."""
    file = folder / "built" / f"{sha256(text.encode()).hexdigest()[:16]}.cubin"
    if not file.exists():
        machine_code = cubin(text)
        file.parent.mkdir(exist_ok=True)
        # The whole file is written, or nothing.
        unfinished = file.with_suffix(".part")
        unfinished.write_bytes(machine_code)
        unfinished.replace(file)
    return file.read_bytes()


def _packed(folder: Path, kernel: str, row: Row, texts: _Texts, own: str) -> Row:
    """Returns a row with its text and machine code; `own` is the kernel's machine code, disassembled."""
    text = texts[row["key"]]
    machine_code = built(folder, text)
    same = disassembled(machine_code) == own
    return {
        "kernel": kernel,
        **{field: row[field] for field in ("key", "kind", "operation", "line", "shown") if field in row},
        "machine": SAME if same else OTHER,
        "source": text,
        "cubin": base64.b64encode(machine_code).decode(),
    }


def unpacked(file: Path) -> Sequence[Row]:
    """Reads the rows of a pack, with their source and machine code."""
    with lzma.open(file, "rt") as lines:
        return [json.loads(line) for line in lines]
