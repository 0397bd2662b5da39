"""Events say what roles do with barriers and shared memory: `races.py` proves events, and code is read as events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

Read = tuple[str, int, int]
# (row, head, batch), (element, rows), or (element, rows, distance of rows, distance of heads).
Place = tuple[Any, ...]
# The word before an event's place in messages, by the event's kind; "at" for other kinds.
PLACES = {"product": "keeping", "put": "of columns"}
CLUSTER, NAMED, TILE, Q, P, EXPONENTIALS = "cluster", "named barrier", "tile", "Q", "P", "exponentials"


@dataclass(frozen=True, eq=False)
class Event:
    """An Event is one act of a warpgroup or the producer, of a `kind` such as wait or load, mostly on `name[index]`."""

    # wait, arrive        mbarrier: for the phase of parity `value`; `value` arrivals of each warp at each of `blocks`
    # expect              mbarrier: the bytes of `value` loads
    # sync, signal        named barrier of `value` threads: with waiting, and without
    # load, take          fill the buffer with load number `step`: by TMA, in `blocks`; with a tile's number
    # product             issue a product that reads the buffer, in flight until `products wait` leaves `value` of them
    # read, write         by the threads themselves; `write` goes over what was loaded
    # put                 fill columns of the buffer with what the threads computed, number `step`: a product may read
    #                     them after a `fence` of each thread, and a barrier of all of them
    # hold, hold last     keep exponentials `index` up to `value` before what follows, or `index` alone; `resume` keeps
    #                     the exponentials that follow behind it
    # store, stored       store the output by TMA, out of the buffer, after a `fence`; `stored` waits for the store
    # fence               between what the threads do themselves and the TMA: the TMA sees what the threads wrote, and
    #                     does not write over what the threads still read
    # In code alone:
    # init, init fence    an mbarrier that counts `value` arrivals, and the fence that shows all of them to the TMA
    # mask                hide scores of KV block `step`, where that is needed
    # output, lse         store rows of the output from registers, and the logarithms of rows
    # fragment, multiply  load a matrix of a tile into the register `reads`; multiply the matrices of `reads`
    kind: str
    name: str = ""
    index: int = 0
    value: int = 0
    blocks: tuple[int, ...] = ()
    step: int = 0  # the number of a load, which code does not show, so that it takes no part in ==
    reads: tuple[Read, ...] = ()  # the (buffer, index, step) that must be there
    # Where in a tensor a tile starts: its (row, head, batch), or the (element, rows) of copies by threads, with the
    # distances of rows and of heads where they store; () where nobody asks for that. For a product: whether it keeps
    # what its accumulators had. For `put`: the (first, end) of the columns. For a fragment: where its matrix lies in
    # its tile.
    place: Place = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and self._shown == other._shown

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _shown(self) -> tuple[object, ...]:
        """Returns all fields to compare, without the numbers of loads."""
        reads = tuple(read[:2] for read in self.reads)
        return self.kind, self.name, self.index, self.value, self.blocks, self.place, reads

    @cached_property
    def _hash(self) -> int:
        return hash(self._shown)

    def __str__(self) -> str:
        name = f" {self.name}[{self.index}]" if self.name or self.index else ""
        blocks = f" of blocks {self.blocks}" if self.blocks else ""
        reads = "".join(
            f", {name}[{index}]" for name, index, _ in self.reads if (name, index) != (self.name, self.index)
        )
        place = f" {PLACES.get(self.kind, 'at')} {self.place}" if self.place else ""
        return f"{self.kind}{name}{reads} ({self.value}){blocks}{place}"


class Maybe(NamedTuple):
    """A Maybe, among expected events, holds an event that code may do or leave out."""

    event: Event


class AnyOrder(NamedTuple):
    """An AnyOrder, among expected events, holds events that must all come, each once, in any order."""

    events: frozenset[Event]


class Repeat(NamedTuple):
    """A Repeat, among expected events, stands for `body(n)` of each of `count` numbers n from `first` on, in order."""

    first: Any
    count: Any
    body: Callable[[Any], Iterable[Expected | Repeat | Where]]


class Where(NamedTuple):
    """A Where, among expected events, holds those that come if a condition is true, and those that come if not."""

    condition: Any
    events: Iterable[Expected]  # where `condition` is 1
    otherwise: Iterable[Expected] = ()  # where it is 0


def written_out(expected: Iterable[Expected | Repeat | Where]) -> Iterator[Expected]:
    """Yields expected events one after the other, with each Repeat and Where whose numbers are known replaced."""
    for event in expected:
        if isinstance(event, Repeat):
            for number in range(event.first, event.first + event.count):
                yield from written_out(event.body(number))
        elif isinstance(event, Where):
            yield from event.events if event.condition else event.otherwise
        else:
            yield event


# The name of events that store results of a part of a packed sequence, where some are not split.
OF_PARTS = "parts"
# What code must do, one after the other.
Expected = Event | Maybe | AnyOrder


class PlacedTile(Protocol):
    """A PlacedTile says where a row tile, its KV blocks and its results lie, and a warpgroup's mask and rows."""

    @property
    def tensors(self) -> Any: ...
    @property
    def box(self) -> int: ...
    def of_member(self, member: int) -> PlacedTile: ...
    def coordinates(self, offset: int = 0) -> Place: ...
    def kv_coordinates(self, block: int) -> Place: ...
    def of_numbers(self, place: Place) -> Place: ...
    def rows_left(self, offset: int = 0) -> Any: ...
    def stored_rows(self, kind: str, offset: int = 0) -> Place: ...
    def mask(self, block: int, offset: int, rows: int) -> Any: ...
    def store_event(self, event: Event, offset: int) -> Any: ...


@dataclass(frozen=True)
class Process:
    """A process is a warpgroup that computes, or the producer warp, which has number -1."""

    block: int
    warpgroup: int
    warps: int

    def __str__(self) -> str:
        return f"{'the producer' if self.warpgroup < 0 else f'warpgroup {self.warpgroup}'} of block {self.block}"
