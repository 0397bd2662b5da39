"""The golden code is what TileLang generates of the kernels of `golden_kernels.py`; tests/golden/ keeps it.

kernels.json names each kernel's key, a hash of all that its text is made of, and the hashes of its two texts; texts.xz
has the texts. To lower a kernel takes 6 s, to trace it and compare the key 0.3 s. Run as a program, this module lowers
the stale kernels and says what changed; `--all` lowers every kernel.
"""

import functools
import hashlib
import json
import lzma
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from difflib import unified_diff
from importlib.metadata import version
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from code_mutants import kernels
from code_mutants.reading import Code
from golden_kernels import KERNELS, GoldenKernel

from tl_attention.compiler.generation import target
from tl_attention.kernels.registry import lowering_of, parameters_of
from tl_attention.program.planned import Planned

FOLDER = Path(__file__).parent / "golden"
INDEX, TEXTS = FOLDER / "kernels.json", FOLDER / "texts.xz"
STALE = "the golden code is stale: run `make golden`, and commit what it changes"


@dataclass(frozen=True)
class Entry:
    """An entry of kernels.json has a kernel's key, and the SHA-256 of its device code and of the host's plan."""

    key: str
    source: str
    host_plan: str


def key(kernel: GoldenKernel) -> str:
    """Returns a hash of what TileLang lowers: the traced program, the passes' options, the target, and its version."""
    lowering = lowering_of(kernel.schedule)
    program = lowering.prim_func(Planned(kernel.schedule), kernel.variant).script(show_meta=True)
    made_of = [program, dict(lowering.pass_configs), target(kernel.variant.arch), version("tilelang")]
    return _hash(json.dumps(made_of, sort_keys=True, default=str))


def entry(kernel: GoldenKernel, code: Code) -> Entry:
    """Returns what kernels.json would say of a kernel with this code."""
    return Entry(key(kernel), _hash(code.source), _hash(code.host_plan))


@functools.cache
def index() -> dict[str, Entry]:
    """Reads what kernels.json says, by the kernels' names."""
    return {name: Entry(**found) for name, found in json.loads(INDEX.read_text()).items()}


@functools.cache
def texts() -> dict[str, tuple[str, str]]:
    """Reads the device code and the host's plan of every kernel, by its name."""
    return {name: (source, host) for name, (source, host) in json.loads(lzma.decompress(TEXTS.read_bytes())).items()}


@functools.cache
def code(name: str) -> Code:
    """Returns the generated code of the kernel of this name."""
    kernel = KERNELS[name]
    return Code(*texts()[name], kernel.variant, parameters_of(kernel.schedule, kernel.variant))


@functools.cache
def names() -> dict[tuple[object, object], str]:
    """Returns the names of the kernels by schedule and variant."""
    return {(kernel.schedule, kernel.variant): name for name, kernel in KERNELS.items()}


def lowered_again(name: str) -> Code:
    """Returns the code that TileLang generates of a kernel now."""
    return kernels.lowered(KERNELS[name])


def stale(name: str) -> bool:
    """Says whether golden code lacks a kernel, has it made of something else, or has a text that is not its hash."""
    if name not in index() or name not in texts():
        return True
    return index()[name] != entry(KERNELS[name], code(name))


def main(arguments: list[str]) -> None:
    """Lowers the stale kernels, or every kernel, writes the files again, and says what changed."""
    known = (index(), texts()) if INDEX.exists() else ({}, {})
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        chosen = [*KERNELS]
        if "--all" not in arguments and known[0]:
            chosen = [name for name, is_stale in zip(KERNELS, processes.map(stale, KERNELS)) if is_stale]
        made = dict(zip(chosen, processes.map(lowered_again, chosen)))
        entries = dict(zip(chosen, processes.map(entry, (KERNELS[name] for name in chosen), made.values())))
    for line in changes(known[1], made, set(known[0]) - {*KERNELS}):
        print(line)
    FOLDER.mkdir(exist_ok=True)
    written = {name: entries.get(name) or known[0][name] for name in sorted(KERNELS)}
    both = {name: (made[name].source, made[name].host_plan) if name in made else known[1][name] for name in written}
    INDEX.write_text(json.dumps({name: asdict(found) for name, found in written.items()}, indent=1) + "\n")
    TEXTS.write_bytes(lzma.compress(json.dumps(both).encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(made)} of {len(KERNELS)} kernels were lowered; {TEXTS.name} has {TEXTS.stat().st_size:,} bytes")


def changes(before: dict[str, tuple[str, str]], made: dict[str, Code], gone: Iterable[str]) -> Iterator[str]:
    """Says which kernels are new, which changed in how many lines, and which are gone."""
    for name, now in made.items():
        if name not in before:
            yield f"{name}: new"
            continue
        for part, old, new in zip(("CUDA", "the plan of the host"), before[name], (now.source, now.host_plan)):
            lines = [*unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")][2:]
            added, removed = (sum(line.startswith(sign) for line in lines) for sign in "+-")
            if lines:
                yield f"{name}: {part} has {added} lines more and {removed} lines less"
    yield from (f"{name}: gone" for name in sorted(gone))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
