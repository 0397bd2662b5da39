"""Reads the generated CUDA as the sequence of loads, waits, barriers and products that a thread runs.

Only structure is read: loops, branches, integer variables, and calls. What depends on data has no such call in it and
is left out; the rest depends on the sizes and the thread's role alone, and is unrolled for given ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tl_attention.hardware.warpgroup import WARP
from tl_attention.proof.events import Event
from tl_attention.proof.generated.calls import CALLS, THREAD, Make, Names, Thread
from tl_attention.proof.generated.expression import UNREADABLE, value

FOR = re.compile(r"for \(int (\w+) = 0; \1 < (.+); \+\+\1\) \{$")
IF = re.compile(r"if \((.+)\) \{$")
ELECT = re.compile(r"tl::tl_shuffle_elect<(\d+)>\(\)$")
DECLARED = re.compile(r"\bint (\w+)(?= =|[,);])")
ASSIGNED = re.compile(r"(?:int )?(\w+) = (.+);$")
SHARED = re.compile(r"void\* (\w+) = \(\(void\*\)\(\(char\*\)buf_dyn_shmem \+ (\d+)\)\);")
# What stands once for every instruction of a tile: a loop of nothing else is one event.
OF_A_TILE = {"load", "product", "read", "write", "store"}


@dataclass(frozen=True)
class _Step:
    kind: str
    make: Make


@dataclass(frozen=True)
class _Assignment:
    variable: str
    expression: str


@dataclass(frozen=True)
class _Loop:
    variable: str
    trips: str
    body: tuple


@dataclass(frozen=True)
class _While:
    body: tuple


@dataclass(frozen=True)
class _Branch:
    condition: str
    body: tuple
    otherwise: tuple


class _Break(Exception):
    """Leaves a `while`."""


def allocated_slots(source: str, shared_bytes: int, slot_bytes: int, rings: Iterable[str]) -> dict[str, int]:
    """Slots that the generated code gives each ring, by the name of its buffer."""
    starts = {name: int(offset) for name, offset in SHARED.findall(source)}
    ends = sorted([*starts.values(), shared_bytes])
    return {name: (ends[ends.index(starts[name]) + 1] - starts[name]) // slot_bytes for name in rings}


def unrolled(source: str) -> Callable[..., list[Event]]:
    """A function from the sizes, by name, and the Thread of a thread to the events of that thread, in order."""
    body = source[source.index("__launch_bounds__") :]
    lines = iter(body.splitlines()[1:])
    tree = _Reader(set(DECLARED.findall(body))).block(lines, WARP)[0]

    def events(sizes: Names, thread: Thread = Thread()) -> list[Event]:
        registers = {
            "threadIdx_x": thread.x,
            "threadIdx_y": thread.y,
            "blockIdx_x": thread.block,
            "tl__block_rank_in_cluster": lambda: thread.rank,
        }
        return list(_joined(_run(tree, {**sizes, **registers, THREAD: thread})))

    return events


class _Reader:
    """Lines to nodes. `lanes` says how many lanes of a warp run a line."""

    def __init__(self, integers: set[str]):
        self.integers = integers

    def block(self, lines: Iterator[str], lanes: int) -> tuple[tuple, bool]:
        """(the nodes up to the closing brace, whether an else branch follows)."""
        nodes: list = []
        for line in lines:
            text = line.strip()
            loop, branch = FOR.match(text), IF.match(text)
            if loop:
                nodes += _loop(loop[1], loop[2], self.block(lines, lanes)[0])
            elif branch:
                nodes += self._branch(branch[1], lines, lanes)
            elif text == "while (1) {":
                nodes.append(_While(self.block(lines, lanes)[0]))
            elif text.endswith("{ break; }"):
                nodes.append(_Branch(text[len("if (") : text.rindex(") {")], (_Step("break", _leave),), ()))
            elif text == "{":
                nodes += self.block(lines, lanes)[0]
            elif text.startswith("}"):
                return tuple(nodes), "else" in text
            else:
                nodes += self._line(text, lanes)
        return tuple(nodes), False

    def _branch(self, condition: str, lines: Iterator[str], lanes: int) -> list:
        elected = ELECT.match(condition)
        body, has_else = self.block(lines, WARP // int(elected[1]) if elected and elected[1] != "0" else lanes)
        otherwise = self.block(lines, lanes)[0] if has_else else ()
        # A tile with fewer rows than the threads could copy at once: some threads load, for all it is one load.
        some_load = "threadIdx" in condition and {getattr(node, "kind", "") for node in body} == {"load"}
        if elected or some_load:
            return list(body)
        return [_Branch(condition, body, otherwise)] if body or otherwise else []

    def _line(self, text: str, lanes: int) -> list:
        for kind, pattern, builder in CALLS:
            match = pattern.search(text)
            if match and kind != "harmless":
                return [_Step(kind, builder(match, lanes))]
            if match:
                break
        assigned = ASSIGNED.match(text)
        return [_Assignment(assigned[1], assigned[2])] if assigned and assigned[1] in self.integers else []


def _loop(variable: str, trips: str, body: Sequence) -> list:
    # The copies of one tile, or the instructions of one product: one event.
    if body and all(isinstance(node, _Step) and node.kind in OF_A_TILE for node in body):
        trips, body = "1", body[:1]
    return [_Loop(variable, trips, tuple(body))] if body else []


def _leave(names: Names) -> None:
    raise _Break


def _run(nodes: Sequence, names: Names) -> Iterator[Event]:
    for node in nodes:
        if isinstance(node, _Step):
            event = node.make(names)
            if event:
                yield event
        elif isinstance(node, _Assignment):
            # One that cannot be read is missed where it is needed.
            try:
                names[node.variable] = value(node.expression, names)
            except UNREADABLE:
                names.pop(node.variable, None)
        elif isinstance(node, _Loop):
            for trip in range(value(node.trips, names)):
                names[node.variable] = trip
                yield from _run(node.body, names)
        elif isinstance(node, _While):
            try:
                for _ in range(names[THREAD].tiles):
                    yield from _run(node.body, names)
            except _Break:
                pass
        else:
            yield from _run(node.body if value(node.condition, names) else node.otherwise, names)


def _joined(run: Iterator[Event]) -> Iterator[Event]:
    """Arrivals at one barrier of several blocks, as one event."""
    last: Event | None = None
    for event in run:
        if last and last.kind == event.kind == "arrive" and replace(last, blocks=event.blocks) == event != last:
            last = replace(last, blocks=last.blocks + event.blocks)
            continue
        if last:
            yield last
        last = event
    if last:
        yield last
