"""This module finds the places in generated code at which a role begins to do something else, and what it does there.

The time between two such places has a name then: a wait, the issue of a product, a load, a group of vector statements.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tl_attention.codeproof.read.calls import CALLS
from tl_attention.codeproof.read.nodes import Arithmetic, Break, CallNode, For, If, While
from tl_attention.codeproof.read.text import read
from tl_attention.codeproof.run.run import numbered_call

# What a role may do. "tile" begins a tile, and "end" ends the kernel.
KINDS = ("tile", "wait", "issue", "load", "fragments", "vector", "store", "end")
# The first line of a loop that has marks: each of them comes at most once until the next such line.
ITERATION = "iteration"
# A line at which a loop or a branch with marks begins or ends: what was marked before it was marked on every way there.
BORDER = "border"
# The vector statements in the order of the loop, each with the variables that it writes.
WRITES = {
    "mask": (),
    "row_max": ("scores_max", "scores_max_clear", "block_max"),
    "scale": ("scores_scale",),
    "exp": ("acc_s",),
    "row_sum": ("denominator", "scores_sum"),
    "cast": ("acc_s_cast",),
    "rescale": ("acc_o",),
}
STATEMENT_OF = {variable: name for name, variables in WRITES.items() for variable in variables}
NAMED_BARRIER = "named barrier"
ARRIVAL = re.compile(r"(\w+)\[.*\]\.arrive\(|tl::__named_barrier_arrive\(")
PRODUCT_OF = {"acc_s": "mma0", "acc_o": "mma1"}
# acc_s_1 is acc_s in another scope.
NUMBERED = re.compile(r"_\d+$")
TENSOR = re.compile(r"\b([QKV])(?:_desc|_shared)\b")
ACCUMULATOR = re.compile(rf"\((?:reinterpret_cast<float\*>\()?({'|'.join(PRODUCT_OF)}) \+ ")
# Where TileLang itself specialises warps, as in `inferred`, all mbarriers are one array, with a place for each ring:
# mbarrier[(kv & 1)]    mbarrier[((kv & 1) + 4)]    mbarrier[8]
PLACE = re.compile(r"\bmbarrier\[(?:(\d+)|\([^]]* \+ (\d+)\)|[^]]+)\]")
LOADED = re.compile(rf"tl::tma_load\((\w)_desc, {PLACE.pattern}")
# Calls of such code that marks are told from. No proof knows them: its kernels have no Program to be compared with.
SPECIALISED = (
    numbered_call("mbarrier")(r"mbarrier\[.+\]\.(?:init|wait|arrive|arrive_and_expect_tx)\(.*\);$"),
    numbered_call("exchange")(r"\w+\[\w+\] = tl::AllReduce<tl::\w+Op, 4, 1, 128, .+>::run\(\w+\[\w+\]\);$"),
    numbered_call("lse")(r"tl_attention_store_lse\(.+, \(\(\(int\)threadIdx\.x\) - 128\)\);$"),
)


@dataclass(frozen=True)
class Mark:
    """A Mark is a place before line number `line` of generated code, and what follows it there, by kind and name."""

    line: int
    kind: str
    name: str = ""  # of a barrier, a product or a tensor, or of vector statements with + between them

    def goes_on(self, other: Mark) -> bool:
        """Says whether a mark right behind this one belongs to the same vector statements or product."""
        if self.kind != other.kind:
            return False
        # What sets up a product has no name.
        return self.kind == "vector" or self.name == other.name or (self.kind == "issue" and not self.name)

    def and_then(self, other: Mark) -> Mark:
        """Returns one mark for this one and another right behind it, with what follows each."""
        names = {*self.name.split("+"), *other.name.split("+")} - {""}
        return replace(self, name="+".join(sorted(names, key=lambda name: ([*WRITES, name].index(name), name))))


def places(source: str, kinds: Iterable[str] = KINDS) -> tuple[Mark, ...]:
    """Returns the places for marks of these kinds, and of each ITERATION and BORDER, in the order of the code's lines.

    Raises SyntaxError for code that the reader does not know.
    """
    lines = source.split("\n")
    marks: list[Mark | None] = []
    for mark in _Places(lines, frozenset(kinds)).among(read(source, (*SPECIALISED, *CALLS)).body):
        last = marks[-1] if marks else None
        if mark and last and last.goes_on(mark):
            marks[-1] = last.and_then(mark)
        elif (
            mark and last and (last.kind, mark.kind) == ("wait", "vector") and ACCUMULATOR.search(lines[last.line + 1])
        ):
            # Behind the arrivals that follow a wait for a product, a mark would hold them back: it stands before them.
            marks.append(replace(mark, line=last.line + 2))
        else:
            marks.append(mark)  # None keeps apart what stands before and behind a loop or a branch.
    end = [Mark(max(number for number, line in enumerate(lines) if line == "}"), "end")] if "end" in kinds else []
    return (*sorted(filter(None, marks), key=lambda mark: mark.line), *end)


def arrivals(source: str, marks: Sequence[Mark]) -> tuple[tuple[str, ...], ...]:
    """Returns for each mark the names of the barriers at which a role arrives between this mark and the next."""
    barriers: list[list[str]] = [[] for _ in marks]
    lines = [mark.line for mark in marks]
    for number, line in enumerate(source.split("\n")):
        if (match := ARRIVAL.search(line)) and (before := bisect_right(lines, number)):
            barriers[before - 1].append(match[1] or NAMED_BARRIER)
    return tuple(tuple(dict.fromkeys(names)) for names in barriers)


class _Places:
    """A _Places goes through a kernel's statements, and says which of these kinds of things each does."""

    def __init__(self, lines: Sequence[str], kinds: frozenset[str]):
        self.lines, self.kinds = [line.strip() for line in lines], kinds
        self.indents = [len(line) - len(line.lstrip()) for line in lines]

    def among(self, nodes: Iterable[Any]) -> Iterator[Mark | None]:
        """Yields a Mark for each statement that does something, and None where a loop or a branch begins or ends."""
        for node in nodes:
            does = [mark for mark in self.does(node) if mark.kind in self.kinds]
            kinds = {mark.kind for mark in does}
            if isinstance(node, (For, If, While)) and (len(kinds) > 1 or kinds & {"wait", "tile"}):
                yield None
                yield from self._inside(node)
                yield None
            elif does:
                first = replace(does[0], line=self._first(node))
                for other in does[1:]:
                    first = first.and_then(other)
                yield first

    def _inside(self, node: Any) -> Iterator[Mark | None]:
        yield Mark(self._first(node), BORDER)
        if isinstance(node, (For, While)):
            yield Mark(node.line + 1, ITERATION)
            yield None
        if isinstance(node, While) and "tile" in self.kinds:
            leave = next(inner for inner in node.body if isinstance(inner, Break))
            yield Mark(leave.line + 1, "tile")
        yield from self.among(node.body)
        end = self._end(node.line)
        yield Mark(end, BORDER)
        if otherwise := getattr(node, "otherwise", ()):
            yield None
            yield from self.among(otherwise)
            yield Mark(self._end(end), BORDER)

    def _end(self, number: int) -> int:
        """Returns the number of the line that closes what a line opens."""
        indent = self.indents[number]
        return next(n for n in range(number + 1, len(self.lines)) if self.indents[n] <= indent)

    def _first(self, node: Any) -> int:
        """Returns the number of a statement's first line, which may be a directive."""
        number = min(node.lines) if isinstance(node, Arithmetic) else node.line
        return number - 1 if self.lines[number - 1].startswith("#pragma") else number

    def does(self, node: Any) -> Iterator[Mark]:
        """Yields a Mark for each thing that a statement does, and the statements inside it."""
        if isinstance(node, CallNode):
            kind = node.kind.partition(",")[0]
            if kind in OF_CALLS:
                yield from OF_CALLS[kind](self, node.line)
        elif isinstance(node, Arithmetic):
            written = (NUMBERED.sub("", name) for name in node.registers.written)
            names = {"mask"} if node.mask else {STATEMENT_OF[name] for name in written if name in STATEMENT_OF}
            yield from (Mark(min(node.lines), "vector", name) for name in names)
        else:
            if isinstance(node, While):
                yield Mark(node.line, "tile")
            for inner in (*getattr(node, "body", ()), *getattr(node, "otherwise", ())):
                yield from self.does(inner)

    # --- what calls do -----------------------------------------------------------------------------------------

    def mbarrier(self, line: int) -> Iterator[Mark]:
        if "].wait(" in self.lines[line]:
            yield Mark(line, "wait", self._barrier(line))

    def _barrier(self, line: int) -> str:
        """Returns the name of the mbarrier in a line, which in an array of all of them is that of a load."""
        place = PLACE.match(self.lines[line])
        if not place:
            return self.lines[line].partition("[")[0]
        # A wait is for what is loaded by the barriers of the same place, or for room for the load behind it.
        loads = [(number, load) for number, text in enumerate(self.lines) if (load := LOADED.match(text))]
        full = [load[1] for _, load in loads if load.groups()[1:] == place.groups()]
        empty = [load[1] for number, load in loads if number > line]
        return next((f"{names[0]}_{end}" for end, names in (("full", full), ("empty", empty)) if names), "mbarrier")

    def named_barrier(self, line: int) -> Iterator[Mark]:
        if "__sync_thread_partial" in self.lines[line]:
            yield Mark(line, "wait", NAMED_BARRIER)

    def products_wait(self, line: int) -> Iterator[Mark]:
        # The accumulator that is fenced behind the wait says for which product it is.
        match = ACCUMULATOR.search(self.lines[line + 1])
        yield Mark(line, "wait", PRODUCT_OF[match[1]] if match else "products")

    def product(self, line: int) -> Iterator[Mark]:
        match = ACCUMULATOR.search(self.lines[line])
        yield Mark(line, "issue", PRODUCT_OF[match[1]] if match else "")

    def exchange(self, line: int) -> Iterator[Mark]:
        yield Mark(line, "vector", "row_max" if re.search("max", self.lines[line], re.I) else "row_sum")


Does = Callable[[_Places, int], Iterator[Mark]]


def _as(kind: str, name: str = "") -> Does:
    """Returns a function that gives each call the same kind and name."""
    return lambda places, line: iter((Mark(line, kind, name),))


def _of_tensor(kind: str) -> Does:
    """Returns a function that gives a call this kind, and the name of the tensor in its line."""

    def does(places: _Places, line: int) -> Iterator[Mark]:
        match = TENSOR.search(places.lines[line])
        yield Mark(line, kind, match[1] if match else "")

    return does


# What a call does, by the kind of its line. Other calls take no time of their own.
OF_CALLS: dict[str, Does] = {
    "mbarrier": _Places.mbarrier,
    "named barrier": _Places.named_barrier,
    "sync": _as("wait", "threads"),
    "cluster sync": _as("wait", "cluster"),
    "copies wait": _as("wait", "copies"),
    "products wait": _Places.products_wait,
    "product": _Places.product,
    "descriptor": _as("issue"),
    "arrive wgmma": _as("issue"),
    "tma load": _of_tensor("load"),
    "copy": _of_tensor("load"),
    "fragment": _of_tensor("fragments"),
    "exchange": _Places.exchange,
    "output": _as("store", "output"),
    "lse": _as("store", "lse"),
    "rows of output": _as("store", "output"),
    "rows of lse": _as("store", "lse"),
    "tma store": _as("store", "output"),
    "write": _as("store", "shared"),
}
