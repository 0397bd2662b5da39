"""This module turns what the threads of one process were seen doing into events.

A process is a warpgroup, the producer warp, or a whole block. The stream proves that all threads, or one thread, did
what all, or one, must do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from tl_attention.codeproof.read.copies import CLEAR, HAND_OVER, ONE_HEAD, PUT
from tl_attention.codeproof.read.nodes import COUNTS, PER_HEAD
from tl_attention.codeproof.read.products import OF_AN_MMA
from tl_attention.codeproof.run.run import Run
from tl_attention.codeproof.run.thread_slice import Reading, ThreadSlice
from tl_attention.codeproof.run.threads import Value
from tl_attention.codeproof.run.tile_copies import OF_A_TILE, TileCopies, p_in_shared, same_tile, slot_and_offsets
from tl_attention.codeproof.run.wgmma_groups import WgmmaGroups
from tl_attention.codeproof.terms.run import BRANCH, END, LOOP, MARKS, OTHERWISE, TILES
from tl_attention.codeproof.tiles.row_tiles import RESULTS
from tl_attention.codeproof.tiles.tensors import Tensor
from tl_attention.codeproof.tiles.tiles import Matrix, matrices
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.kernels.backward.roles import ROW_FACTS, tensors_of_facts
from tl_attention.problem.shape import DTYPE_BYTES
from tl_attention.problem.warpgroup import WARP, WARPGROUP
from tl_attention.program.events import CLUSTER, OF_PARTS, TILE, Event

# The elements of a register.
PAIR = 2
# What all threads of a process do.
BY_ALL = {
    "wait", "sync", "signal", "cluster sync", "init fence", "fewer registers", "more registers", "arrive wgmma", "wgmma",
    "commit wgmma", "products wait", "operand fence", "exchange", "hold", "hold last", "resume", "mask",
    "commit copies", "copies wait", "rows of output", "rows of lse", PER_HEAD, PUT,
    "fragment", "multiply", CLEAR, ROW_FACTS,
}  # fmt: skip
# The kinds that may stand among a product's instructions, or before its registers are fenced.
OF_A_PRODUCT = {"operand fence", "fence", "wgmma", "commit wgmma", "products wait"}


class Stream:
    """A Stream turns what one process, the threads `own` of a run, was seen doing into events, as `reading` says."""

    def __init__(self, run: Run, own: np.ndarray, who: str, reading: Reading):
        # `who` is the process in messages.
        self.run, self.own, self.who, self.reading = run, own, who, reading
        threads = run.threads
        warpgroups = threads.y[own] if threads.ys > 1 or threads.first_y else threads.x[own] // WARPGROUP
        self.products = WgmmaGroups(reading, warpgroups)
        self.moved = TileCopies(run, reading, max(len(own) // WARPGROUP, 1))
        self.stores = 0
        # What barriers expect of boxes that are not whole tiles.
        self.boxes: list[ThreadSlice] = []
        # Of each open condition and loop of unknown sizes: the condition, and the products before it, or behind its
        # first side.
        self.ways: list[tuple[Any, WgmmaGroups]] = []
        # The registers that have a number of the tile's head, by the tensor that it is read from.
        self.of_head: dict[str, frozenset[str]] = {}

    def events(self) -> Iterator[Event]:
        """Yields the process's events in order; successive arrivals at one barrier of several blocks are one event.

        So are successive reads of the same.
        """
        last: Event | None = None
        for event in self._events():
            if last and last.kind == event.kind == "arrive" and replace(last, blocks=event.blocks) == event != last:
                last = replace(last, blocks=last.blocks + event.blocks)
                continue
            if last == event and event.kind == "read":
                continue
            if last:
                yield last
            last = event
        if last:
            yield last

    def _events(self) -> Iterator[Event]:
        gathered: list[ThreadSlice] = []
        for part in self._parts():
            self.products.check_registers(part)
            if self._is_of_box(part):
                self.boxes.append(part)
                continue
            if gathered and part.seen.kind != "arithmetic" and not same_tile(gathered[0].seen, part.seen):
                yield from self._moved(gathered)
                gathered = []
            if part.seen.kind in OF_A_TILE and "element" in part.seen.values:
                self.products.check_settled(part)
                self.stores += part.seen.kind == "tma store"
                gathered.append(part)
                continue
            yield from self._event(part)
        if gathered:
            yield from self._moved(gathered)
        if self.products.open is not None or self.stores or self.boxes:
            raise Unsafe(f"{self.who} ends with a product or a store that is not committed")

    def _is_of_box(self, part: ThreadSlice) -> bool:
        tile = self.reading.tiles.get(part.seen.name.removesuffix("_full"))
        return part.seen.kind == "expect" and tile is not None and tile.in_boxes

    def _moved(self, parts: list[ThreadSlice]) -> Iterator[Event]:
        """Yields the event of a tile that moves, behind that of its barrier where each box said what it brings."""
        event = self.moved.event(parts)
        if self.boxes:
            tile = self.reading.tiles[event.name]
            size = tile.box_rows * tile.panel * DTYPE_BYTES
            wanted = [(f"{event.name}_full", event.index, size)] * len(tile.boxes())
            for part in self.boxes:
                part.check_one_thread()
            found = [(part.seen.name, part.same("index"), part.same("value")) for part in self.boxes]
            if event.kind != "load" or found != wanted:
                raise Unsafe(f"line {self.boxes[0].line}: boxes are expected as {found}, expected {wanted}")
            yield Event("expect", f"{event.name}_full", event.index, 1)
            self.boxes = []
        yield replace(event, step=parts[0].line)

    def _parts(self) -> Iterator[ThreadSlice]:
        mine: dict[int, tuple[np.ndarray, int]] = {}
        member = np.zeros(len(self.run.threads), dtype=bool)
        member[self.own] = True
        for seen in self.run.seen:
            key = id(seen.threads)
            if key not in mine:
                chosen = member[seen.threads]
                mine[key] = chosen, int(chosen.sum())
            if mine[key][1]:
                yield ThreadSlice(seen, *mine[key])

    def _event(self, part: ThreadSlice) -> Iterator[Event]:
        """Yields the events of a part, with the line in the place of a step, which code does not show."""
        yield from (replace(event, step=part.line) for event in self._events_of(part))

    def _events_of(self, part: ThreadSlice) -> Iterator[Event]:
        seen = part.seen
        if seen.kind in BY_ALL and part.count != len(self.own):
            raise Unsafe(f"line {part.line}: {part.count} of the {len(self.own)} threads of {self.who} run it")
        if seen.kind not in OF_A_PRODUCT and seen.kind not in MARKS:
            self.products.check_settled(part)
        handle = HANDLES.get(seen.kind)
        if handle:
            yield from handle(self, part) or ()
        else:
            index, value = (part.same(name) if name in seen.values else 0 for name in ("index", "value"))
            yield Event(seen.kind, seen.name, index, value)

    # --- conditions and loops of unknown sizes -------------------------------------------------------------------

    def _mark(self, part: ThreadSlice) -> Iterator[Event]:
        """Yields a mark; raises Unsafe unless products and stores are in flight alike on all ways to it."""
        kind, values = part.seen.kind, part.seen.values
        if part.count != len(self.own):
            raise Unsafe(f"line {part.line}: some of the threads of {self.who} have a {kind} of unknown sizes")
        if self.stores or self.boxes:
            raise Unsafe(f"line {part.line}: {self.who} has a store that is not committed, or a box that is not loaded")
        if kind in (LOOP, BRANCH, TILES):
            self.ways.append((values["value"] if kind == BRANCH else None, self.products.copy()))
        elif kind == OTHERWISE:
            condition, before = self.ways.pop()
            self.ways.append((condition, self.products))
            self.products = before
        elif kind == END:
            self.products.join(self.ways.pop()[1], part.line)
        yield Event(kind, index=values.get("index", 0), value=values.get("value", 0))

    def _check_always(self, part: ThreadSlice) -> None:
        """Raises Unsafe for computing under a condition, unless with a head's number, which counts in some tiles."""
        conditions = [condition for condition, _ in self.ways if condition is not None]
        if conditions and all(map(part.seen.registers.touched.isdisjoint, self.of_head.values())):
            raise Unsafe(f"line {part.line} computes where {conditions[-1]}, and not elsewhere")

    # --- barriers ----------------------------------------------------------------------------------------------

    def _lanes(self, part: ThreadSlice) -> int:
        """Returns how many lanes of each warp of the process run the part; raises Unsafe where warps differ."""
        lanes = self.run.threads.lanes
        counts = np.bincount(part.seen.threads[part.mine] // lanes)
        counts = counts[counts > 0]
        if (counts != counts[0]).any() or len(counts) != len(self.own) // lanes:
            raise Unsafe(f"line {part.line}: not the same number of lanes of each warp of {self.who} run it")
        return int(counts[0]) * (WARP // lanes if counts[0] == lanes and lanes > 1 else 1)

    def _arrive(self, part: ThreadSlice) -> Iterator[Event]:
        yield Event("arrive", part.seen.name, part.same("index"), self._lanes(part), (part.same("value"),))

    def _init(self, part: ThreadSlice) -> Iterator[Event]:
        part.check_one_thread()
        yield Event("init", part.seen.name, part.same("index"), part.same("value"))

    def _expect(self, part: ThreadSlice) -> Iterator[Event]:
        part.check_one_thread()
        name = part.seen.name
        tile = self.reading.tiles.get(name.removesuffix("_full"))
        if tile is None:
            raise Unsafe(f"line {part.line}: {name} expects bytes, but is no tile's")
        size = part.same("value")
        vectors = [one for one in self.reading.tiles.values() if one.ring == tile.buffer and one.slot_bytes == size]
        if vectors:
            yield Event("expect", f"{vectors[0].buffer} by {name}", part.same("index"), 1)
            return
        loads, beyond = divmod(size, tile.elements * DTYPE_BYTES)
        if beyond:
            raise Unsafe(f"line {part.line}: {part.same('value')} bytes of a tile of {tile.elements * DTYPE_BYTES}")
        yield Event("expect", name, part.same("index"), loads)

    def _take(self, part: ThreadSlice) -> Iterator[Event]:
        part.check_one_thread()
        yield Event("take", TILE, part.same("index"), blocks=(int(self.run.rank_of(part.seen.threads[part.mine][0])),))

    def _hand_over(self, part: ThreadSlice) -> Iterator[Event]:
        if part.count != len(self.own):
            raise Unsafe(f"line {part.line}: not all threads of {self.who} hand over a tile")
        place = (part.same("entry"), part.same("head")) if "entry" in part.seen.values else ()
        rank = int(self.run.rank_of(part.seen.threads[part.mine][0]))
        yield Event("take", TILE, part.same("index"), blocks=(rank,), place=place)

    def _read_number(self, part: ThreadSlice) -> Iterator[Event]:
        if part.count != len(self.own):
            raise Unsafe(f"line {part.line}: not all threads of {self.who} read the tile's number")
        slot = part.same("index")
        yield Event("read", TILE, slot, reads=((TILE, slot, 0),))

    def _cluster(self, part: ThreadSlice) -> Iterator[Event]:
        yield Event("sync", CLUSTER)

    def _fence(self, part: ThreadSlice) -> Iterator[Event]:
        if self.products.open is None:
            self.products.check_settled(part)
        threads = part.count
        yield Event("fence", value=0 if threads == len(self.own) else threads)

    def _compute(self, part: ThreadSlice) -> Iterator[Event]:
        self.products.computed()
        if part.seen.kind == "mask":
            yield Event("mask")
        else:
            self._check_always(part)
        touched = part.seen.registers.touched
        yield from (Event(COUNTS, tensor) for tensor, own in self.of_head.items() if not own.isdisjoint(touched))

    def _clear(self, part: ThreadSlice) -> Iterator[Event]:
        """Yields the event of a tile's idle rows that become 0; raises Unsafe for other rows."""
        tile = self.reading.tiles.get(part.seen.name)
        used = 0 if tile is None else tile.heads * tile.box_rows
        slot, beyond = divmod(part.same("element"), tile.elements if tile else 1)
        if tile is None or part.seen.values["form"] != (tile.columns, used) or tile.heads == 1 or beyond:
            raise Unsafe(f"line {part.line}: it clears {part.seen.values['form']} of {part.seen.name}")
        yield Event(CLEAR, part.seen.name, slot)

    # --- fragments -----------------------------------------------------------------------------------------------

    def _fragment(self, part: ThreadSlice) -> Iterator[Event]:
        name, values = part.seen.name, part.seen.values
        if name not in self.reading.tiles:
            raise Unsafe(f"line {part.line}: a fragment of {name}, which is no tile")
        ring, places = slot_and_offsets(part, self.reading.tiles[name])
        placed = matrices(self.reading.tiles[name], places, values["count"], values["transposed"])
        if placed is None:
            raise Unsafe(f"line {part.line}: its lanes give addresses that are no rows of 8 x 8 matrices of {name}")
        slot, brought = placed
        for at, matrix in enumerate(brought):
            yield fragment(name, ring + slot, values["registers"], part.same("at") + PAIR * at, matrix)

    def _multiply(self, part: ThreadSlice) -> Iterator[Event]:
        (d, at), *operands = ((part.seen.values[operand], part.same(f"{operand}_at")) for operand in "dab")
        product = self.reading.products.get(d)
        form = (*[self.reading.dtype] * 2, "float32", *OF_AN_MMA)
        if product is None or part.seen.values["form"] != form:
            raise Unsafe(f"line {part.line}: a product into {d} of the form {part.seen.values['form']}")
        yield multiply(d, at, *operands)

    # --- stores ------------------------------------------------------------------------------------------------

    def _commit_store(self, part: ThreadSlice) -> None:
        part.check_one_thread()
        self.stores = 0

    def _stored(self, part: ThreadSlice) -> Iterator[Event]:
        if self.stores:
            raise Unsafe(f"line {part.line}: it waits for a store that is not committed")
        yield Event("stored", value=part.same("value"))

    def _rows_of_output(self, part: ThreadSlice) -> Iterator[Event]:
        if self.reading.results:
            yield self._rows_of_gradient(part)
            return
        product = next(p for p in self.reading.products.values() if p.b_transposed)
        tensor, values = self._tensor_of(part, "output"), part.seen.values
        of_part = self.reading.is_of_parts(part.seen.name)
        said = part.same("head_dim"), values["bounded"], values["dtype"], values["registers"]
        narrow = tensor.columns < product.columns and not of_part and values["heads"] == ONE_HEAD
        wanted = tensor.columns, narrow, "float32" if of_part else self.reading.dtype, product.accumulators
        if said != wanted:
            raise Unsafe(f"line {part.line} stores {said}, expected {wanted}")
        yield self._rows("output", part, part.same("row_stride"))

    def _rows_of_gradient(self, part: ThreadSlice) -> Event:
        """Returns the event of rows of a gradient, out of the accumulators that are its own."""
        name, values = part.seen.name, part.seen.values
        if name not in self.reading.results:
            raise Unsafe(f"line {part.line} stores rows of {name}, expected {' or '.join(self.reading.results)}")
        said = part.same("head_dim"), values["bounded"], values["dtype"], values["registers"]
        columns, accumulators = self.reading.tensors[name].columns, self.reading.results[name]
        narrow = columns < self.reading.products[accumulators].columns
        wanted = columns, narrow, self.reading.dtype, accumulators
        if said != wanted:
            raise Unsafe(f"line {part.line} stores {said} as {name}, expected {wanted}")
        return replace(self._rows("output", part, part.same("row_stride")), name=name)

    def _row_facts(self, part: ThreadSlice) -> Iterator[Event]:
        """Yields the event of LSE and D of rows; raises Unsafe for other tensors, or a form that is not theirs."""
        values = part.seen.values
        names = tensors_of_facts(self.reading.tensors)
        wanted = names, self.reading.tensors["O"].columns, self.reading.dtype
        if (values["tensors"], values["columns"], values["dtype"]) != wanted:
            raise Unsafe(f"line {part.line} finds LSE and D of {values['tensors']}, expected {wanted}")
        yield Event(ROW_FACTS, place=tuple(map(part.same, ("rows", "output_stride", "grad_stride", *names))))

    def _rows_of_lse(self, part: ThreadSlice) -> Iterator[Event]:
        self._tensor_of(part, "lse")
        yield self._rows("lse", part, 1)

    def _rows(self, kind: str, part: ThreadSlice, apart: Value) -> Event:
        """Returns the event of rows that are stored from an element on, so far apart."""
        heads = part.seen.values["heads"]
        wanted = ONE_HEAD if self.reading.heads[0] == 1 else self.reading.heads
        if heads != wanted:
            raise Unsafe(f"line {part.line} stores rows of heads {heads}, expected {wanted}")
        place = part.same("element"), part.same("rows"), apart, part.same("head_stride") if heads != ONE_HEAD else 0
        return Event(kind, self._name_of(part), part.same("index"), place=place)

    def _name_of(self, part: ThreadSlice) -> str:
        """Returns the name of a store's event, which says where some results are those of parts."""
        return OF_PARTS if self.reading.split and self.reading.is_of_parts(part.seen.name) else ""

    def _tensor_of(self, part: ThreadSlice, kind: str) -> Tensor:
        """Returns the tensor of a kind that a part stores to; raises Unsafe for another one."""
        tensors = RESULTS[kind][: 1 + self.reading.split]
        if part.seen.name not in tensors or part.seen.name not in self.reading.tensors:
            raise Unsafe(f"line {part.line} stores {kind} as {part.seen.name}, expected {' or '.join(tensors)}")
        return self.reading.tensors[part.seen.name]

    def _of_its_head(self, part: ThreadSlice) -> Iterator[Event]:
        heads = self.reading.heads if self.reading.heads[0] > 1 else ONE_HEAD
        if part.seen.values["heads"] != heads:
            raise Unsafe(
                f"line {part.line} reads {part.seen.name} of heads {part.seen.values['heads']}, expected {heads}"
            )
        self.of_head[part.seen.name] = part.seen.registers.written
        yield Event(PER_HEAD, part.seen.name, value=part.same("value"))


@lru_cache(maxsize=1 << 14)
def fragment(tile: str, slot: int, registers: str, at: int, matrix: Matrix) -> Event:
    """Returns the event which says that a matrix of a tile is loaded into `registers` from number `at` on."""
    return Event("fragment", tile, slot, reads=((registers, at, 0),), place=(*matrix,))


@lru_cache(maxsize=1 << 14)
def multiply(into: str, at: int, a: tuple[str, int], b: tuple[str, int]) -> Event:
    """Returns the event of an mma that adds the product of registers `a` and `b` to four accumulators from `at` on."""
    return Event("multiply", into, at, reads=((*a, 0), (*b, 0)))


HANDLES: dict[str, Callable[[Stream, ThreadSlice], Iterator[Event] | None]] = {
    **dict.fromkeys(MARKS, Stream._mark),
    "arrive": Stream._arrive,
    "init": Stream._init,
    "expect": Stream._expect,
    "take": Stream._take,
    HAND_OVER: Stream._hand_over,
    "read": Stream._read_number,
    "cluster sync": Stream._cluster,
    "fence": Stream._fence,
    "mask": Stream._compute,
    "arithmetic": Stream._compute,
    "exchange": Stream._compute,
    "commit store": Stream._commit_store,
    "stored": Stream._stored,
    CLEAR: Stream._clear,
    "fragment": Stream._fragment,
    "multiply": Stream._multiply,
    PUT: lambda stream, part: iter((p_in_shared(part, stream.reading),)),
    PER_HEAD: Stream._of_its_head,
    "rows of output": Stream._rows_of_output,
    "rows of lse": Stream._rows_of_lse,
    ROW_FACTS: Stream._row_facts,
    "arrive wgmma": lambda stream, part: stream.products.arrive(part),
    "wgmma": lambda stream, part: stream.products.instruction(part),
    "commit wgmma": lambda stream, part: stream.products.commit(part),
    "products wait": lambda stream, part: stream.products.wait(part),
    "operand fence": lambda stream, part: stream.products.fence_operand(part),
}
