"""What one process - a warpgroup, the producer warp, a whole block - did, as events, off what its threads were seen doing.

What must be done by all of its threads, or by one, was; boxes, copies and instructions of one tile are one event, which
has the slot that they fill or read, all of it, and the rows that they are of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tl_attention.hardware.warpgroup import WARP, WARPGROUP
from tl_attention.problem.shape import DTYPE_BYTES
from tl_attention.proof.cuda.refused import Unsafe
from tl_attention.proof.cuda.run import Run, Seen
from tl_attention.proof.cuda.threads import Value
from tl_attention.proof.cuda.tiles import Product, Tile, layout
from tl_attention.proof.events import CLUSTER, Event

# What is one of several of the same that fill, read or write a tile.
OF_A_TILE = {"tma load", "tma store", "copy", "write", "output", "read"}
# What all threads of a process do.
BY_ALL = {
    "wait", "sync", "signal", "cluster sync", "init fence", "fewer registers", "more registers", "arrive wgmma", "wgmma",
    "commit wgmma", "products wait", "operand fence", "exchange", "hold", "hold last", "resume", "mask",
    "commit copies", "copies wait", "rows of output",
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """A tensor in memory, contiguous: what an element's number says."""

    heads: int
    rows: int
    columns: int

    def split(self, element: np.ndarray) -> tuple[np.ndarray, ...]:
        """(batch, head, row, column)."""
        row, column = np.divmod(element, self.columns)
        head, row = np.divmod(row, self.rows)
        return (*np.divmod(head, self.heads), row, column)


@dataclass(frozen=True)
class Expected:
    """What every process's events are read with."""

    tiles: Mapping[str, Tile]
    products: Mapping[str, Product]
    tensors: Mapping[str, Tensor]
    dtype: str
    # How many columns a row of a TMA box has, by descriptor.
    boxes: Mapping[str, int]


@dataclass(slots=True)
class Part:
    """What some threads of a process did: those of a Seen that are its own."""

    seen: Seen
    mine: np.ndarray

    def of(self, name: str) -> Value:
        """A value, for each of the threads if it differs."""
        value = self.seen.values[name]
        return value[self.mine] if isinstance(value, np.ndarray) else value

    def one(self, name: str) -> int:
        """A value that must be the same for all of them."""
        value = self.of(name)
        if not isinstance(value, np.ndarray):
            return value
        if (value != value[0]).any():
            raise Unsafe(f"line {self.seen.line + 1}: {name} differs between threads of one role")
        return value[0].item()


class Stream:
    """The events of the threads `own` of a run, of which `expected` says how they are read."""

    def __init__(self, run: Run, own: np.ndarray, who: str, expected: Expected):
        self.run, self.own, self.who, self.expected = run, own, who, expected
        self.in_flight: deque[Product] = deque()
        self.open: list[Part] | None = None
        self.fenced: set[str] = set()
        self.unfenced: set[str] = set()
        self.stores = 0

    def events(self) -> Iterator[Event]:
        """In order. Arrivals at one barrier of several blocks are one event."""
        last: Event | None = None
        for event in self._events():
            if last and last.kind == event.kind == "arrive" and replace(last, blocks=event.blocks) == event != last:
                last = replace(last, blocks=last.blocks + event.blocks)
                continue
            if last:
                yield last
            last = event
        if last:
            yield last

    def _events(self) -> Iterator[Event]:
        gathered: list[Part] = []
        for part in self._parts():
            seen = part.seen
            if gathered and seen.kind != "arithmetic" and not _same_tile(gathered[0].seen, seen):
                yield self._tile(gathered)
                gathered = []
            if seen.kind in OF_A_TILE and "element" in seen.values:
                self._settled(seen)
                gathered.append(part)
                continue
            yield from self._event(part)
        if gathered:
            yield self._tile(gathered)
        if self.open is not None or self.stores:
            raise Unsafe(f"{self.who} ends with a product or a store that is not committed")

    def _parts(self) -> Iterator[Part]:
        mine: dict[int, np.ndarray] = {}
        member = np.zeros(len(self.run.threads), dtype=bool)
        member[self.own] = True
        for seen in self.run.seen:
            key = id(seen.threads)
            if key not in mine:
                mine[key] = member[seen.threads]
            if mine[key].any():
                yield Part(seen, mine[key])

    def _event(self, part: Part) -> Iterator[Event]:
        seen = part.seen
        if seen.kind in BY_ALL and part.mine.sum() != len(self.own):
            raise Unsafe(f"line {seen.line + 1}: {part.mine.sum()} of the {len(self.own)} threads of {self.who} run it")
        if seen.kind not in ("operand fence", "fence", "wgmma", "commit wgmma", "products wait"):
            self._settled(seen)
        handle = HANDLES.get(seen.kind)
        if handle:
            yield from handle(self, part)
        else:
            index, value = (part.one(name) if name in seen.values else 0 for name in ("index", "value"))
            yield Event(seen.kind, seen.name, index, value)

    def _settled(self, seen: Seen) -> None:
        """Refuse what comes between a product's lines, or before its registers are fenced."""
        if self.open is not None:
            raise Unsafe(f"line {seen.line + 1}: {seen.kind} stands among a product's instructions")
        if self.unfenced:
            names = ", ".join(sorted(self.unfenced))
            raise Unsafe(f"line {seen.line + 1}: {names} of a product is not fenced before what follows it")

    # --- barriers ----------------------------------------------------------------------------------------------

    def _lanes(self, part: Part) -> int:
        """How many lanes of each of its warps run it."""
        lanes = self.run.threads.lanes
        counts = np.bincount(part.seen.threads[part.mine] // lanes)
        counts = counts[counts > 0]
        if (counts != counts[0]).any() or len(counts) != len(self.own) // lanes:
            raise Unsafe(f"line {part.seen.line + 1}: not the same number of lanes of each warp of {self.who} run it")
        return int(counts[0]) * (WARP // lanes if counts[0] == lanes and lanes > 1 else 1)

    def _arrive(self, part: Part) -> Iterator[Event]:
        yield Event("arrive", part.seen.name, part.one("index"), self._lanes(part), (part.one("value"),))

    def _init(self, part: Part) -> Iterator[Event]:
        self._by_one(part)
        yield Event("init", part.seen.name, part.one("index"), part.one("value"))

    def _by_one(self, part: Part) -> None:
        if part.mine.sum() != 1:
            raise Unsafe(f"line {part.seen.line + 1}: {part.mine.sum()} threads of {self.who} run it, expected one")

    def _expect(self, part: Part) -> Iterator[Event]:
        self._by_one(part)
        name = part.seen.name
        tile = self.expected.tiles.get(name.removesuffix("_full"))
        if tile is None:
            raise Unsafe(f"line {part.seen.line + 1}: {name} expects bytes, but is no tile's")
        yield Event("expect", name, part.one("index"), part.one("value") / (tile.elements * DTYPE_BYTES))

    def _take(self, part: Part) -> Iterator[Event]:
        self._by_one(part)
        yield Event("take", "tile", part.one("index"), blocks=(int(self.run.rank_of(part.seen.threads[part.mine][0])),))

    def _read_number(self, part: Part) -> Iterator[Event]:
        if part.mine.sum() != len(self.own):
            raise Unsafe(f"line {part.seen.line + 1}: not all threads of {self.who} read the tile's number")
        yield Event("read", "tile", part.one("index"))

    def _cluster(self, part: Part) -> Iterator[Event]:
        yield Event("sync", CLUSTER)

    def _fence(self, part: Part) -> Iterator[Event]:
        if self.open is None:
            self._settled(part.seen)
        threads = int(part.mine.sum())
        yield Event("fence", value=0 if threads == len(self.own) else threads)

    def _note(self, part: Part) -> Iterator[Event]:
        if part.seen.kind != "exchange":
            self.fenced.clear()
            if part.seen.kind == "mask":
                yield Event("mask")
        else:
            self.fenced.clear()

    def _left_out(self, part: Part) -> Iterator[Event]:
        yield Event("left out", value=part.one("value"))

    # --- stores ------------------------------------------------------------------------------------------------

    def _commit_store(self, part: Part) -> Iterator[Event]:
        self._by_one(part)
        self.stores = 0
        yield from ()

    def _stored(self, part: Part) -> Iterator[Event]:
        if self.stores:
            raise Unsafe(f"line {part.seen.line + 1}: it waits for a store that is not committed")
        yield Event("stored", value=part.one("value"))

    def _rows_of_output(self, part: Part) -> Iterator[Event]:
        product = next(p for p in self.expected.products.values() if p.b_transposed)
        tensor = self.expected.tensors["Output"]
        row = tensor.rows - part.one("rows")
        head, beyond = divmod(part.one("element") - row * tensor.columns, tensor.rows * tensor.columns)
        said = (part.seen.name, part.one("head_dim"), part.seen.values["dtype"], part.seen.values["registers"])
        wanted = ("Output", product.columns, self.expected.dtype, product.accumulators)
        if said != wanted or beyond:
            raise Unsafe(f"line {part.seen.line + 1} stores {said} at another row than it has rows left from there")
        batch, head = divmod(head, tensor.heads)
        yield Event("output", place=(row, head, batch))

    # --- products ----------------------------------------------------------------------------------------------

    def _arrive_wgmma(self, part: Part) -> Iterator[Event]:
        self.open = []
        yield from ()

    def _wgmma(self, part: Part) -> Iterator[Event]:
        if self.open is None:
            raise Unsafe(f"line {part.seen.line + 1}: a product is issued with no warpgroup_arrive before it")
        self.open.append(part)
        yield from ()

    def _commit_wgmma(self, part: Part) -> Iterator[Event]:
        instructions, self.open = self.open, None
        if not instructions:
            raise Unsafe(f"line {part.seen.line + 1}: it commits no product")
        product = self.expected.products.get(instructions[0].seen.values["d"])
        if product is None:
            raise Unsafe(f"line {part.seen.line + 1}: a product into {instructions[0].seen.values['d']}")
        for name in (product.accumulators, product.a):
            if isinstance(name, str) and name not in self.fenced:
                raise Unsafe(f"line {part.seen.line + 1}: {name} is not fenced before the product")
        self.unfenced = {name for name in (product.accumulators, product.a) if isinstance(name, str)}
        self.in_flight.append(product)
        yield self._product(product, instructions)

    def _product(self, product: Product, instructions: Sequence[Part]) -> Event:
        line = instructions[0].seen.line + 1
        if len(instructions) != product.steps:
            raise Unsafe(f"line {line}: a product of {len(instructions)} instructions, expected {product.steps}")
        slots, keeps = set(), []
        warpgroup = self._warpgroups()
        for step, part in enumerate(instructions):
            values = part.seen.values
            at, b_at = np.broadcast_to(part.of("a_at"), warpgroup.shape), part.one("b_at")
            a = (product.a.buffer, layout(product.a)) if isinstance(product.a, Tile) else product.a
            b = (product.b.buffer, product.b_layout)
            if (values["a"], values["b"], values["d"]) != (a, b, product.accumulators) or part.one("d_at"):
                raise Unsafe(f"line {line}: a product of {values['a']}, {values['b']} and {values['d']}")
            if values["form"] != product.form(self.expected.dtype):
                raise Unsafe(f"line {line}: a product of the form {values['form']}")
            slot, offset = divmod(b_at, product.b.elements * DTYPE_BYTES)
            if offset != product.b_offset(step) or (at != product.a_offset(step, warpgroup)).any():
                raise Unsafe(f"line {line}: instruction {step} of a product reads other columns of its operands")
            slots.add(slot)
            keeps.append(part.one("keeps"))
        if len(slots) != 1 or set(keeps[1:]) - {1}:
            raise Unsafe(f"line {line}: a product's instructions read slots {sorted(slots)} and keep {keeps}")
        slot = slots.pop()
        reads = ((product.b.buffer, slot, 0),)
        if isinstance(product.a, Tile):
            reads += ((product.a.buffer, int(warpgroup[0]) if product.a.slots > 1 else 0, 0),)
        return Event("product", product.b.buffer, slot, reads=reads, place=(keeps[0],))

    def _warpgroups(self) -> np.ndarray:
        threads = self.run.threads
        return threads.y[self.own] if threads.ys > 1 else threads.x[self.own] // WARPGROUP

    def _products_wait(self, part: Part) -> Iterator[Event]:
        left = part.one("value")
        if self.open is not None:
            self._settled(part.seen)
        while len(self.in_flight) > left:
            self.unfenced.add(self.in_flight.popleft().accumulators)
        yield Event("products wait", value=left)

    def _operand_fence(self, part: Part) -> Iterator[Event]:
        self.fenced.add(part.seen.name)
        self.unfenced.discard(part.seen.name)
        yield from ()

    # --- tiles -------------------------------------------------------------------------------------------------

    def _tile(self, parts: Sequence[Part]) -> Event:
        return TILES[parts[0].seen.kind](self, parts)

    def _boxes(self, parts: Sequence[Part]) -> tuple[int, tuple[int, int, int]]:
        """(slot, (row, head, batch)) of a tile's boxes, which are all that it has."""
        seen = parts[0].seen
        tile = self.expected.tiles.get(seen.name)
        for part in parts:
            self._by_one(part)
        if tile is None or self.expected.boxes.get(seen.values["descriptor"]) != tile.panel:
            raise Unsafe(f"line {seen.line + 1}: {seen.values['descriptor']} into {seen.name}")
        found = [(part.one("column"), part.one("element")) for part in parts]
        slot = found[0][1] // tile.elements
        if found != [(column, slot * tile.elements + at) for column, at in tile.boxes()]:
            raise Unsafe(
                f"line {seen.line + 1}: boxes of columns and elements {found} of {seen.name}, expected {tile.boxes()} "
                f"from a slot of {tile.elements} on"
            )
        places = {tuple(part.one(name) for name in ("row", "head", "batch")) for part in parts}
        if len(places) != 1:
            raise Unsafe(f"line {seen.line + 1}: boxes of several tiles, {sorted(places)}")
        return slot, places.pop()

    def _load(self, parts: Sequence[Part]) -> Event:
        seen = parts[0].seen
        slot, place = self._boxes(parts)
        barriers = {(part.seen.values["barrier"], part.one("index")) for part in parts}
        if barriers != {(f"{seen.name}_full", slot)}:
            raise Unsafe(f"line {seen.line + 1}: a load into slot {slot} of {seen.name} on {sorted(barriers)}")
        if seen.values["descriptor"] != f"{seen.name}_desc":
            raise Unsafe(f"line {seen.line + 1}: {seen.values['descriptor']} into {seen.name}")
        to = seen.values["blocks"]
        rank = int(self.run.rank_of(seen.threads[parts[0].mine][0]))
        blocks = (rank,) if to is None else tuple(n for n in range(to.bit_length()) if to >> n & 1)
        return Event("load", seen.name, slot, blocks=blocks, step=place[0], place=place)

    def _store(self, parts: Sequence[Part]) -> Event:
        slot, place = self._boxes(parts)
        self.stores += 1
        return Event("store", parts[0].seen.name, slot, place=place)

    def _elements(self, parts: Sequence[Part]) -> tuple[np.ndarray, int]:
        """Every element that is touched first, and how many from there on."""
        sizes = {part.seen.values["elements"] for part in parts}
        found = [np.broadcast_to(part.of("element"), part.mine.sum()) for part in parts]
        return np.concatenate(found), sizes.pop() if len(sizes) == 1 else 0

    def _whole_slot(self, parts: Sequence[Part]) -> int:
        """The slot of a buffer that the threads together touch, each element once."""
        seen = parts[0].seen
        tile = self.expected.tiles[seen.name]
        elements, width = self._elements(parts)
        slot = int(elements.min()) // tile.elements
        wanted = np.arange(slot * tile.elements, (slot + 1) * tile.elements, width or 1)
        if len(elements) != len(wanted) or (np.sort(elements) != wanted).any():
            raise Unsafe(f"line {seen.line + 1}: {seen.kind} of {seen.name} is not of one slot, each element once")
        return slot

    def _access(self, parts: Sequence[Part]) -> Event:
        seen = parts[0].seen
        slot = self._whole_slot(parts)
        place = self._origin(parts, slot) if seen.values.get("tensor") else ()
        return Event(seen.kind, seen.name, slot, place=place)

    def _copy(self, parts: Sequence[Part]) -> Event:
        slot = self._whole_slot(parts)
        return Event("load", parts[0].seen.name, slot, place=self._origin(parts, slot))

    def _origin(self, parts: Sequence[Part], slot: int) -> tuple[int, int]:
        """(row, rows) that a tile's copies are from, counted over all heads: each element in its place, else zeros."""
        seen, name = parts[0].seen, parts[0].seen.name
        tile, line = self.expected.tiles[name], seen.line + 1
        if seen.values["tensor"] != name:
            raise Unsafe(f"line {line}: rows of {seen.values['tensor']} into {name}")

        def all_of(value: str) -> np.ndarray:
            return np.concatenate([np.broadcast_to(part.of(value), part.mine.sum()) for part in parts])

        source, place = all_of("source"), all_of("element") - slot * tile.elements
        inside = all_of("inside") != 0 if "inside" in seen.values else source >= 0
        # Without a condition zeros have no source.
        known = np.ones_like(inside) if "inside" in seen.values else inside
        first = int(source[place == 0][0])
        row, column = np.divmod(source - first, tile.columns)
        if not known[place == 0][0] or first % tile.columns or (tile.place(row, column) != place)[known].any():
            raise Unsafe(f"line {line}: columns of {name} are not where they belong in its tile")
        rows = int(inside.sum()) * seen.values["elements"] // tile.columns
        if (inside[known] != (row < rows)[known]).any():
            raise Unsafe(f"line {line}: not all columns of the rows of {name} are copied")
        return first // tile.columns, rows

    def _output(self, parts: Sequence[Part]) -> Event:
        """The rows of the output that the threads store, each element once."""
        seen = parts[0].seen
        tensor = self.expected.tensors[seen.name]
        elements, width = self._elements(parts)
        batch, head, row, column = tensor.split(np.sort(elements))
        first, last = int(row.min()), int(row.max())
        wanted = np.arange(0, (last - first + 1) * tensor.columns, width)
        start = int(elements.min())
        whole = len(elements) == len(wanted) and (np.sort(elements) - start == wanted).all() and column[0] == 0
        if not whole or head.min() != head.max() or batch.min() != batch.max():
            raise Unsafe(f"line {seen.line + 1}: the output's elements are not those of whole rows, each once")
        return Event("output", place=(first, int(head[0]), int(batch[0])), value=last - first + 1)


def _same_tile(first: Seen, seen: Seen) -> bool:
    """Whether both are parts of one tile: copies of a loop, or of the branches of one."""
    return seen.kind == first.kind and seen.name == first.name and "element" in seen.values and first.line == seen.line


HANDLES = {
    "arrive": Stream._arrive,
    "init": Stream._init,
    "expect": Stream._expect,
    "take": Stream._take,
    "read": Stream._read_number,
    "cluster sync": Stream._cluster,
    "fence": Stream._fence,
    "mask": Stream._note,
    "arithmetic": Stream._note,
    "exchange": Stream._note,
    "left out": Stream._left_out,
    "commit store": Stream._commit_store,
    "stored": Stream._stored,
    "rows of output": Stream._rows_of_output,
    "arrive wgmma": Stream._arrive_wgmma,
    "wgmma": Stream._wgmma,
    "commit wgmma": Stream._commit_wgmma,
    "products wait": Stream._products_wait,
    "operand fence": Stream._operand_fence,
}
TILES = {
    "tma load": Stream._load,
    "tma store": Stream._store,
    "copy": Stream._copy,
    "write": Stream._access,
    "read": Stream._access,
    "output": Stream._output,
}
