"""This module runs a generated kernel for all threads of some blocks, and keeps what they do.

Lines run in classes of threads (`threads.py`). Nothing waits: what a class does after a wait is what it does once the
wait has passed, so roles may run one after another.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tl_attention.codeproof.read.declarations import Declared
from tl_attention.codeproof.read.expression import UNREADABLE, Expression
from tl_attention.codeproof.read.nodes import (
    NO_REGISTERS,
    Arithmetic,
    Assign,
    Declare,
    For,
    If,
    Leave,
    Made,
    Registers,
    Step,
    While,
)
from tl_attention.codeproof.read.text import Call, Kernel
from tl_attention.codeproof.run.affine import Core
from tl_attention.codeproof.run.iterations import Iterations
from tl_attention.codeproof.run.threads import NUMBERS, Class, Threads, Value, settled
from tl_attention.codeproof.tiles.row_tiles import Entries
from tl_attention.codeproof.tiles.tile_numbers import TileNumbers
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.warpgroup import WARP


@dataclass(slots=True)
class Seen:
    """A Seen is what a line did in a run, of which kind and with which values, for the threads of a class.

    `threads` has their numbers. Each value is one for all threads, or has one for each of them.
    """

    line: int
    kind: str
    name: str
    threads: np.ndarray
    values: dict[str, Value]
    turn: int
    registers: Registers = NO_REGISTERS


@dataclass(frozen=True)
class Extent:
    """An Extent says how many tiles of a block run, and how many iterations of each long loop, its middle left out.

    If a loop has more than `head` + 2 * `period` iterations, the first `head` and at least the last `period` run, and
    between them a multiple of `period` is left out. `ends` runs the first and the last iteration alone, for all threads
    together however long their loops are.
    """

    tiles: int
    head: int = 1 << 62
    period: int = 1
    ends: bool = False

    def iterations(self, count: int) -> Iterator[tuple[int, int]]:
        """Yields (iteration, how many were left out right before it) for each iteration that runs, of `count`."""
        rest = count - self.head
        if rest <= 2 * self.period:
            yield from ((t, 0) for t in range(count))
            return
        left_out = (rest - self.period) // self.period * self.period
        yield from ((t, 0) for t in range(self.head))
        yield from ((t, left_out if t == self.head + left_out else 0) for t in range(self.head + left_out, count))


@dataclass
class Run:
    """A Run executes a kernel for all threads of some blocks, and keeps what each line did.

    `seen` is what happened, `ran` the lines that ran, `outcomes` the outcomes of each condition. `whole` is whether the
    blocks are those of a launch, and work on all of its tiles; `workers` is how many clusters there are. `sizes` are those
    of the problem, and `entries` the list of packed sequences' tiles. `reached` has,
    for each line, the number of the first tile that the line ran for.

    `turn` counts the tiles of a block. What loops over tiles count starts with `start`; `residues` are, modulo the
    period, the values of what a line has modulo one. `compared` has, for each comparison with something counted, how
    far the counted side was above the other, and in which iterations. `trips` has the most iterations that a loop had
    for a thread, by the name of its counter.
    """

    kernel: Kernel
    threads: Threads
    names: Mapping[str, Value]
    lengths: Extent
    cluster: int = 1
    counter: Mapping[str, Sequence[int]] = field(default_factory=dict)
    iterations: Iterations = field(default_factory=lambda: Iterations())
    start: int = 0
    whole: bool = True
    workers: int = 0
    sizes: Any = None
    entries: Entries | None = None

    def __post_init__(self) -> None:
        self.seen: list[Seen] = []
        self.ran: set[int] = set()
        self.reached: dict[int, int] = {}
        self.outcomes: dict[int, set[bool]] = defaultdict(set)
        self.residues: dict[tuple[int, Core], set[int]] = defaultdict(set)
        self.trips: dict[str, int] = defaultdict(int)
        self.compared: dict[tuple[int, int], set[tuple[int, tuple[str, ...]]]] = defaultdict(set)
        self.tiles = TileNumbers(self.threads, self.counter, self.whole, self.entries)
        # The tensor that a variable's elements come from, and how many elements it has, by variable.
        self.fetched: dict[str, tuple[str, int]] = {}
        self._broke: list[list[Class]] = []
        self.arithmetic = {**NUMBERS, "__shfl_sync": self._shuffle}
        self._class: Class | None = None
        self.turn = 0
        # For whoever reads what was seen.
        self.noted: dict[tuple[str, int], np.ndarray] = {}

    def go(self) -> list[Seen]:
        """Runs the whole kernel, and returns a list of Seens, which say what each line did."""
        threads = self.threads
        everyone = Class(
            np.arange(len(threads)),
            {
                "threadIdx_x": threads.x,
                "threadIdx_y": threads.y,
                "blockIdx_x": threads.block,
                "tl__block_rank_in_cluster": threads.block % self.cluster,
                **self.names,
            },
        )
        self.nodes(self.kernel.body, everyone)
        return self.seen

    # --- what calls ask for ------------------------------------------------------------------------------------

    def value(self, expression: Expression, threads: Class) -> Value:
        """Returns an expression's value for a class of threads, one number or an array with one for each thread."""
        self._class = threads
        return expression(self.arithmetic, threads.names)

    def see(self, threads: Class, line: int, kind: str, name: str = "", **values: Value) -> None:
        """Keeps what a line did for a class of threads, as a Seen with this kind, name and these values."""
        self.seen.append(Seen(line, kind, name, threads.threads, values, self.turn))

    def rank_of(self, thread: int) -> int:
        """Returns the number of a thread's block in its cluster."""
        return int(self.threads.block[thread]) % self.cluster

    def _shuffle(self, lanes: int, value: Value, lane: int) -> Value:
        """Returns, for each thread, what lane `lane` of its warp has; raises Unsafe unless whole warps take part."""
        here = self.threads.lanes
        if lanes != (1 << WARP) - 1 or not self._class or not self._class.whole_warps(here) or lane >= here:
            raise Unsafe(f"lanes {lanes:#x} of a warp take what lane {lane} has, expected all lanes of whole warps")
        if not isinstance(value, np.ndarray):
            return value
        return np.repeat(value.reshape(-1, here)[:, lane], here)

    # --- statements --------------------------------------------------------------------------------------------

    def nodes(self, nodes: Iterable[Any], threads: Class) -> Class | None:
        """Runs statements for a class of threads; returns the class that gets to their end, None if all leave."""
        for node in nodes:
            if isinstance(node, Arithmetic):
                self.ran.update(node.lines)
                self.see(threads, node.lines[0], "mask" if node.mask else "arithmetic")
                self.seen[-1].registers = node.registers
                continue
            if node.line not in self.ran:
                self.ran.add(node.line)
                first = int(self.threads.block[threads.threads[0]])
                self.reached[node.line] = first // self.cluster + self.turn * self.workers
            try:
                self._count(node.line, threads)
                rest = getattr(self, RUNS[type(node)])(node, threads)
            except UNREADABLE as error:
                raise Unsafe(f"line {node.line + 1} cannot be read: {error}") from None
            if rest is None:
                return None
            threads = rest
        return threads

    def _count(self, line: int, threads: Class) -> None:
        """Notes in which iterations, modulo the period, a line ran, and how the line's comparisons came out."""
        for core in self.iterations.cores.get(line, ()):
            value = sum(factor * threads.names[name] for name, factor in core) % self.iterations.states(line, core)
            self.residues[line, core].update(value.tolist() if isinstance(value, np.ndarray) else (value,))
        for number, comparison in enumerate(self.iterations.comparisons.get(line, ())):
            above = comparison.sign * self.value(comparison.above, threads)
            at = tuple(str(threads.names[name]) for name in comparison.counted)
            self.compared[line, number].add((int(np.max(above)), at))

    def step(self, node: Step, threads: Class) -> Class:
        before = len(self.seen)
        node.act(self, threads, node.line)
        if self.lengths.ends and before == len(self.seen):
            self.see(threads, node.line, "step", node.kind)
        for seen in self.seen[before:]:
            seen.registers = node.registers
        return threads

    def declare(self, node: Declare, threads: Class) -> Class:
        threads.names.pop(node.name, None)
        return threads

    def assign(self, node: Assign, threads: Class) -> Class:
        threads.names[node.name] = self.value(node.expression, threads)
        return threads

    def loop(self, node: For, threads: Class) -> Class:
        trips = self.value(node.trips, threads)
        if not node.unrolled:
            self.trips[node.variable] = max(self.trips[node.variable], int(np.max(trips)))
        if self.lengths.ends and node.trips.constant is None:
            return self._ends(node, threads, trips)
        parts = []
        for count, part in threads.split(trips):
            parts.append(part)
            # A loop that is written out is of one tile.
            for t, left_out in ((t, 0) for t in range(count)) if node.unrolled else self.lengths.iterations(count):
                if left_out:
                    self.see(part, node.line, "left out", value=left_out)
                part.names[node.variable] = t
                self.nodes(node.body, part)
        threads.rejoin(parts, node.assigned)
        return threads

    def _ends(self, node: For, threads: Class, trips: Value) -> Class:
        """Runs the first and the last iteration of a loop, for the threads that have such iterations."""
        self.see(threads, node.line, "loop", value=trips)
        trips = np.broadcast_to(trips, threads.threads.shape)
        for chosen, iteration in ((trips >= 1, np.zeros_like(trips)), (trips >= 2, trips - 1)):
            if chosen.any():
                part = threads.part(chosen)
                part.names[node.variable] = settled(iteration[chosen])
                self.nodes(node.body, part)
                threads.rejoin([part], node.assigned)
        return threads

    def repeat(self, node: While, threads: Class) -> Class:
        parts, ended = [threads], []
        for name in self.iterations.carried.get(node.line, ()) if self.start else ():
            threads.names[name] += self.start
        for turn in range(self.lengths.tiles):
            self.turn = turn
            if not parts:
                break
            self._broke.append([])
            going = [rest for part in parts if (rest := self.nodes(node.body, part))]
            ended += self._broke.pop()
            parts = going
        threads.rejoin([*ended, *parts], node.assigned)
        return threads

    def leave(self, node: Leave, threads: Class) -> Class | None:
        staying = None
        for outcome, part in threads.split(self._truth(node.condition, threads)):
            self.outcomes[node.line].add(bool(outcome))
            if outcome:
                self._broke[-1].append(part)
            else:
                staying = part
        return staying

    def branch(self, node: If, threads: Class) -> Class:
        condition = self._elected(node, threads) if node.condition is None else self._truth(node.condition, threads)
        parts, turn = [], self.turn
        for outcome, part in sorted(threads.split(condition), key=lambda found: -found[0]):
            # Another role may have worked on its tiles already.
            self.turn = turn
            if node.condition:
                self.outcomes[node.line].add(bool(outcome))
            self.nodes(node.body if outcome else node.otherwise, part)
            parts.append(part)
        threads.rejoin(parts, node.assigned)
        return threads

    def _truth(self, condition: Expression, threads: Class) -> Value:
        found = self.value(condition, threads)
        return found != 0 if isinstance(found, np.ndarray) else bool(found)

    def _elected(self, node: If, threads: Class) -> np.ndarray:
        """Returns a bool for each thread, true if a branch elects it; raises Unsafe unless whole warps get there.

        The hardware may take any lane of a warp that has come together.
        """
        if not threads.whole_warps(self.threads.lanes):
            raise Unsafe(f"line {node.line + 1} elects a lane of a part of a warp")
        x = self.threads.x[threads.threads]
        warp = x // WARP
        every = (node.elect or 0) // WARP
        return (x % WARP == 0) & (warp % every == 0 if every else warp == 0)


def seen(kind: str, name: str = "", **values: Any) -> Made:
    """Returns a Made that keeps a Seen of this kind when it runs, with the values of its expressions."""
    given = {key: value for key, value in values.items() if not isinstance(value, Expression)}
    evaluated = [(key, value) for key, value in values.items() if isinstance(value, Expression)]

    def act(run: Run, threads: Class, line: int) -> None:
        found = {key: run.value(expression, threads) for key, expression in evaluated}
        run.see(threads, line, kind, name, **given, **found)

    return Made(act)


def plain(kind: str) -> Callable[[str], Call]:
    """Returns a function that makes a Call of `kind` from a regex; the value noted is the number in group 1, or 0."""

    def named(pattern: str) -> Call:
        def build(match: re.Match[str], declared: Declared) -> Made:
            return seen(kind, value=int(match[1]) if match.groups() else 0)

        return Call(kind, re.compile(pattern), build)

    return named


def nothing(match: re.Match[str], declared: Declared) -> Made:
    """Returns a Made that does nothing, for a call whose effect does not matter."""
    return Made(lambda run, threads, line: None)


# The method that runs a statement, by its type.
RUNS = {
    Step: "step", Assign: "assign", Declare: "declare", For: "loop", While: "repeat", Leave: "leave", If: "branch",
}  # fmt: skip
