"""This module finds which expressions of a kernel depend on what its loops count, or on its tile, and refuses some.

It refuses an expression where a few iterations, or a few tiles, do not stand for all. A tile's place or a size may be
compared for equality with nothing but the smallest numbers, and never its bits: what holds for one head or one length
alone, or for one in a thousand, shows nowhere else, so no runs of samples would find it. The smallest places and sizes
are among the samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import lcm
from typing import Any

from tl_attention.codeproof.read.expression import Expression, Tree, walk
from tl_attention.codeproof.read.nodes import (
    COUNTER,
    Assign,
    Declare,
    For,
    If,
    Leave,
    Step,
    While,
    every,
    expressions_of,
)
from tl_attention.codeproof.run.affine import (
    AFFINE,
    INVARIANT,
    PERIODIC,
    THRESHOLD,
    Core,
    Forms,
    counted,
    form,
    form_of,
)
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.variant import Sizes

# The names of what tells a tile's place, and of sizes.
PLACES = frozenset({*Sizes._fields, "blockIdx_x", "blockIdx_y", "blockIdx_z"})
EQUALITIES = {"==", "!="}
SMALL = 4
BITS_OF = {"&", "|", "^", "%"}
# The names of what tells a thread.
OF_A_THREAD = {"threadIdx_x", "threadIdx_y", "tl__block_rank_in_cluster"}


@dataclass(frozen=True)
class CountedComparison:
    """A CountedComparison is a comparison in the code of what loops count with what they do not count.

    `above` is the left side less the right side; times `sign`, it grows.
    """

    above: Expression
    sign: int
    counted: tuple[str, ...]

    @classmethod
    def of(cls, line: int, comparison: Expression, names: Forms) -> CountedComparison:
        """Reads a comparison; raises Unsafe unless left side less right grows, or falls, with all counters in it."""
        above = Expression(("-", *comparison.tree[1:]))
        signs = {1 if factor > 0 else -1 for _, factor in form_of(above, names).core if factor}
        if len(signs) != 1:
            raise Unsafe(f"line {line + 1} compares what is counted in a way that is not known")
        return cls(above, signs.pop(), tuple(name for name in above.names if names[name].kind == AFFINE))


@dataclass
class Iterations:
    """Iterations say which lines of a kernel depend on loop counters, and in how many iterations each must have run.

    `cores` has, for each line, what the line has modulo a period, and the period; `comparisons` has the line's
    comparisons of something counted. `cycles` are the numbers of loads after which a ring of the Program, with its
    parities, is where it was, and tiles likewise. `carried` has, for each loop over tiles, what the loop counts from
    tile to tile. A periodic expression may otherwise depend on `plain` variables only: loop lengths and thread ids. If
    it depended on anything else of a tile, its place above all, iterations of different tiles would differ. `mixed` are
    the variables that depend on such other things, as addresses may.
    """

    cycles: tuple[int, ...] = ()
    cores: dict[int, dict[Core, int]] = field(default_factory=dict)
    carried: dict[int, set[str]] = field(default_factory=dict)
    plain: set[str] = field(default_factory=set)
    comparisons: dict[int, list[CountedComparison]] = field(default_factory=dict)
    mixed: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, body: Iterable[Any], cycles: Iterable[int] = ()) -> Iterations:
        """Finds in a kernel's statements what depends on loop counters; raises Unsafe where that has no known form."""
        body = tuple(body)
        found = cls(tuple(cycles), plain=lengths_of(body) | of_a_thread(body))
        found._nodes(body, Forms())
        return found

    @cached_property
    def period(self) -> int:
        """Returns the common period of all lines and all rings of buffers, in iterations."""
        return lcm(*self.cycles, *(period for cores in self.cores.values() for period in cores.values()))

    def states(self, line: int, core: Core) -> int:
        """Returns in how many iterations of a period a line must have run, for the sum of counters `core` in it.

        The number covers the line's own period, and the period of the ring whose slot, or parity, the line has. A slot
        has half the period of its ring; what fits no ring is held to all rings.
        """
        return self._states[line, core]

    @cached_property
    def _states(self) -> dict[tuple[int, Core], int]:
        """Returns, by (line, core), in how many iterations of a period each line must have run.

        They are kept, because `states` is called whenever a line runs.
        """
        return {
            (line, core): lcm(period, *([n for n in self.cycles if n in (period, 2 * period)] or self.cycles))
            for line, cores in self.cores.items()
            for core, period in cores.items()
        }

    def _nodes(self, nodes: Iterable[Any], names: Forms) -> None:
        for node in nodes:
            if isinstance(node, Assign):
                found = names[node.name] = form_of(node.expression, names)
                self.mixed.discard(node.name)
                if found.kind == PERIODIC:
                    self._check_plain(node.line, node.expression, names)
                elif found.kind == AFFINE and self._others(node.expression, names):
                    self.mixed.add(node.name)
            elif isinstance(node, Declare):
                names[node.name] = form(None)
            elif isinstance(node, Step):
                for name in node.assigned:
                    names[name] = form(None)
                for expression in node.expressions:
                    self._place(node.line, expression, names, {INVARIANT, AFFINE, PERIODIC, THRESHOLD})
            elif isinstance(node, For):
                self._for(node, names)
            elif isinstance(node, While):
                self._while(node, names)
            elif isinstance(node, Leave):
                # A Leave compares the number of a tile.
                continue
            elif isinstance(node, If):
                if node.condition:
                    self._place(node.line, node.condition, names, {INVARIANT, PERIODIC, THRESHOLD})
                self._branches(node, names)

    def _branches(self, node: If, names: Forms) -> None:
        sides = [Forms(names), Forms(names)]
        self._nodes(node.body, sides[0])
        self._nodes(node.otherwise, sides[1])
        for name in node.assigned:
            a, b = (side[name] for side in sides)
            same = (a.kind, a.core, a.period) == (b.kind, b.core, b.period)
            names[name] = (a if a.value is b.value else form(None)) if same else form_other(node.line, name)

    def _for(self, node: For, names: Forms) -> None:
        constant = node.trips.constant is not None and node.unrolled
        if not constant:
            self._place(node.line, node.trips, names, {INVARIANT})
        inner = Forms(names)
        # All iterations of a loop that is written out run.
        inner[node.variable] = form(None) if constant else counted(node.variable)
        self._nodes(node.body, inner)
        for name in node.assigned:
            names[name] = form(None)

    def _while(self, node: While, names: Forms) -> None:
        leaves = [inner for inner in node.body if isinstance(inner, Leave)]
        tile = {name for leave in leaves for name in leave.condition.names} | of_tiles(node.body)
        carried = self.carried[node.line] = carried_by(node.body) - tile
        inner = Forms({**names, **{name: counted(name) for name in carried}, **{name: form(None) for name in tile}})
        self._nodes(node.body, inner)
        for name in carried:
            if inner[name].kind != AFFINE or inner[name].core != ((name, 1),):
                raise Unsafe(f"{name} is carried from tile to tile, and does not grow by something that it counts")
            if name in self.mixed:
                raise Unsafe(f"{name} is carried from tile to tile, and grows by what is no length")
        for name in node.assigned:
            names[name] = form(None)

    def _place(self, line: int, expression: Expression, names: Forms, allowed: set[str]) -> None:
        try:
            found = form_of(expression, names)
        except TypeError as error:
            raise Unsafe(f"line {line + 1} cannot be read: {error}") from None
        if found.kind not in allowed:
            raise Unsafe(
                f"line {line + 1}: an expression depends on an iteration, but neither affinely nor with a period"
            )
        if found.kind == PERIODIC:
            self._check_plain(line, expression, names)
            cores = self.cores.setdefault(line, {})
            cores[found.core] = lcm(cores.get(found.core, 1), found.period)
        if found.kind == THRESHOLD:
            self.comparisons.setdefault(line, []).extend(
                CountedComparison.of(line, part, names)
                for part in expression.comparisons
                if form_of(part, names).kind == THRESHOLD
            )

    def _others(self, expression: Expression, names: Forms) -> set[str]:
        """Returns an expression's variables that may depend on more than loop counters, loop lengths and thread ids."""
        return {n for n in expression.names if n in self.mixed or (names[n].kind == INVARIANT and n not in self.plain)}

    def _check_plain(self, line: int, expression: Expression, names: Forms) -> None:
        if others := self._others(expression, names):
            raise Unsafe(f"line {line + 1}: {', '.join(sorted(others))} decides what happens in an iteration")


def of_tiles(body: Iterable[Any]) -> set[str]:
    """Returns the variables that a loop over tiles is told of its next tile, and those that it tells of that tile.

    They are read from shared memory, or handed over there; the numbers of tiles among them are for the grids to show.
    """
    found: set[str] = set()
    given: dict[str, set[str]] = {}
    for node in every(body):
        if isinstance(node, Step) and node.kind == COUNTER:
            found |= node.assigned
            found |= {name for expression in node.expressions[1:] for name in expression.names}
        elif isinstance(node, Assign):
            given.setdefault(node.name, set()).update(node.expression.names)
    while more := {name for told in found for name in given.get(told, ())} - found:
        found |= more
    return found


def lengths_of(body: Iterable[Any]) -> set[str]:
    """Returns the variables in the lengths of loops, and the variables that those are copies of."""
    found: set[str] = set()
    copies: list[tuple[str, str]] = []
    for node in every(body):
        if isinstance(node, For):
            found |= node.trips.names
        elif isinstance(node, Assign) and node.expression.tree[0] == "name":
            copies.append((node.name, node.expression.tree[1]))
    while more := {source for name, source in copies if name in found} - found:
        found |= more
    return found


def of_a_thread(body: Iterable[Any]) -> set[str]:
    """Returns the variables that depend on nothing but thread ids and the counters of unrolled loops."""
    nodes = list(every(body))
    found = {*OF_A_THREAD, *(node.variable for node in nodes if isinstance(node, For) and node.unrolled)}
    given: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, Assign):
            given.setdefault(node.name, set()).update(node.expression.names)
        elif isinstance(node, Step):
            given.update({name: {""} for name in node.assigned})
    while more := {name for name, names in given.items() if names <= found} - found:
        found |= more
    return found


def form_other(line: int, name: str) -> Any:
    """Always raises Unsafe, to say that two branches leave a variable with different forms."""
    raise Unsafe(f"line {line + 1}: {name} depends on an iteration in one branch in another way than in the other")


def carried_by(body: Iterable[Any]) -> set[str]:
    """Returns the variables that a loop assigns, and reads before it assigns them."""
    read: set[str] = set()
    assigned: set[str] = set()
    _live(body, read, assigned)
    return read & assigned


def _live(nodes: Iterable[Any], read: set[str], assigned: set[str]) -> None:
    for node in nodes:
        read |= {name for expression in expressions_of(node) for name in expression.names} - assigned
        if isinstance(node, If):
            sides = [set(assigned), set(assigned)]
            _live(node.body, read, sides[0])
            _live(node.otherwise, read, sides[1])
            assigned |= sides[0] & sides[1]
        elif isinstance(node, (For, While)):
            _live(node.body, read, assigned | ({node.variable} if isinstance(node, For) else set()))
        assigned |= getattr(node, "assigned", frozenset()) if isinstance(node, (Step, For, While)) else set()
        if isinstance(node, (Assign, Declare)):
            assigned.add(node.name)


def check_equalities(body: Iterable[Any]) -> None:
    """Raises Unsafe if what depends on a size or a tile's place is tested for equality with anything but 0 to 4.

    It raises Unsafe, too, where bits of it, or a remainder, are tested for equality.
    """
    nodes = list(every(body))
    of_tiles = set(PLACES)
    while more := {name for node in nodes for name, read in _assigned(node) if of_tiles & read} - of_tiles:
        of_tiles |= more
    for node in nodes:
        for expression in expressions_of(node):
            for part in walk(expression.tree):
                if part[0] in EQUALITIES and of_tiles & Expression(part).names and not any(map(_is_small, part[1:])):
                    name = sorted(of_tiles & Expression(part).names)[0]
                    raise Unsafe(f"line {node.line + 1} asks whether {name} equals something")
                if part[0] in EQUALITIES and (names := of_tiles & _names_of_bits(part)):
                    raise Unsafe(f"line {node.line + 1} asks for bits of {min(names)}, or for a remainder of it")


def _names_of_bits(tree: Tree) -> frozenset[str]:
    """Returns the variables of a tree that stand under an operator on bits, or under a remainder."""
    return frozenset().union(*(Expression(part).names for part in walk(tree) if part[0] in BITS_OF))


def _is_small(tree: Tree) -> bool:
    return tree[0] == "number" and tree[1] <= SMALL


def _assigned(node: Any) -> Iterable[tuple[str, frozenset[str]]]:
    """Yields (variable, names that its value depends on) for each variable that an assignment or a call changes."""
    if isinstance(node, Assign):
        yield node.name, node.expression.names
    elif isinstance(node, Step):
        # What is read from shared memory is the number of a tile.
        yield from ((name, PLACES) for name in node.assigned)
