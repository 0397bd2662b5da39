"""This module compares what code does with what its Program expects, where sizes are unknown.

Both have loops whose lengths are terms. A loop of the code is part of an expected one: what it leaves comes behind it,
or before it, written out. All numbers of events are shown to be equal for all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tl_attention.codeproof.terms.choices import most, nonnegative_form
from tl_attention.codeproof.terms.facts import Facts
from tl_attention.codeproof.terms.run import BRANCH, END, LEAVE, LOOP, OTHERWISE, TILES, facts_of
from tl_attention.codeproof.terms.term import is_not_negative, term
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.kernels.backward.roles import OF_FACTS, ROW_FACTS, STRIDED
from tl_attention.program.events import AnyOrder, Event, Expected, Maybe, Repeat, Where

# What the numbers of an event's place are, by how many they are.
PLACES: dict[int, tuple[str, ...]] = {
    0: (),
    1: ("choice to keep the accumulators",),
    2: ("first element, or column,", "number of rows, or end,"),
    3: ("row", "head", "batch"),
    4: ("first element", "number of rows", "distance of rows", "distance of heads"),
}
# The same for kinds of events with places of their own: what a tile is taken from, and what has LSE and D of rows.
OF_KINDS = {
    "take": ("entry", "head"),
    ROW_FACTS: (
        "number of rows",
        *(f"distance of {name}" for name in STRIDED),
        *(f"place of {name}" for name in OF_FACTS),
    ),
}


class RowConditions(NamedTuple):
    """RowConditions are the conditions, one for each row of a tile, on which threads copy or store the row."""

    rows: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"{len(self.rows)} rows, the last where {self.rows[-1]}"


class Skippable(NamedTuple):
    """A Skippable is an expected event, with a term that is not negative where code may leave the event out."""

    event: Event
    shown: tuple[tuple[str, Any], ...]
    given: tuple[Any, ...] = ()


@dataclass
class Nested:
    """A Nested is a loop, a condition or the loop over tiles in what code does, with the events inside."""

    kind: str
    value: Any = None  # its length or condition
    index: Any = None  # its counter
    inside: list[Event | Nested] = field(default_factory=list)
    otherwise: list[Event | Nested] = field(default_factory=list)


def blocks_of(events: Iterable[Event]) -> list[Event | Nested]:
    """Returns a process's events with those between two marks inside of Nesteds."""
    nested: list[Event | Nested] = []
    open_: list[tuple[Nested, list[Event | Nested]]] = []
    here = nested
    for event in events:
        if event.kind in (LOOP, BRANCH, TILES):
            block = Nested(event.kind, event.value, event.index)
            here.append(block)
            open_.append((block, here))
            here = block.inside
        elif event.kind == OTHERWISE:
            here = open_[-1][0].otherwise
        elif event.kind == END:
            _, here = open_.pop()
        elif event.kind == LEAVE:
            here.append(Nested(LEAVE, event.value))
        else:
            here.append(event)
    return nested


class Comparison:
    """A Comparison shows that a process's events on one tile, any, are the expected ones; else raises Unsafe."""

    def __init__(self, facts: Facts, who: str, alone: Callable[[Event], bool]):
        # An event that concerns its process `alone` may stand anywhere.
        self.facts, self.who, self.alone = facts, who, alone

    def compare(self, found: list[Event | Nested], expected: Iterable[Expected | Repeat | Where | Skippable]) -> None:
        wanted = [*expected]
        for one in found:
            self._match(one, wanted)
        while (head := self._head(wanted)) is not None:
            if not self._may_skip(head):
                raise Unsafe(f"{self.who} ends before {_words(head)}")
            wanted.pop(0)

    def _head(self, wanted: list[Any], opened: bool = True) -> Any:
        """Returns what is expected next, None at the end."""
        # A loop without iterations is none; one that has an iteration is that iteration, and the rest, if `opened`.
        while wanted:
            head = wanted[0]
            if isinstance(head, Where):
                condition = self.facts.simpler(head.condition)
                if condition.constant is None:
                    return head
                wanted[:1] = [*(head.events if condition.constant else head.otherwise)]
            elif isinstance(head, Repeat):
                count = self.facts.simpler(head.count)
                if self.facts.is_zero(count):
                    wanted.pop(0)
                elif opened and self.facts.sign(count - 1) > 0:
                    wanted[:1] = [*head.body(head.first), Repeat(head.first + 1, head.count - 1, head.body)]
                else:
                    return head
            else:
                return head
        return None

    def _match(self, one: Event | Nested, wanted: list[Any]) -> None:
        if isinstance(one, Nested):
            self._block(one, wanted)
            return
        while True:
            head = self._head(wanted, opened=False)
            if isinstance(head, Repeat) and not self.alone(one):
                head = self._head(wanted)
            event = head.event if isinstance(head, (Maybe, Skippable)) else head
            if isinstance(head, AnyOrder):
                # Their places are numbers.
                wanted[0] = head = {_by_itself(each): each for each in head.events}
            if isinstance(head, dict) and (among := head.pop(_by_itself(one), None)):
                self._show_equal(one, among)
                if not head:
                    wanted.pop(0)
                return
            if isinstance(event, Event) and _alike(one, event):
                self._show_equal(one, event)
                wanted.pop(0)
                return
            if self.alone(one):
                return
            if not self._may_skip(head):
                raise Unsafe(f"{self.who} does {one}, expected {_words(head)}")
            wanted.pop(0)

    def _may_skip(self, head: Any) -> bool:
        """Says whether code may leave out what is expected next; shows what must hold for that."""
        if isinstance(head, Skippable):
            with self.facts.assuming(*head.given):
                for what, shown in head.shown:
                    self.facts.show(f"{self.who}: {what}", shown)
            return True
        return isinstance(head, Maybe)

    def _block(self, block: Nested, wanted: list[Any]) -> None:
        if block.kind == LOOP:
            head = self._head(wanted, opened=False)
            while head is not None and not isinstance(head, Repeat) and self._may_skip(head):
                wanted.pop(0)
                head = self._head(wanted, opened=False)
            if not isinstance(head, Repeat):
                raise Unsafe(f"{self.who} has a loop, expected {_words(head)}")
            trips = self.facts.simpler(block.value)
            if self.facts.sign(trips) < 1:
                trips = self.facts.named(most(trips, 0))
            number = block.index
            with self.facts.assuming(number, trips - 1 - number):
                self.compare(block.inside, head.body(head.first + number))
            wanted[0] = Repeat(self.facts.named(head.first + trips), self.facts.simpler(head.count - trips), head.body)
        elif block.kind == BRANCH and not (block.inside or block.otherwise):
            # Its sides compute numbers.
            return
        elif block.kind == BRANCH:
            head = self._head(wanted)
            if not isinstance(head, Where):
                raise Unsafe(f"{self.who} does {_inside(block)} where {block.value}, expected {_words(head)}")
            self.facts.show_equal(f"{self.who}: where it does {_inside(block)}", block.value, head.condition)
            with self.facts.assuming(*facts_of(term(block.value))):
                self.compare(block.inside, head.events)
            with self.facts.assuming(*facts_of(1 - term(block.value))):
                self.compare(block.otherwise, head.otherwise)
            wanted.pop(0)
        else:
            raise Unsafe(f"{self.who} has a {block.kind} in the loop of another")

    def _show_equal(self, one: Event, wanted: Event) -> None:
        words, placed = f"{one.kind} {one.name}".strip(), wanted.place
        pairs = [("index", one.index, wanted.index), ("value", one.value, wanted.value)]
        names = OF_KINDS.get(one.kind)
        if names is None:
            # In several pages a tile has several places, of three numbers each.
            several, count = divmod(len(placed), len(PLACES[3]))
            names = PLACES[3] * several if several and not count else PLACES[len(placed)]
        pairs += zip(names, one.place, placed)
        pairs += [("index of what it reads", a[1], b[1]) for a, b in zip(one.reads, wanted.reads)]
        line = f"line {one.step}: " if one.step else ""
        for what, found, expected in pairs:
            if isinstance(found, RowConditions):
                self._show_inside(f"{line}where {words} of {self.who} has row", found.rows, expected)
            elif found is not None:
                self.facts.show_equal(f"{line}the {what} of {words} of {self.who}", found, expected)

    def _show_inside(self, words: str, rows: tuple[Any, ...], left: Any) -> None:
        """Shows that exactly those of a tile's rows that exist, `left` or none, are copied or stored."""
        if all(inside == 1 for inside in rows):
            self.facts.show(f"{words} {len(rows) - 1}", left - len(rows))
            return
        bounds: set[Any] = {
            None if (of := nonnegative_form(inside)) is None else of + row for row, inside in enumerate(rows)
        }
        if len(bounds) == 1 and None not in bounds:
            # So many rows are left for all of the conditions.
            self.facts.show_equal(f"{words}s", bounds.pop(), left - 1)
            return
        for row, inside in enumerate(rows):
            self.facts.show_equal(f"{words} {row}", inside, is_not_negative(term(left) - 1 - row))


def _alike(one: Event, wanted: Event) -> bool:
    """Says whether two events are of one kind, whatever their numbers are."""
    names = [[read[0] for read in event.reads] for event in (one, wanted)]
    own, other = (
        (event.kind, event.name, event.blocks, len(event.place), of) for event, of in zip((one, wanted), names)
    )
    return own == other


def _by_itself(event: Event) -> tuple[object, ...]:
    """Returns what tells an event from others that may come in any order: all but the slot."""
    return event.kind, event.name, event.place, tuple(read[:2] for read in event.reads), event.value


def _words(head: Any) -> str:
    match head:
        case AnyOrder():
            return _words({each: each for each in head.events})
        case dict():
            return f"one of {len(head)} such as {min(head.values(), key=str)}"
        case Repeat():
            return f"a loop of {head.count}"
        case Where():
            return f"what comes where {head.condition}"
        case Maybe() | Skippable():
            return str(head.event)
    return str(head or "none")


def _inside(block: Nested) -> str:
    return ", ".join(one.kind for one in (*block.inside, *block.otherwise))
