"""This module runs a generated kernel for all threads of some blocks, and keeps what they do.

Lines run in classes of threads (`threads.py`). Nothing waits: what a class does after a wait is what it does once the
wait has passed, so roles may run one after another.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tl_attention.codeproof.read.declarations import Declarations
from tl_attention.codeproof.read.expression import UNREADABLE, Expression
from tl_attention.codeproof.read.nodes import (
    NO_REGISTERS,
    Arithmetic,
    Assign,
    Break,
    CallNode,
    Declare,
    Effect,
    For,
    If,
    Registers,
    While,
)
from tl_attention.codeproof.read.text import Form, Kernel
from tl_attention.codeproof.run.threads import NUMBERS, ThreadClass, Threads, Value
from tl_attention.codeproof.terms.term import Refused
from tl_attention.codeproof.tiles.tile_numbers import TileList, TileNumbers
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.warpgroup import WARP


@dataclass(slots=True)
class Observation:
    """An Observation is what a line did once in a run: its kind, the threads that ran it, and their values."""

    line: int
    kind: str
    name: str
    threads: np.ndarray  # their numbers
    values: dict[str, Value]  # each one value for all threads, or one for each of them
    turn: int
    registers: Registers = NO_REGISTERS


@dataclass
class Run:
    """A Run executes a kernel for all threads of some blocks, and keeps what each line did."""

    kernel: Kernel
    threads: Threads
    names: Mapping[str, Value]
    most: int = 1  # the tiles of each block that run
    cluster: int = 1
    counter: Mapping[str, Sequence[int]] = field(default_factory=dict)
    whole: bool = True  # whether the blocks are those of a launch, and work on all of its tiles
    entries: TileList | None = None  # the list of packed sequences' tiles

    def __post_init__(self) -> None:
        self.seen: list[Observation] = []
        self.ran: set[int] = set()  # the lines that ran
        self.outcomes: dict[int, set[bool]] = defaultdict(set)  # of each condition
        self.trips: dict[str, int] = defaultdict(int)  # most iterations of a loop for a thread, by its counter's name
        self.tiles = TileNumbers(self.threads, self.counter, self.whole, self.entries)
        self._broke: list[list[ThreadClass]] = []
        self.arithmetic = {**NUMBERS, "__shfl_sync": self._shuffle}
        self._class: ThreadClass | None = None
        self.turn = 0  # counts each block's tiles
        # For whoever reads what was seen.
        self.noted: dict[tuple[str, int], np.ndarray] = {}

    def go(self) -> list[Observation]:
        """Runs the whole kernel, and returns a list of Observations, which say what each line did."""
        threads = self.threads
        everyone = ThreadClass(
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

    def value(self, expression: Expression, threads: ThreadClass) -> Value:
        """Returns an expression's value for a class of threads, one number or an array with one for each thread."""
        self._class = threads
        return expression(self.arithmetic, threads.names)

    def record(self, threads: ThreadClass, line: int, kind: str, name: str = "", **values: Value) -> None:
        """Keeps what a line did for a class of threads, as an Observation with this kind, name and these values."""
        self.seen.append(Observation(line, kind, name, threads.threads, values, self.turn))

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

    def nodes(self, nodes: Iterable[Any], threads: ThreadClass) -> ThreadClass | None:
        """Runs statements for a class of threads; returns the class that gets to their end, None if all leave."""
        for node in nodes:
            if isinstance(node, Arithmetic):
                self.ran.update(node.lines)
                self.record(threads, node.lines[0], "mask" if node.mask else "arithmetic")
                self.seen[-1].registers = node.registers
                # What was loaded, or zero, is not known any more.
                for name in node.assigned & threads.names.keys():
                    del threads.names[name]
                continue
            self.ran.add(node.line)
            try:
                rest = getattr(self, RUNS[type(node)])(node, threads)
            except Refused as error:
                raise Unsafe(f"line {node.line + 1}: {error}") from None
            except UNREADABLE as error:
                raise Unsafe(f"line {node.line + 1} cannot be read: {error}") from None
            if rest is None:
                return None
            threads = rest
        return threads

    def step(self, node: CallNode, threads: ThreadClass) -> ThreadClass:
        before = len(self.seen)
        node.act(self, threads, node.line)
        for seen in self.seen[before:]:
            seen.registers = node.registers
        return threads

    def declare(self, node: Declare, threads: ThreadClass) -> ThreadClass:
        threads.names.pop(node.name, None)
        return threads

    def assign(self, node: Assign, threads: ThreadClass) -> ThreadClass:
        threads.names[node.name] = self.value(node.expression, threads)
        return threads

    def loop(self, node: For, threads: ThreadClass) -> ThreadClass:
        trips = self.value(node.trips, threads)
        if not node.unrolled:
            self.trips[node.variable] = max(self.trips[node.variable], int(np.max(trips)))
        parts = []
        for count, part in threads.split(trips):
            parts.append(part)
            for t in range(count):
                part.names[node.variable] = t
                self.nodes(node.body, part)
        threads.rejoin(parts, node.assigned)
        return threads

    def repeat(self, node: While, threads: ThreadClass) -> ThreadClass:
        parts, ended = [threads], []
        for turn in range(self.most):
            self.turn = turn
            if not parts:
                break
            self._broke.append([])
            going = [rest for part in parts if (rest := self.nodes(node.body, part))]
            ended += self._broke.pop()
            parts = going
        threads.rejoin([*ended, *parts], node.assigned)
        return threads

    def leave(self, node: Break, threads: ThreadClass) -> ThreadClass | None:
        staying = None
        for outcome, part in threads.split(self._truth(node.condition, threads)):
            self.outcomes[node.line].add(bool(outcome))
            if outcome:
                self._broke[-1].append(part)
            else:
                staying = part
        return staying

    def branch(self, node: If, threads: ThreadClass) -> ThreadClass:
        condition = self._elected(node, threads) if node.condition is None else self._truth(node.condition, threads)
        parts, turn = [], self.turn
        # Threads with nothing to do have no variables of their own that anybody reads.
        idle = (
            () if node.assigned else [outcome for outcome, side in enumerate((node.otherwise, node.body)) if not side]
        )
        for outcome, part in sorted(threads.split(condition, idle), key=lambda found: -found[0]):
            # Another role may have worked on its tiles already.
            self.turn = turn
            if node.condition:
                self.outcomes[node.line].add(bool(outcome))
            if part is not None:
                self.nodes(node.body if outcome else node.otherwise, part)
                parts.append(part)
        threads.rejoin(parts, node.assigned)
        return threads

    def _truth(self, condition: Expression, threads: ThreadClass) -> Value:
        value = self.value(condition, threads)
        return value != 0 if isinstance(value, np.ndarray) else bool(value)

    def _elected(self, node: If, threads: ThreadClass) -> np.ndarray:
        """Returns a bool for each thread, true if a branch elects it; raises Unsafe unless whole warps get there."""
        # The hardware may take any lane of a warp that has come together.
        if not threads.whole_warps(self.threads.lanes):
            raise Unsafe(f"line {node.line + 1} elects a lane of a part of a warp")
        x = self.threads.x[threads.threads]
        warp = x // WARP
        every = (node.elect or 0) // WARP
        return (x % WARP == 0) & (warp % every == 0 if every else warp == 0)


def inside_of(variable: str) -> str:
    """Returns the name by which a run keeps where a variable was loaded: 1 there, 0 where it is zeros."""
    # Generated code is ASCII, so that none of its variables has this name.
    return f"{variable}·inside"


def recorder(kind: str, name: str = "", **values: Any) -> Effect:
    """Returns an Effect that keeps an Observation of this kind when it runs, with the values of its expressions."""
    given = {key: value for key, value in values.items() if not isinstance(value, Expression)}
    evaluated = [(key, value) for key, value in values.items() if isinstance(value, Expression)]

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        read = {key: run.value(expression, threads) for key, expression in evaluated}
        run.record(threads, line, kind, name, **given, **read)

    return Effect(act)


def numbered_call(kind: str) -> Callable[[str], Form]:
    """Returns a function that makes a Form from a regex, which notes the number in group 1, or else 0."""

    def named(pattern: str) -> Form:
        def build(match: re.Match[str], declared: Declarations) -> Effect:
            return recorder(kind, value=int(match[1]) if match.groups() else 0)

        return Form(kind, re.compile(pattern), build)

    return named


def no_effect(match: re.Match[str], declared: Declarations) -> Effect:
    """Returns an Effect that does nothing, for a call whose effect does not matter."""
    return Effect(lambda run, threads, line: None)


# The method that runs a statement, by its type.
RUNS = {
    CallNode: "step", Assign: "assign", Declare: "declare", For: "loop", While: "repeat", Break: "leave", If: "branch",
}  # fmt: skip
