"""This module proves, for all sizes, that a role of a warp-specialised kernel does for any tile what its Program says.

The sizes, the tile's number, the tiles and the loads that have been before, and the window's sides are unknown. What the
Program expects is asked of the same Roles, RowTiles, Mask and order of tiles that numbers are asked of.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from tl_attention.codeproof.comparison import OF_HEADS
from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.run.stream import HANDLES, Stream
from tl_attention.codeproof.run.thread_slice import Reading, ThreadSlice
from tl_attention.codeproof.run.threads import Class, Threads, Value
from tl_attention.codeproof.terms.arithmetic import Arithmetic
from tl_attention.codeproof.terms.comparison import Block, Comparison, Unless, blocks_of
from tl_attention.codeproof.terms.facts import NOT_NEGATIVE, Facts
from tl_attention.codeproof.terms.run import BRANCH, LEAVE, LOOP, MARKS, TILES, TermRun
from tl_attention.codeproof.terms.term import Refused, Term, holds, term
from tl_attention.codeproof.tiles.row_tiles import RowTiles
from tl_attention.codeproof.tiles.tensors import Tensor, contiguous
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.kernels.warp_specialized.roles import Roles
from tl_attention.kernels.warp_specialized.tile_order import placed, workers
from tl_attention.problem.bounds import GRID_YZ, LARGEST, ROOM
from tl_attention.problem.mask import WINDOW, Mask, ceildiv, sides
from tl_attention.problem.shape import DTYPE_BYTES
from tl_attention.problem.warpgroup import ROWS, WARPS
from tl_attention.program.events import Event, Maybe, Place, Process

# TMA reads tensors whose strides are multiples of 16 bytes.
ALIGNED = 16 // DTYPE_BYTES


class TermTile(RowTiles):
    """A TermTile is a row tile, any, whose place and sizes are terms."""

    facts: Facts

    @property
    def _arithmetic(self) -> Any:
        return Arithmetic(self.facts).ops

    @cached_property
    def blocks(self) -> tuple[Value, Value]:
        first, end = RowTiles.blocks.func(self)
        first, count = self.facts.named(first), self.facts.named(end - first)
        return first, first + count

    def kv(self, block: Any) -> Any:
        first, end = self.blocks
        return end - 1 - block if self.cut.kv_order == "descending" else first + block

    def mask(self, block: Any, offset: int, rows: int) -> Any:
        """Returns the mask of a KV block as an Unless: it may be left out where all keys are seen, or no row is there."""
        kv, (first, end) = self.kv(block), self.whole(offset, rows)
        shown = ("an unmasked KV block has hidden keys behind", end - 1 - kv), ("or before", kv - first)
        return Unless(Event("mask"), shown, (self.sizes.seq_q - self.row - offset - 1,))

    def rows_from(self, offset: int, rows: int) -> Any:
        return self.sizes.seq_q - self.row - offset

    def of_rows(self, event: Event, offset: int) -> Event:
        return event


class TermStream(Stream):
    """A TermStream turns what a process was seen doing with terms into events; marks of loops stay among them."""

    def _event(self, part: ThreadSlice) -> Any:
        kind = part.seen.kind
        if kind in MARKS:
            if part.count != len(self.own):
                raise Unsafe(f"line {part.line}: some of the threads of {self.who} have a {kind} of unknown sizes")
            index, value = (part.seen.values.get(name, 0) for name in ("index", "value"))
            yield Event(kind, index=index, value=value)
        elif kind in ("rows of output", "rows of lse"):
            self.products.check_settled(part)
            yield self._rows(part)
        else:
            yield from super()._event(part)

    def _moved(self, parts: list[ThreadSlice]) -> Any:
        if parts[0].seen.kind == "output":
            yield self._elements(parts)
        else:
            yield from super()._moved(parts)

    def _elements(self, parts: list[ThreadSlice]) -> Event:
        """Returns the event of rows whose elements threads store each by itself, where the row is there.

        Raises Unsafe unless they are all elements of a warpgroup's rows, each once.
        """
        seen, line = parts[0].seen, parts[0].line
        tensor = self.reading.tensors[seen.name]
        stride = term(tensor.row_stride)
        stored = [
            (term(element), term(inside), part.seen.values["elements"])
            for part in parts
            for element, inside in zip(part.all_of("element"), part.all_of("inside"))
        ]
        first = min((element for element, _, _ in stored), key=lambda element: element.parts.get((), 0))
        places, rows = set(), {}
        for element, inside, width in stored:
            row, column = _within(element - first, stride)
            if row.constant is None or column.constant is None:
                raise Unsafe(f"line {line} stores an element {element - first} behind the first, which is in no row")
            places |= {(row.constant, column.constant + n) for n in range(width)}
            rows[row.constant] = inside
        whole = {(row, column) for row in range(ROWS) for column in range(tensor.columns)}
        if places != whole or len(stored) * stored[0][2] != len(whole):
            raise Unsafe(f"line {line}: the output's elements are not those of {ROWS} rows, each once")
        # How many rows are left is seen of a row that need not be there.
        left = [atom.of + 1 + row for row, inside in rows.items() for atom in inside.atoms][:1] or [term(ROWS)]
        for row, inside in rows.items():
            if not self.run.facts.simpler(holds(left[0] - 1 - row)).same(inside):
                raise Unsafe(f"line {line}: row {row} is stored where {inside}, expected where {left[0] - 1 - row} >= 0")
        return Event("output", value=left[0], place=(first, left[0]))

    def _rows(self, part: ThreadSlice) -> Event:
        """Returns the event of rows that are stored, whose place is (first element, rows that are left from there)."""
        kind = {"rows of output": "output", "rows of lse": "lse"}[part.seen.kind]
        return Event(kind, self._name_of(part), part.one("index"), place=(part.one("element"), part.one("rows")))


class Told:
    """Told is what a role is told of tiles: the numbers that a counter gives, which are unknown."""

    def __init__(self, proof: TileProof):
        self.proof = proof
        self.there = proof.there
        self.drawn = 0

    def started(self, name: str, before: Value) -> Term | None:
        """Returns what a variable that is carried from tile to tile is at any tile's start, None for one that is none."""
        for prefix, start in (("turn", self.proof.turn), ("base", self.proof.base), ("tile", self.proof.number)):
            if name.startswith(prefix):
                return start
        return None

    def told(self, threads: Class) -> None:
        pass

    def add(self, threads: Class, counter: str, index: int, step: int) -> Value:
        self.drawn += 1
        return self.proof.facts.symbol(f"drawn{self.drawn}", 0, LARGEST)

    def set(self, threads: Class, counter: str, index: int, value: int) -> None:
        pass

    def put(self, threads: Class, name: str, word: Value, values: Value) -> None:
        pass

    def get(self, threads: Class, name: str, word: Value) -> Value:
        return self.proof.facts.symbol("next tile", 0, LARGEST)


class TileProof:
    """A TileProof proves what one generated kernel's roles do for any tile, at all sizes."""

    def __init__(self, proof: Proof, roles: Roles):
        self.proof, self.roles, self.facts = proof, roles, Facts()
        self.variant, self.schedule = proof.code.variant, proof.schedule
        symbol = self.facts.symbol
        fixed = self.variant.sizes
        keys = int(self.schedule.kernel.tile_order == "sections")
        bounds = {"batch": (1, GRID_YZ), "heads": (1, GRID_YZ), "seq_q": (1, LARGEST - ROOM), "seq_kv": (keys, LARGEST - ROOM)}
        if fixed:
            bounds = {name: (size, size) for name, size in fixed._asdict().items()}
        self.sizes = SimpleNamespace(**{name: symbol(name, *ends) for name, ends in bounds.items()})
        if self.variant.group > 1 and not fixed:
            self.sizes.heads = self.variant.group * symbol("heads_kv", 1, GRID_YZ // self.variant.group)
        self.sizes.past_len = self.sizes.seq_kv - self.sizes.seq_q
        self.turn, self.base = symbol("turn", 0, LARGEST - ROOM), symbol("base", 0, LARGEST - 2**20)
        self.ops = Arithmetic(self.facts).ops
        self.total = ceildiv(self.sizes.seq_q, proof.rows) * self.variant.heads_of_tiles(self.sizes.heads) * self.sizes.batch
        self.number, self.cluster = symbol("number", 0, LARGEST, below=self.total), symbol("cluster", 0, 2**20)

    @cached_property
    def there(self) -> list[Term]:
        """Returns what is not negative where the tile is there."""
        row_tiles, last = ceildiv(self.sizes.seq_q, self.proof.rows), self.total - 1
        with self.facts.assuming(last - self.number):
            return [last - self.number, self.facts.at_most(self.number, last, row_tiles)]

    @cached_property
    def names(self) -> dict[str, Value]:
        """Returns, by name, the values that the kernel reads at run time."""
        found = {name: getattr(self.sizes, name) for name in ("batch", "heads", "seq_q", "seq_kv")}
        for name in self.variant.mask.names:
            found[name] = self.facts.symbol(name, 0, LARGEST - ROOM)
        for parameter in self.proof.code.parameters:
            for stride in parameter.strides or ():
                found[stride] = ALIGNED * self.facts.symbol(stride, 1, LARGEST)
        return found

    @cached_property
    def mask(self) -> Mask:
        given = dict(zip(WINDOW, sides(self.variant.mask)))
        read = {name: self.names[name] for name in self.variant.mask.names}
        left, right = ({**given, **read}[name] for name in WINDOW)
        own = self.variant.mask
        return Mask(left if own.left is not None else None, right if own.right is not None else None)

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        known: dict[str | int, Any] = self.variant.dims(SimpleNamespace(**self._sizes)) if False else self._dims
        found = {}
        for parameter in self.proof.code.parameters:
            if parameter.name in ("Output", "LSE", "Q", "K", "V") and parameter.dims:
                shape = tuple(known[dim] for dim in parameter.dims)
                strided = self.variant.strided and parameter.strides
                strides = (*(self.names[name] for name in parameter.strides), 1) if strided else contiguous(shape)
                found[parameter.name] = Tensor(shape, tuple(strides))
        return found

    @property
    def _dims(self) -> dict[str | int, Any]:
        sizes = {name: getattr(self.sizes, name) for name in ("batch", "heads", "seq_q", "seq_kv")}
        heads_kv = sizes["heads"] if self.variant.group == 1 else sizes["heads"] // self.variant.group
        return {**sizes, "heads_kv": heads_kv, "head_dim": self.variant.head_dim, "head_dim_v": self.variant.head_dim_v}

    def tile(self, rank: int) -> TermTile:
        """Returns the tile of this number, that of one block of its cluster."""
        named, cluster = self.facts.named, self.roles.cluster
        tile, head = map(named, placed(self.number, self.sizes, self.proof.rows, self.schedule, self.variant, self.ops))
        batch, head = map(named, divmod(head, self.variant.heads_of_tiles(self.sizes.heads)))
        cut = replace(self.proof.cut, variant=replace(self.variant, mask=self.mask))
        row = named((tile * cluster + rank) * cut.block_M)
        head = self.variant.first_head(head, self.ops)
        found = TermTile(cut, self.sizes, row, head, batch, rank, True, self.tensors)
        found.facts = self.facts
        return found

    def check(self) -> None:
        """Raises Unsafe unless all roles do for any tile what is expected."""
        try:
            for process in self.roles.processes:
                self.check_role(process)
        except Refused as error:
            raise Unsafe(str(error)) from None

    def check_role(self, process: Process) -> None:
        """Raises Unsafe unless a role does for any tile what is expected."""
        alone = partial(_alone, process)
        found = blocks_of(self._events(process))
        [at] = (n for n, one in enumerate(found) if isinstance(one, Block) and one.kind == TILES)
        self._run_of_tile(process, found[at], alone)

    def _events(self, process: Process) -> list[Event]:
        producer = process.warpgroup < 0
        y = self.roles.warpgroups if producer else process.warpgroup
        threads = Threads(np.array([process.block]), 1, (0,) if producer else tuple(range(WARPS)), first_y=y)
        names = {
            **self.names,
            "blockIdx_x": self.roles.cluster * self.cluster + process.block,
            "tl__block_rank_in_cluster": process.block,
        }
        self.told = Told(self)
        self.run = TermRun(self.proof.kernel, threads, names, self.facts, self.roles.cluster, self.told)
        self.run.go()
        boxes = {descriptor.name: descriptor.box[0] for descriptor in self.proof.plan.descriptors}
        heads = self.variant.tile_heads, self.variant.box
        reading = Reading(
            self.proof.tiles, self.proof.products, self.tensors, self.variant.dtype, boxes, self.variant.parts, False, heads
        )
        events = TermStream(self.run, np.arange(len(threads)), str(process), reading).events()
        return [event for event in events if event.kind not in OF_HEADS]

    def _run_of_tile(self, process: Process, tiles: Block, alone: Any) -> None:
        leave, *inside = tiles.inside
        if not isinstance(leave, Block) or leave.kind != LEAVE:
            raise Unsafe(f"{process} does not begin a tile by asking whether it is there")
        show = self.facts.show
        show(f"{process}: the end of the tiles", term(leave.value) - holds(self.number - self.total))
        with self.facts.assuming(*self.there):
            tile = self.tile(process.block)
            first, end = tile.blocks
            count = self.facts.named(end - first)
            least = self.proof.program.least_blocks
            show(f"{process}: a tile's KV blocks", count - least, NOT_NEGATIVE)
            with self.facts.assuming(count - least):
                expected = self.roles.of_tile(process, self.turn, self.base, count, tile, self.ops)
                Comparison(self.facts, str(process), alone, partial(self._placed, tile)).compare(inside, expected)
                self._check_carried(process, count)

    def _check_carried(self, process: Process, count: Term) -> None:
        """Raises Unsafe unless what is carried from tile to tile is right at first, and behind a tile for the next."""
        show, scheduler = self.facts.show, self.schedule.kernel.tile_scheduler
        for name, (before, started) in self.run.carried.items():
            end = self.run.ends[name]
            if end is None:
                raise Unsafe(f"{process}: {name} has no value behind a tile")
            if started is self.number:
                show(f"{process}: {name} at first", term(before) - self.cluster)
                if scheduler == "one_tile":
                    show(f"{process}: no tile behind the first", term(end) - self.total, NOT_NEGATIVE)
                else:
                    step = workers(self.schedule, self.variant)
                    wanted = started + step if scheduler == "static" else self.told.get(None, "", 0)
                    show(f"{process}: the number of the next tile", term(end) - wanted)
            else:
                show(f"{process}: {name} at first", before)
                show(f"{process}: {name} behind a tile", term(end) - started - (1 if started is self.turn else count))

    def _placed(self, tile: TermTile, event: Event) -> tuple[Any, ...]:
        if event.kind not in ("output", "lse"):
            return event.place
        row, head, batch = event.place
        tensor = self.tensors["Output" if event.kind == "output" else "LSE"]
        return tensor.element(batch, head, row), tile.sizes.seq_q - row


def _within(element: Term, stride: Term) -> tuple[Term, Term]:
    """Returns (row, column) of an element, by its form where the rows' stride is not known."""
    if stride.constant is not None:
        return divmod(element, stride)
    ((monomial, factor),) = stride.parts.items()
    row = term(element.parts.get(monomial, 0) // factor)
    return row, element - row * stride


def _alone(process: Process, event: Event) -> bool:
    from tl_attention.codeproof.warp_specialized.code_proof import _alone as of_numbers

    return of_numbers(process, {}, event)


_ = (HANDLES, Maybe, Place, BRANCH, LOOP)
