"""A fault is put into generated code as text: a row for each fault has a cell for each lowering that has a proof."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from golden_kernels import KERNELS
from once import Kernel, lowered

from faults.host import edited
from faults.others import OTHERS
from tl_attention.codeproof.verdict import GeneratedCode

LOWERINGS = ("warp_specialized", "pipelined", "mma_sync")
# Kernels of the lowerings, in this order.
SMALL = ("best", "seed", "mma_sync_small")
LARGE = ("best", "seed", "mma_sync")
ASKED = ("best, asked", "seed, asked", "mma_sync_small, asked")


@dataclass(frozen=True)
class Edit:
    """An edit has patterns, what replaces them in a kernel's code, and the words of the refusal.

    Of the host's plan they are paths and values, as `host.py` takes them. Patterns match in the whole source, or in
    each line of the kernel's body that starts with `within`. `which` says which of several matches is meant: "only"
    checks that there is one, "each" makes of each line a fault of its own.
    """

    kernel: str
    words: str
    edits: tuple[tuple[str, str], ...]
    host: bool = False
    within: str = ""
    which: str = "only"

    @property
    def of(self) -> Kernel:
        return KERNELS.get(self.kernel) or OTHERS[self.kernel]

    def faulty(self) -> list[GeneratedCode]:
        """Returns the kernel's code with the fault: once, or for each line."""
        code = lowered(self.of)
        if self.host:
            return [replace(code, host_plan=edited(code.host_plan, self.edits))]
        sources = self._lines(code.source) if self.within else self._text(code.source)
        return [replace(code, source=source) for source in sources]

    def _text(self, text: str) -> Iterator[str]:
        for pattern, replacement in self.edits:
            found = [*re.finditer(pattern, text, re.MULTILINE)]
            assert found and (len(found) == 1 or self.which != "only"), f"{pattern!r} matches {len(found)} times"
            for match in {"first": found[:1], "last": found[-1:]}.get(self.which, found[::-1]):
                text = text[: match.start()] + match.expand(replacement) + text[match.end() :]
        yield text

    def _lines(self, text: str) -> Iterator[str]:
        lines = text.split("\n")
        body = next(number for number, line in enumerate(lines) if "__launch_bounds__" in line)
        found: dict[int, str] = {}
        for number, line in enumerate(lines):
            if number > body and re.match(rf"\s*(?:{self.within})", line):
                changed = line
                for pattern, replacement in self.edits:
                    changed = re.sub(pattern, replacement, changed, count=1)
                if changed != line:
                    found[number] = changed
        assert found and (len(found) == 1 or self.which == "each"), f"{self.within!r}: {len(found)} lines change"
        for number, changed in found.items():
            yield "\n".join([*lines[:number], changed, *lines[number + 1 :]])


# A fault, or why there is none.
Cell = Edit | str


@dataclass(frozen=True)
class Row:
    """A row is one fault, by its name, in each lowering. What pipelined kernels lack, mma_sync lacks too by default.

    `make test-all` alone tries what is `long`: a fault whose refusal takes longer than 0.25 s, and needs no line of the
    proof that no other fault needs. Most are of `best`, where a tile is refused that only few problems have.
    """

    name: str
    warp_specialized: Cell
    pipelined: Cell
    mma_sync: Cell = ""
    long: bool = False

    def __post_init__(self) -> None:
        if not self.mma_sync:
            assert isinstance(self.pipelined, str), self.name
            object.__setattr__(self, "mma_sync", self.pipelined)


def edit(kernel: str, words: str, *texts: str, host: bool = False, within: str = "", which: str = "only") -> Edit:
    """Makes an edit: of `texts`, each second one replaces the one before it; a last one without a second is removed."""
    pairs = tuple(zip(texts[::2], (*texts[1::2], "")))
    return Edit(kernel, words, pairs, host, within, which)


def edits(kernels: tuple[str, ...], words: str | tuple[str, ...], *texts: str, **options: Any) -> list[Edit]:
    """Makes cells of the same edit in several kernels; `words` are those of all refusals, or of each."""
    said = [words] * len(kernels) if isinstance(words, str) else words
    return [edit(kernel, own, *texts, **options) for kernel, own in zip(kernels, said, strict=True)]


def each(kernel: str, words: str, lines: str, pattern: str = ".+", replacement: str = "") -> Edit:
    """Makes a fault of each line that starts with `lines`: the line goes, or the pattern in it is replaced."""
    return edit(kernel, words, pattern, replacement, within=lines, which="each")


def only_if(condition: str) -> tuple[str, str]:
    """Returns an edit that puts a line under a condition."""
    return ".+", rf"if ({condition}) {{\n\g<0>\n}}"
