"""The table's rows are faults, its columns the lowerings that have a proof: a cell says what is changed in a kernel."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from golden_kernels import KERNELS
from once import Kernel, lowered

from faults.host import edited
from faults.others import OTHERS
from faults.places import changed
from tl_attention.codeproof.verdict import GeneratedCode

LOWERINGS = ("warp_specialized", "pipelined", "mma_sync")
# Kernels of the lowerings, in this order.
SMALL = ("best", "seed", "mma_sync_small")
LARGE = ("best", "seed", "mma_sync")
ASKED = ("best, asked", "seed, asked", "mma_sync_small, asked")


@dataclass(frozen=True)
class Edit:
    """An edit has changes of a kernel's code, as `places.py` reads them, and the words of the refusal.

    A change with := is of a value in the host's plan, as `host.py` takes it. What is wrong with the text itself is an
    edit of text: patterns, which match in the whole source, and what replaces them. `which` says which of several
    matches is meant: "only" checks that there is one.
    """

    kernel: str
    words: str
    changes: tuple[str, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    which: str = "only"

    @property
    def of(self) -> Kernel:
        return KERNELS.get(self.kernel) or OTHERS[self.kernel]

    @property
    def many(self) -> bool:
        """Says whether several lines have a fault of their own."""
        return any(change.startswith("each ") for change in self.changes)

    def faulty(self) -> list[GeneratedCode]:
        """Returns the kernel's code with the fault: once, or for each line."""
        code = lowered(self.of)
        if " := " in "".join(self.changes):
            values = [(path, value) for path, _, value in (change.partition(" := ") for change in self.changes)]
            return [replace(code, host_plan=edited(code.host_plan, values))]
        sources = [self._text(code.source)]
        for change in self.changes:
            sources = [source for before in sources for source in changed(before, change)]
        return [replace(code, source=source) for source in sources]

    def _text(self, text: str) -> str:
        for pattern, replacement in self.texts:
            found = [*re.finditer(pattern, text, re.MULTILINE)]
            assert found and (len(found) == 1 or self.which != "only"), f"{pattern!r} matches {len(found)} times"
            for match in {"first": found[:1], "last": found[-1:]}.get(self.which, found[::-1]):
                text = text[: match.start()] + match.expand(replacement) + text[match.end() :]
        return text


# A fault in a kernel, or in several, or why there is none.
Cell = Edit | tuple[Edit, ...] | str


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

    def faults(self, lowering: str) -> dict[str, Edit]:
        """Returns the faults of a cell by their names, which have a number if there are several."""
        cell = getattr(self, lowering)
        several = cell if isinstance(cell, tuple) else ()
        named = {f"{self.name}, {edit.kernel} {n}, {lowering}": edit for n, edit in enumerate(several, 1)}
        return {f"{self.name}, {lowering}": cell} if isinstance(cell, Edit) else named

    def __post_init__(self) -> None:
        if not self.mma_sync:
            assert isinstance(self.pipelined, str), self.name
            object.__setattr__(self, "mma_sync", self.pipelined)


def fault(kernel: str | tuple[str, ...], words: str | tuple[str, ...], *changes: str) -> Cell:
    """Makes a cell of changes in a kernel, or in several; `words` are those of all refusals, or of each.

    A change after "or" begins another fault.
    """
    kernels = (kernel,) if isinstance(kernel, str) else kernel
    said = (words,) * len(kernels) if isinstance(words, str) else words
    begin = [n for n, change in enumerate(changes) if n == 0 or change.startswith("or ")]
    apart = [changes[n:end] for n, end in zip(begin, (*begin[1:], len(changes)))]
    found = tuple(
        Edit(name, own, tuple(change.removeprefix("or ") for change in of))
        for name, own in zip(kernels, said, strict=True)
        for of in apart
    )
    return found[0] if len(found) == 1 else found


def faults(kernels: tuple[str, ...], words: str, *changes: str) -> list[Cell]:
    """Makes cells of the same changes in several kernels."""
    return [fault(kernel, words, *changes) for kernel in kernels]


def row(kernels: tuple[str, ...], name: str, *cells: Cell | tuple[str, ...], long: bool = False) -> Row:
    """Makes a row: a cell of words and changes alone is of that of these kernels which has its lowering."""
    made: list[Any] = [
        fault(kernel, *cell) if isinstance(cell, tuple) and isinstance(cell[0], str) else cell
        for kernel, cell in zip(kernels, cells)
    ]
    return Row(name, *made, long=long)


small, large, asked = (partial(row, kernels) for kernels in (SMALL, LARGE, ASKED))


def rows(
    kernel: str | tuple[str, ...],
    why: str | tuple[str, ...],
    *of: tuple[str, ...],
    long: Sequence[tuple[str, ...]] = (),
) -> list[Row]:
    """Makes rows of one kernel, or of several of one lowering: each has a name, words and changes.

    `why` says why the other lowerings have none.
    """
    found = []
    for name, words, *changes in (*of, *long):
        cells = [*((why, why) if isinstance(why, str) else why)]
        first = Edit(kernel if isinstance(kernel, str) else kernel[0], "")
        cells.insert(LOWERINGS.index(first.of.schedule.lowering), fault(kernel, words, *changes))
        found.append(Row(name, *cells, long=any(name == of_long[0] for of_long in long)))
    return found


def edit(kernel: str, words: str, *texts: str, which: str = "only") -> Edit:
    """Makes an edit of text: of `texts` each second one replaces the one before it, and a last one alone is removed."""
    return Edit(kernel, words, (), tuple(zip(texts[::2], (*texts[1::2], ""))), which)


def edits(kernels: tuple[str, ...], words: str, *texts: str, which: str = "only") -> list[Edit]:
    """Makes cells of the same edit of text in several kernels."""
    return [edit(kernel, words, *texts, which=which) for kernel in kernels]
