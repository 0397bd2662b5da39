"""The reader's own run runs a kernel, and all that each thread does becomes one number: two kernels are compared so.

Integers have 32 bits unless the code makes them wider. A long loop runs its first, middle and last iterations.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tl_attention.codeproof.read.declarations import WORD
from tl_attention.codeproof.read.expression import Expression, Tree, walk
from tl_attention.codeproof.read.nodes import Arithmetic, Assign, For, While, all_nodes
from tl_attention.codeproof.read.text import Kernel
from tl_attention.codeproof.run.run import Observation, Run
from tl_attention.codeproof.run.threads import ThreadClass, Value, collapse
from tl_attention.codeproof.tiles.tile_numbers import TileNumbers

# Loops of so many iterations run whole, those that are written out and the others.
UNROLLED, SHORT = 64, 8
ON_REGISTERS = ("mask", "arithmetic")
FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], dtype=np.uint64)
OF_32_BITS = {"+", "-", "*", "<<"}
# What a block counts, tile by tile: tiles and loads.
COUNTED = re.compile(r"(?:turn|base)(?:_\d+)?$")
Array = np.ndarray


def narrow(value: Value) -> Value:
    """Returns what an integer of 32 bits has where this value is assigned to it."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def short(value: Value) -> Value:
    """Returns what an integer of 16 bits has where this value is assigned to it."""
    return (value + (1 << 15)) % (1 << 16) - (1 << 15)


@dataclass(frozen=True)
class Change:
    """A Change is an expression before and after a mutant's change, which shows where the two have different values."""

    before: Expression
    after: Expression


@dataclass
class Widths:
    """Widths evaluate expressions in 32 bits, or in 64 where an operand has 64."""

    wide: frozenset[str]  # names that have 64 bits, as casts have
    known: dict[int, tuple[Expression, Expression]] = field(default_factory=dict)

    def of(self, expression: Expression) -> Expression:
        """Returns the expression with each result of 32 bits cut to these."""
        if id(expression) not in self.known:
            self.known[id(expression)] = expression, Expression(self._cut(expression.tree)[0])
        return self.known[id(expression)][1]

    def _cut(self, tree: Tree) -> tuple[Tree, bool]:
        kind, *parts = tree
        if kind in ("number", "name"):
            return tree, parts[0] in self.wide
        if kind == "call":
            given = [self._cut(part) for part in parts[1:]]
            return (kind, parts[0], *(part for part, _ in given)), parts[0] == "int64_t" or any(w for _, w in given)
        given = [self._cut(part) for part in parts]
        wide = any(w for _, w in (given[:1] if kind in ("<<", ">>") else given))
        found = (kind, *(part for part, _ in given))
        return (found if wide or kind not in OF_32_BITS else ("call", "narrow", found)), wide


@dataclass
class WatchedRun(Run):
    """A WatchedRun keeps a hash of what each thread did, and one of integers that arithmetic on registers reads."""

    widths: Widths = field(default_factory=lambda: Widths(frozenset()))
    change: Change | None = None  # of a mutant
    integers: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    starts: frozenset[int] = frozenset()  # the lines on which a block takes its first tile
    # How much later than the block's first the number of its tile is, as if it had worked on tiles before.
    later: Array = field(default_factory=lambda: np.zeros(0, dtype=int))
    start: int = 0  # where what loops over tiles count begins

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tiles = OfEach(self.threads, self.counter, self.whole, self.entries)
        self.arithmetic |= {"narrow": narrow, "int": narrow, "short": short}
        self.events, self.numbers = (np.zeros(len(self.threads), dtype=np.uint64) for _ in range(2))
        self.met = np.zeros(len(self.threads), dtype=bool)  # whether the change made a difference somewhere
        self._changed: dict[int, tuple[Expression, bool]] = {}
        self._keys: dict[tuple[Any, ...], np.uint64] = {}

    def value(self, expression: Expression, threads: ThreadClass) -> Value:
        self._class = threads
        if self.change and self._holds_change(expression):
            before, after = (self._evaluated(side, threads) for side in (self.change.before, self.change.after))
            self.met[threads.threads] |= before != after
        return self._evaluated(expression, threads)

    def _evaluated(self, expression: Expression, threads: ThreadClass) -> Value:
        return self.widths.of(expression)(self.arithmetic, threads.names)

    def _holds_change(self, expression: Expression) -> bool:
        assert self.change
        if id(expression) not in self._changed:
            self._changed[id(expression)] = expression, self.change.after.tree in walk(expression.tree)
        return self._changed[id(expression)][1]

    def record(self, threads: ThreadClass, line: int, kind: str, name: str = "", **values: Value) -> None:
        if "inside" in values:
            # Nothing is read where a copy's condition is false.
            values["source"] = np.where(np.asarray(values["inside"]) != 0, values["source"], -1)
        self._fold(self.events, threads, (line, kind, name, self.turn), values)
        if kind in ON_REGISTERS:
            read = {n: threads.names[n] for n in self.integers.get(line, ()) if n in threads.names}
            self._fold(self.numbers, threads, (line, kind, self.turn), read)
        # The run looks at how many there are, and notes registers there.
        self.seen.append(Observation(line, kind, name, threads.threads, {}, self.turn))

    def _fold(self, hashes: Array, threads: ThreadClass, what: tuple[Any, ...], values: Mapping[str, Value]) -> None:
        plain = {n: v for n, v in values.items() if not isinstance(v, (int, np.ndarray, np.integer))}
        found = np.array([self._key(what, tuple(plain.items()))])
        for name in sorted({*values} - {*plain}):
            found = found * FACTORS[0] + np.asarray(values[name]).astype(np.int64).view(np.uint64)
            found ^= found >> np.uint64(29)
        found *= FACTORS[1]
        hashes[threads.threads] = hashes[threads.threads] * FACTORS[0] ^ found ^ (found >> np.uint64(32))

    def _key(self, *what: Any) -> np.uint64:
        if what not in self._keys:
            digest = hashlib.sha256(repr(what).encode()).digest()
            self._keys[what] = np.uint64(int.from_bytes(digest[:8], "little"))
        return self._keys[what]

    def nodes(self, nodes: Iterable[Any], threads: ThreadClass) -> ThreadClass | None:
        for node in nodes:
            own = OWN.get(type(node))
            if own:
                self.ran.add(node.line)
            rest = own(self, node, threads) if own else super().nodes((node,), threads)
            if rest is None:
                return None
            threads = rest
        return threads

    def assign(self, node: Assign, threads: ThreadClass) -> ThreadClass:
        value = narrow(self.value(node.expression, threads))
        threads.names[node.name] = collapse(value + self.later[threads.threads]) if node.line in self.starts else value
        return threads

    def repeat(self, node: While, threads: ThreadClass) -> ThreadClass:
        for name in (name for name in node.assigned if COUNTED.match(name) and name in threads.names):
            threads.names[name] += self.start
        return super().repeat(node, threads)

    def loop(self, node: For, threads: ThreadClass) -> ThreadClass:
        trips = self.value(node.trips, threads)
        # A loop of fewer than no iterations has none.
        self.record(threads, node.line, "loop", value=np.maximum(trips, 0))
        trips = np.broadcast_to(trips, threads.threads.shape)
        for iteration, chosen in _iterations(trips, UNROLLED if node.unrolled else SHORT):
            part = threads if chosen.all() else threads.part(chosen)
            part.names[node.variable] = collapse(iteration[chosen])
            self.nodes(node.body, part)
            threads.rejoin([part], node.assigned)
        return threads


# What a WatchedRun does in its own way.
OWN: dict[type, Callable[[WatchedRun, Any, ThreadClass], ThreadClass]] = {
    For: WatchedRun.loop, While: WatchedRun.repeat, Assign: WatchedRun.assign,
}  # fmt: skip


class OfEach(TileNumbers):
    """OfEach are the TileNumbers of blocks that have a problem each, in which the block is the last that ends."""

    def add(self, threads: ThreadClass, counter: str, index: int, step: int) -> Array:
        found = super().add(threads, counter, index, step)
        return np.full_like(found, found[0]) if index else found


def _iterations(trips: Array, whole: int) -> Iterator[tuple[Array, Array]]:
    """Yields (iteration, which threads run it): all of up to `whole`, else the first 3, a middle one, the last 2."""
    long = trips > whole
    some = (0 * trips, 0 * trips + 1, 0 * trips + 2, trips // 2, trips - 2, trips - 1)
    for number in range(max(len(some) if long.any() else 0, min(int(trips.max(initial=0)), whole))):
        chosen = ~long & (trips > number)
        if number < len(some):
            iteration = np.where(long, some[number], number)
            chosen |= long
        else:
            iteration = np.full_like(trips, number)
        if chosen.any():
            yield iteration, chosen


def integers_of_arithmetic(kernel: Kernel, source: str) -> dict[int, tuple[str, ...]]:
    """Returns the integers that arithmetic on registers names, by its first line."""
    lines = source.split("\n")
    found = {}
    for node in all_nodes(kernel.body):
        if isinstance(node, Arithmetic):
            words = {word for line in node.lines for word in WORD.findall(lines[line])}
            found[node.lines[0]] = tuple(sorted(words & kernel.declared.integers))
    return found
