"""A TermRun runs a kernel for the threads of one process and one tile, any, with sizes that are unknown.

What depends on threads alone are numbers, as in any Run. A loop whose length is unknown runs its body once, for any of
its iterations; a condition that is unknown runs both of its sides. What was seen has marks where such a loop or side
begins and ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tl_attention.codeproof.read.expression import Expression, is_wide
from tl_attention.codeproof.read.nodes import Break, For, If, While
from tl_attention.codeproof.read.text import Kernel
from tl_attention.codeproof.run.run import Run, inside_of
from tl_attention.codeproof.run.threads import PER_THREAD, ThreadClass, Threads, Value, collapse
from tl_attention.codeproof.terms.arithmetic import TermOperators
from tl_attention.codeproof.terms.facts import Facts
from tl_attention.codeproof.terms.spread import Spread, apply, extremes, numbers
from tl_attention.codeproof.terms.term import CONSTANT, HOLDS, Term, as_number, term
from tl_attention.codeproof.verdict import Unsafe

# Marks among what was seen: a loop, the two sides of a condition, the loop over tiles and its way out, and their ends.
LOOP, BRANCH, OTHERWISE, TILES, LEAVE, END = MARKS = "loop", "branch", "otherwise", "tiles", "leave", "end"


class TermRun(Run):
    """A TermRun is a Run in which values may be Terms."""

    # What the process is told of tiles. Its `started` takes the name of a variable that is carried from tile to tile,
    # and its value before the first tile, and returns its value at the start of any tile.
    tiles: Any

    def __init__(
        self, kernel: Kernel, threads: Threads, names: Mapping[str, Value], facts: Facts, cluster: int, tiles: Any
    ):
        super().__init__(kernel, threads, names, cluster=cluster)
        self.facts, self.tiles = facts, tiles
        self._of_terms = TermOperators(facts)
        self.arithmetic = {**self._of_terms.functions, "__shfl_sync": self._shuffle, "fits": self._fits}
        self.arithmetic["may"] = lambda condition: isinstance(condition, PER_THREAD | Term) or bool(condition)
        self.wide = frozenset(kernel.signature.of("int64_t"))
        self.carried: dict[str, tuple[Value, Value]] = {}  # (before the first tile, at any tile's start), by name
        self.ends: dict[str, Value | None] = {}  # behind the tile, by name
        self.in_tile = False

    def value(self, expression: Expression, threads: ThreadClass) -> Value:
        """Returns an expression's value; raises Refused unless each result of 32 bits is shown to be in range."""
        self._class = threads
        given = {name: threads.names[name] for name in expression.names if name in threads.names}
        if any(isinstance(value, Term | Spread) for value in given.values()):
            given = {
                name: Spread({CONSTANT: value}) if isinstance(value, np.ndarray) else value
                for name, value in given.items()
            }
        constant = expression.constant
        result = eval(expression.fitting(self.wide), self.arithmetic, given) if constant is None else constant
        return as_number(self.facts.simpler(result)) if isinstance(result, Term) else collapse(numbers(result))

    def _fits(self, value: Value) -> Value:
        """Returns a result of 32 bits; raises Refused unless it is shown to be in range for all sizes."""
        for one in extremes(value) if isinstance(value, Spread) else [value]:
            if isinstance(one, Term):
                self.facts.show_fits(one)
        return value

    def assign(self, node: Any, threads: ThreadClass) -> ThreadClass:
        value = self.value(node.expression, threads)
        if is_wide(node.expression.tree, self.wide):
            # The variable has 32 bits.
            self._fits(value)
        threads.names[node.name] = as_number(self.facts.named(value)) if isinstance(value, Term) else value
        return threads

    def loop(self, node: For, threads: ThreadClass) -> ThreadClass:
        trips = self.value(node.trips, threads)
        if not isinstance(trips, Term):
            return super().loop(node, threads)
        number = self.facts.symbol(f"{node.variable}@{node.line + 1}", 0, float("inf"), below=trips)
        self.record(threads, node.line, LOOP, value=trips, index=number)
        # What an iteration gets from the one before has no value here.
        for name in node.assigned:
            threads.names.pop(name, None)
        threads.names[node.variable] = number
        with self.facts.assuming(number, trips - 1 - number):
            self.nodes(node.body, threads)
        for name in node.assigned:
            threads.names.pop(name, None)
        self.record(threads, node.line, END)
        return threads

    def branch(self, node: If, threads: ThreadClass) -> ThreadClass:
        condition = None if node.condition is None else self._truth(node.condition, threads)
        if isinstance(condition, Spread):
            return self._each_by_itself(node, condition, threads)
        if not isinstance(condition, Term):
            return super().branch(node, threads)
        sides, first = [], len(self.seen)
        for kind, side, body in ((BRANCH, condition, node.body), (OTHERWISE, 1 - condition, node.otherwise)):
            self.record(threads, node.line, kind, value=condition)
            with self.facts.assuming(*facts_of(side)):
                sides.append(self._side(node, body, threads))
        self.record(threads, node.line, END)
        if all(seen.kind in MARKS for seen in self.seen[first:]):
            # Its sides compute numbers.
            del self.seen[first:]
        self._join(node, condition, sides, threads)
        return threads

    def _side(self, node: If, body: Iterable[Any], threads: ThreadClass) -> dict[str, Value]:
        """Runs one side of a condition, and returns the variables as they are behind it."""
        side = ThreadClass(threads.threads, dict(threads.names))
        if self.nodes(body, side) is None:
            raise Unsafe(f"line {node.line + 1}: a way out of a loop under a condition")
        return side.names

    def _join(self, node: If, condition: Value, sides: Sequence[Mapping[str, Value]], threads: ThreadClass) -> None:
        """Sets variables as they are behind a condition, where they are known behind both of its sides."""
        for name in node.assigned:
            threads.names.pop(name, None)
            values = [side[name] for side in sides if name in side]
            # Where one side has zeros, the other one says where the variable is loaded.
            zeros = [isinstance(at := side.get(inside_of(name)), int) and not at for side in sides]
            if len(values) == len(sides) and any(zeros):
                threads.names[name] = values[zeros[0]]
            elif len(values) == len(sides) and all(isinstance(value, int | Term) for value in values):
                value = numbers(self.arithmetic["select"](condition, *values))
                threads.names[name] = as_number(self.facts.named(value)) if isinstance(value, Term) else value

    def _each_by_itself(self, node: If, condition: Spread, threads: ThreadClass) -> ThreadClass:
        """Runs what threads do each under its own condition: they store their elements, or load them, else zeros."""
        first = len(self.seen)
        where = next(one for n in range(len(condition)) if (one := condition[n]).constant is None)
        otherwise = self._side(node, node.otherwise, threads)
        behind = len(self.seen)
        self._join(node, condition, (self._side(node, node.body, threads), otherwise), threads)
        for number, seen in enumerate(self.seen[first:], first):
            if (seen.kind, number < behind) != ("output", False) and seen.kind != "arithmetic":
                raise Unsafe(f"line {seen.line + 1} is run by a thread where {where}, by others elsewhere")
            if "inside" in seen.values:
                raise Unsafe(f"line {seen.line + 1} is run by threads under two conditions")
            seen.values["inside"] = condition
        loads = node.assigned.intersection(map(inside_of, node.assigned)) & threads.names.keys()
        if not loads and all(seen.kind == "arithmetic" for seen in self.seen[first:]):
            raise Unsafe(f"line {node.line + 1}: a thread computes where {where}, and not elsewhere")
        return threads

    def _truth(self, condition: Expression, threads: ThreadClass) -> Value:
        truth = self.value(condition, threads)
        if isinstance(truth, Spread):
            truth = numbers(apply(lambda one: self.facts.simpler(self._of_terms.truth(one)), truth))
        if isinstance(truth, Term):
            truth = as_number(self.facts.decided(self._of_terms.truth(truth)))
        if isinstance(truth, Term | Spread):
            return truth
        return truth != 0 if isinstance(truth, np.ndarray) else bool(truth)

    def repeat(self, node: While, threads: ThreadClass) -> ThreadClass:
        if self.in_tile:
            raise Unsafe(f"line {node.line + 1}: a loop over tiles inside of another")
        self.in_tile = True
        self.carried = {}
        for name in sorted(node.assigned):
            before = threads.names.pop(name, None)
            started = None if before is None else self.tiles.started(name, before)
            if started is not None:
                threads.names[name] = started
                self.carried[name] = before, started
        self.record(threads, node.line, TILES)
        here = self.facts.here
        try:
            self.nodes(node.body, threads)
        finally:
            self.facts.move(here)
        self.record(threads, node.line, END)
        self.ends = {name: threads.names.get(name) for name in self.carried}
        for name in node.assigned:
            threads.names.pop(name, None)
        return threads

    def leave(self, node: Break, threads: ThreadClass) -> ThreadClass | None:
        condition = self._truth(node.condition, threads)
        self.record(threads, node.line, LEAVE, value=condition)
        # What holds of a tile that is there.
        self.facts.move((*self.facts.here, *map(term, self.tiles.exists_if)))
        return threads


def facts_of(condition: Term) -> list[Term]:
    """Returns terms that are not negative where a condition is 1: of each of its comparisons, and of the whole."""
    facts = [condition - 1]
    if len(condition.parts) == 1:
        ((monomial, factor),) = condition.parts.items()
        facts += [atom.of for atom in monomial if atom.kind == HOLDS and factor == 1]
    negation = 1 - condition
    if len(negation.parts) == 1:
        ((monomial, factor),) = negation.parts.items()
        facts += [-atom.of - 1 for atom in monomial if len(monomial) == 1 and factor == 1 and atom.kind == HOLDS]
    return facts
