"""This module proves, for all sizes, that a role of a warp-specialised kernel does for any tile what its Program says.

The sizes, the tile's number, the tiles and the loads that have been before, and the window's sides are unknown. What the
Program expects is asked of the same Roles, RowTiles, Mask and order of tiles that numbers are asked of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from tl_attention.codeproof.comparison import COUNTS, OF_HEADS
from tl_attention.codeproof.launch import check_descriptors
from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.read.copies import HAND_OVER
from tl_attention.codeproof.read.nodes import PER_HEAD
from tl_attention.codeproof.run.stream import Stream
from tl_attention.codeproof.run.thread_slice import Reading, ThreadSlice
from tl_attention.codeproof.run.threads import Class, Threads, Value
from tl_attention.codeproof.terms.arithmetic import Arithmetic
from tl_attention.codeproof.terms.comparison import Block, Comparison, Unless, blocks_of
from tl_attention.codeproof.terms.facts import Facts
from tl_attention.codeproof.terms.run import LEAVE, MARKS, TILES, TermRun
from tl_attention.codeproof.terms.term import Refused, Term, equal, holds, least, term
from tl_attention.codeproof.tiles.row_tiles import Cut, RowTiles
from tl_attention.codeproof.tiles.tensors import Tensor, contiguous, packed_tensors
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.kernels.warp_specialized.roles import Roles
from tl_attention.kernels.warp_specialized.tile_order import placed, workers
from tl_attention.problem.bounds import GRID_YZ, LARGEST, ROOM
from tl_attention.problem.features import features_of
from tl_attention.problem.mask import WINDOW, Mask, ceildiv, sides
from tl_attention.problem.packed import TOLD_WORDS
from tl_attention.problem.shape import DTYPE_BYTES
from tl_attention.problem.variant import Sizes
from tl_attention.problem.warpgroup import ROWS, WARPS
from tl_attention.program.events import OF_PARTS, TILE, Event, Loop, Maybe, Process, Where

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
        return self._arithmetic.min(self.left(offset), rows)

    def left(self, offset: int) -> Any:
        """Returns how many rows the problem has from the tile's `offset` on, which may be none."""
        return self.sizes.seq_q - self.row - offset

    @property
    def split(self) -> None:
        """Says nothing: `of_rows` tells where a tile has a part."""

    def place_of_results(self, offset: int = 0) -> tuple[Value, Value, Value]:
        row, head, batch = self.place(offset)
        return row, head, batch if self.result is None or self.begins else self.result

    def of_rows(self, event: Event, offset: int) -> Any:
        """Returns the event of a warpgroup's rows, which are all stored, or of parts of packed sequences at their place."""
        if self.begins is None or self.result is None:
            return Maybe(event) if self.facts.sign(term(-self.left(offset))) > 0 else event
        own = self.result + offset // self.box * ROWS
        of_part = replace(event, name=OF_PARTS, place=(own, offset, 0))
        return Where(self.there, (of_part,), (event,))


class TermStream(Stream):
    """A TermStream turns what a process was seen doing with terms into events; marks of loops stay among them."""

    # How many rows are left from the process's first one on.
    left: Callable[[], Any]

    def _event(self, part: ThreadSlice) -> Any:
        """Yields the events of a part, with the line in the place of a step, which code does not show."""
        yield from (replace(event, step=part.line) for event in self._events_of(part))

    def _events_of(self, part: ThreadSlice) -> Any:
        kind = part.seen.kind
        if kind in MARKS:
            if part.count != len(self.own):
                raise Unsafe(f"line {part.line}: some of the threads of {self.who} have a {kind} of unknown sizes")
            index, value = (part.seen.values.get(name, 0) for name in ("index", "value"))
            yield Event(kind, index=index, value=value)
        elif kind in ("rows of output", "rows of lse"):
            self.products.check_settled(part)
            yield self._rows(part)
        elif kind == HAND_OVER and "entry" in part.seen.values:
            place = part.one("entry"), part.one("head")
            yield from (replace(event, place=place) for event in super()._event(part))
        else:
            yield from super()._event(part)

    def _moved(self, parts: list[ThreadSlice]) -> Any:
        events = [self._elements(parts)] if parts[0].seen.kind == "output" else super()._moved(parts)
        yield from (replace(event, step=parts[0].line) for event in events)

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
            for element, inside in zip(
                part.all_of("element"), part.all_of("inside") if "inside" in part.seen.values else [1] * part.count
            )
        ]
        first = min((element for element, _, _ in stored), key=lambda element: element.parts.get((), 0))
        places, rows = set(), {}
        for element, inside, width in stored:
            row, column = _within(element - first, stride)
            if row.constant is None or column.constant is None:
                raise Unsafe(f"line {line} stores an element {element - first} behind the first, which is in no row")
            places |= {(row.constant, column.constant + n) for n in range(width)}
            rows[row.constant] = inside
        whole = {(row, column) for row in rows for column in range(tensor.columns)}
        if places != whole or len(stored) * stored[0][2] != len(whole):
            raise Unsafe(f"line {line}: the output's elements are not those of whole rows, each once")
        # How many rows are left is seen of a row that need not be there.
        facts = self.run.facts
        with facts.assuming(*self.run.tiles.there):
            left = self.left()
            for row in sorted({*range(ROWS), *rows}):
                facts.show_equal(f"line {line}: where row {row} is stored", rows.get(row, 0), holds(left - 1 - row))
            left = facts.simpler(least(left, ROWS))
        return Event("output", value=left, place=(first, left, tensor.row_stride, 0))

    def _rows(self, part: ThreadSlice) -> Event:
        """Returns the event of rows that are stored; its place says where, as `placed` does."""
        kind, values = {"rows of output": "output", "rows of lse": "lse"}[part.seen.kind], part.seen.values
        apart = (
            part.one("row_stride") if kind == "output" else 1,
            part.one("head_stride") if "head_stride" in values else 0,
        )
        place = part.one("element"), part.one("rows"), *apart
        return Event(kind, self._name_of(part), part.one("index"), place=place)


class Told:
    """Told is what a role is told of tiles, which is unknown: numbers of a counter, and the words of entries."""

    def __init__(self, proof: TileProof):
        self.proof, self.there = proof, proof.there
        self.before = True
        # What is done with the counters: the threads that count blocks, and those that reset, each with the facts there.
        self.counted: list[int] = []
        self.resets: list[tuple[int, int, int, tuple[Term, ...]]] = []
        self.next_number: Value = proof.number + workers(proof.schedule, proof.variant)

    def started(self, name: str, before: Value) -> Term | None:
        """Returns what a variable that is carried from tile to tile is at any tile's start, None for one that is none."""
        self.before = False
        for word in range(TOLD_WORDS):
            if isinstance(before, Term) and before.same(self.proof.word("first", word)):
                return self.proof.word("told", word)
        starts = {
            "turn": self.proof.turn,
            "base": self.proof.base,
            "tile": self.proof.number,
            "number": self.proof.number,
        }
        return next((start for prefix, start in starts.items() if name.startswith(prefix)), None)

    def told(self, threads: Class) -> None:
        pass

    def ended(self, threads: Class) -> None:
        pass

    def of_warps(self, threads: Class, *values: Value) -> tuple[Class, tuple[Value, ...]]:
        return threads, values

    def add(self, threads: Class, counter: str, index: int, step: int) -> Value:
        found = self.proof.facts.symbol(f"{counter}[{index}]", 0, LARGEST - ROOM)
        if index == 1:
            self.counted.append(len(threads.threads))
        if index == 0:
            self.next_number = found + workers(self.proof.schedule, self.proof.variant)
        return found

    def set(self, threads: Class, counter: str, index: int, value: int) -> None:
        self.resets.append((index, value, len(threads.threads), self.proof.facts.here))

    def check_counters(self, blocks: int) -> None:
        """Raises Unsafe unless a thread of each block counts it behind its tiles, and the last one resets both counters."""
        last = equal(self.proof.facts.symbol("TileCounter[1]", 0, LARGEST - ROOM), blocks - 1) - 1
        by_last = [(*told, last in facts) for *told, facts in self.resets]
        if self.counted != [1] or by_last != [(0, 0, 1, True), (1, 0, 1, True)]:
            raise Unsafe(f"the counters of tiles are reset by {by_last}, expected the last of {blocks} blocks")

    def listed(self, threads: Class) -> Told:
        return self

    def count(self, blocks: Any) -> Term:
        return self.proof.row_tiles

    def words(self, blocks: Any, entry: Value) -> list[Value]:
        """Returns nothing but notes which entry is handed over."""
        self.proof.run.handed = entry
        return []

    def put(self, threads: Class, name: str, word: Value, values: Value) -> None:
        run = self.proof.run
        if self.proof.roles.packed and isinstance(values, Term):
            run.seen[-1].values |= {"entry": run.handed, "head": values}
        elif not self.proof.roles.packed:
            self.proof.facts.show_equal("the number that is told of the next tile", values, self.next_number)

    def get(self, threads: Class, name: str, word: Value) -> Value:
        """Returns a word of the tile that a slot has, which is this one, the first, or the next."""
        slot, roles = self.proof.run.seen[-1].values["index"], self.proof.roles
        if not roles.packed:
            return self.proof.facts.symbol("next number", 0, LARGEST)
        slots = roles.slots(TILE)
        turns = {"first": term(0)} if self.before else {"told": self.proof.turn, "next": self.proof.turn + 1}
        for which, turn in turns.items():
            if self.proof.facts.is_zero(term(slot) - turn % slots):
                return self.proof.word(which, word)
        raise Refused(f"what is told of a tile is read in slot {slot}")


class TileProof:
    """A TileProof proves what one generated kernel's roles do for any tile, at all sizes."""

    def __init__(self, proof: Proof, roles: Roles):
        self.proof, self.roles, self.facts = proof, roles, Facts()
        self.ran: set[int] = set()
        self.variant, self.schedule = proof.code.variant, proof.schedule
        symbol = self.facts.symbol
        fixed = self.variant.sizes
        keys = int(self.schedule.kernel.tile_order == "sections")
        bounds = {
            "batch": (1, GRID_YZ),
            "heads": (1, GRID_YZ),
            "seq_q": (1, LARGEST - ROOM),
            "seq_kv": (keys, LARGEST - ROOM),
        }
        if fixed:
            bounds = {name: (size, size) for name, size in fixed._asdict().items()}
        self.sizes = SimpleNamespace(**{name: symbol(name, *ends) for name, ends in bounds.items()})
        if self.variant.group > 1 and not fixed:
            self.sizes.heads = self.variant.group * symbol("heads_kv", 1, GRID_YZ // self.variant.group)
        self.sizes.past_len = self.sizes.seq_kv - self.sizes.seq_q
        self.packed, of_tiles = roles.packed, self.variant.heads_of_tiles(self.sizes.heads)
        self.parts = symbol("parts", 1, 2**16) if self.variant.parts and not self.packed else term(1)
        self.row_tiles = symbol("row_tiles", 0, 2**26) if self.packed else ceildiv(self.sizes.seq_q, proof.rows)
        self.of_results = of_tiles if self.packed else of_tiles * self.sizes.batch * self.parts
        self.turn, self.base = symbol("turn", 0, LARGEST - ROOM), symbol("base", 0, LARGEST - 2**20)
        self.ops = Arithmetic(self.facts).ops
        self.total = self.row_tiles * self.of_results
        self.number, self.cluster = symbol("number", 0, LARGEST, below=self.total), symbol("cluster", 0, 2**20)

    @cached_property
    def there(self) -> list[Term]:
        """Returns what is not negative where the tile is there; of packed sequences the list of tiles has such entries."""
        if self.packed:
            row, seq_q, first, end = (self.word("told", word) for word in (0, 2, 5, 6))
            return [row, seq_q - 1 - row * self.proof.cut.block_M, end - 1 - first]
        last = self.total - 1
        with self.facts.assuming(last - self.number):
            return [last - self.number, self.facts.at_most(self.number, last, self.row_tiles)]

    def word(self, which: str, number: int) -> Term:
        """Returns a word of what is told of the first tile, of this one or of the next."""
        rows = LARGEST // 2
        bounds = (
            (-1, rows),
            (0, rows),
            (1, rows),
            (0, rows),
            (0, rows),
            (0, LARGEST),
            (1, LARGEST),
            (0, 2**26),
            (0, GRID_YZ),
        )
        return self.facts.symbol(f"{which}.{number}", *bounds[number])

    @cached_property
    def names(self) -> dict[str, Value]:
        """Returns, by name, the values that the kernel reads at run time."""
        found = {name: getattr(self.sizes, name) for name in ("batch", "heads", "seq_q", "seq_kv")}
        for name in self.variant.mask.names:
            found[name] = self.facts.symbol(name, 0, LARGEST - ROOM)
        if self.variant.parts and not self.packed:
            part_blocks = self.facts.symbol("part_blocks", 1, 2**26)
            found |= {"results": self.sizes.batch * self.parts, "part_blocks": part_blocks}
        elif self.variant.parts:
            found["results"] = self.facts.symbol("results", 1, LARGEST)
        for parameter in self.proof.code.parameters:
            for dim in parameter.dims:
                if isinstance(dim, str) and dim not in (*found, "heads_kv", "head_dim", "head_dim_v"):
                    found[dim] = self.facts.symbol(dim, 1, LARGEST)
        for parameter in self.proof.code.parameters if self.variant.strided else ():
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
    def shapes(self) -> dict[str, tuple[Any, ...]]:
        """Returns the shapes of the kernel's tensors, by name."""
        known = self.variant.dims(Sizes(*(self.names[name] for name in Sizes._fields))) | self.names
        return {p.name: tuple(known.get(dim, dim) for dim in p.dims) for p in self.proof.code.parameters if p.dims}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Returns the kernel's tensors of rows, by name, each with its shape and its strides."""
        rows = {"seq_q", "seq_kv", "results"}
        parameters = [p for p in self.proof.code.parameters if not rows.isdisjoint(p.dims)]
        strides = {p.name: tuple(self.names[name] for name in p.strides) for p in parameters if self.variant.strided}
        if self.packed:
            apart = {name: (of[1], of[0]) for name, of in strides.items() if of}
            return packed_tensors(parameters, self.shapes, self.variant.box, apart)
        return {
            p.name: Tensor(
                self.shapes[p.name], (*strides[p.name], 1) if strides.get(p.name) else contiguous(self.shapes[p.name])
            )
            for p in parameters
        }

    def check_launch(self) -> None:
        """Raises Unsafe unless the host's descriptors and grid are those of the tensors and tiles, at all sizes."""
        proof, cluster = self.proof, self.roles.cluster
        check_descriptors(proof.plan, proof.tiles, self.tensors, self.shapes, self.names, self.variant.dtype)
        grid = [term(part.at(self.names)) for part in proof.plan.grid]
        one_tile = self.schedule.kernel.tile_scheduler == "one_tile"
        wanted = (self.total if one_tile else workers(self.schedule, self.variant)) * cluster
        for found, expected in zip(grid, (wanted, 1, 1), strict=True):
            self.facts.show_equal("the number of blocks", found, expected)
        if proof.plan.cluster != (cluster, 1, 1):
            raise Unsafe(f"clusters of {proof.plan.cluster}, expected {cluster}")

    def tile(self, rank: int) -> TermTile:
        """Returns the tile of this number, or the told one, that of one block of its cluster."""
        cut = replace(self.proof.cut, variant=replace(self.variant, mask=self.mask))
        found = self._told_tile(cut, rank) if self.packed else self._tile_of_number(cut, rank)
        found.facts = self.facts
        return found

    def _told_tile(self, cut: Cut, rank: int) -> TermTile:
        row, q_begin, seq_q, k_begin, seq_kv, first, end, place, of_heads = (
            self.word("told", n) for n in range(TOLD_WORDS)
        )
        sizes = SimpleNamespace(seq_q=seq_q, seq_kv=seq_kv, past_len=seq_kv - seq_q, heads=self.sizes.heads)
        heads = self.variant.heads_of_tiles(self.sizes.heads)
        result = ((place - 1) * heads + of_heads) * self.schedule.block_M
        own: Any = {"part": (first, end), "result": result} if self.variant.parts else {}
        head, begins = self.variant.first_head(of_heads, self.ops), (q_begin, k_begin)
        first_row = (row + rank) * cut.block_M
        return TermTile(cut, sizes, first_row, head, 0, rank, holds(place - 1), self.tensors, begins=begins, **own)

    def _tile_of_number(self, cut: Cut, rank: int) -> TermTile:
        named, heads = self.facts.named, self.variant.heads_of_tiles(self.sizes.heads)
        order = placed(self.number, self.sizes, self.of_results, self.proof.rows, self.schedule, self.variant, self.ops)
        tile, head = map(named, order)
        result, head = map(named, divmod(head, heads))
        own: Any = {}
        batch = result
        if self.variant.parts:
            part, batch = map(named, divmod(result, self.sizes.batch))
            each = self.names["part_blocks"]
            own = {"part": (part * each, (part + 1) * each), "result": result}
        row = named((tile * self.roles.cluster + rank) * cut.block_M)
        head = self.variant.first_head(head, self.ops)
        return TermTile(cut, self.sizes, row, head, batch, rank, True, self.tensors, **own)

    def check(self) -> None:
        """Raises Unsafe unless all roles do for any tile what is expected."""
        try:
            self.check_launch()
            for process in self.roles.processes:
                self.check_role(process)
        except Refused as error:
            raise Unsafe(str(error)) from None

    def check_role(self, process: Process) -> None:
        """Raises Unsafe unless a role does for any tile what is expected, and before and behind all tiles."""
        found = blocks_of(self._events(process))
        at = [number for number, one in enumerate(found) if isinstance(one, Block) and one.kind == TILES]
        if len(at) != 1:
            raise Unsafe(f"{process} has {len(at)} loops over tiles")
        if process.warpgroup < 0 and self.roles.dynamic:
            self.told.check_counters(workers(self.schedule, self.variant) * self.roles.cluster)
        elif self.told.counted or self.told.resets:
            raise Unsafe(f"{process} counts blocks or resets what counts tiles")
        together = len(self.roles.together)
        before, behind = self.proof._started(found[: at[0]], process)[together:], without_heads(found[at[0] + 1 :])
        compare = Comparison(self.facts, str(process), partial(_alone, process), self._placed).compare
        compare(before, self._handed(self.roles.before_tiles(process), self.cluster))
        self._check_tile(process, found[at[0]])
        compare(behind, (*self.roles.behind_tiles(process), *self.roles.together))

    def _handed(self, expected: Iterable[Any], number: Value) -> Iterator[Any]:
        """Yields what is expected with what is handed over of the tile of a number, which may be none."""
        for event in expected:
            if isinstance(event, Loop):
                body = event.body
                yield event._replace(body=lambda t, body=body: self._handed(body(t), number))
            elif isinstance(event, Where):
                yield event._replace(events=[*self._handed(event.events, number)])
            elif self.packed and isinstance(event, Event) and event.kind == "take":
                heads = self.of_results
                there = replace(event, place=(number // heads, number % heads))
                yield Where(holds(self.total - 1 - number), (there,), (event,))
            else:
                yield event

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
        self.ran |= self.run.ran
        boxes = {descriptor.name: descriptor.box[0] for descriptor in self.proof.plan.descriptors}
        heads = self.variant.tile_heads, self.variant.box
        reading = Reading(
            self.proof.tiles,
            self.proof.products,
            self.tensors,
            self.variant.dtype,
            boxes,
            self.variant.parts,
            self.variant.parts and self.packed,
            heads,
        )
        stream = TermStream(self.run, np.arange(len(threads)), str(process), reading)
        stream.left = lambda: self.tile(process.block).left(self.variant.box * process.warpgroup)
        return [*stream.events()]

    def _check_tile(self, process: Process, tiles: Block) -> None:
        leave, *inside = tiles.inside
        if not isinstance(leave, Block) or leave.kind != LEAVE:
            raise Unsafe(f"{process} does not begin a tile by asking whether it is there")
        there = holds(self.word("told", 0) if self.packed else self.total - 1 - self.number)
        self.facts.show_equal(f"the end of the tiles of {process}", leave.value, 1 - there)
        with self.facts.assuming(*self.there):
            tile = self.tile(process.block)
            first, end = tile.blocks
            count = self.facts.named(end - first)
            least = self.proof.program.least_blocks
            self.facts.show(f"a tile's KV blocks less {least}", count - least)
            with self.facts.assuming(count - least):
                expected = self.roles.of_tile(process, self.turn, self.base, count, tile, self.ops)
                compare = Comparison(
                    self.facts, str(process), partial(_alone, process), partial(self._placed, tile=tile)
                )
                if process.warpgroup >= 0:
                    self._check_heads(process, inside, tile)
                compare.compare(without_heads(inside), self._handed(expected, term(self.told.next_number)))
                self._check_carried(process, count)

    def _check_heads(self, process: Process, found: list[Event | Block], tile: TermTile) -> None:
        """Raises Unsafe unless each number of a tile's head is read once, and what counts once counts in whole tiles."""
        for feature in features_of(self.variant.acting):
            read = [one for one in found if isinstance(one, Event) and (one.kind, one.name) == (PER_HEAD, feature.name)]
            if feature.per_head and len(read) != 1:
                raise Unsafe(f"{process} reads {feature.name} {len(read)} times")
            for one in read:
                self.facts.show_equal(f"line {one.step}: the head of {feature.name} of {process}", one.value, tile.head)
            if feature.counts_once and self.packed and self.variant.parts:
                self._check_counted(process, found, feature.name, tile.there)

    def _check_counted(self, process: Process, found: list[Event | Block], name: str, split: Term) -> None:
        counted = [
            (term(block.value), side is block.otherwise)
            for block in found
            if isinstance(block, Block)
            for side in (block.inside, block.otherwise)
            if any(isinstance(one, Event) and (one.kind, one.name) == (COUNTS, name) for one in side)
        ]
        if len(counted) != 1:
            raise Unsafe(f"{process}: {name} count {len(counted)} times")
        for condition, otherwise in counted:
            here = 1 - condition if otherwise else condition
            self.facts.show_equal(f"where {name} count for {process}", here, 1 - split)

    def _check_carried(self, process: Process, count: Term) -> None:
        """Raises Unsafe unless what is carried from tile to tile is right at first, and behind a tile for the next."""
        show, scheduler = self.facts.show_equal, self.schedule.kernel.tile_scheduler
        for name, (before, started) in self.run.carried.items():
            end = self.run.ends[name]
            if end is None:
                raise Unsafe(f"{process}: {name} has no value behind a tile")
            if started is self.number and self.packed:
                show(f"{name} of {process} at first", before, self.cluster)
                show(f"the next tile's number of {process}", end, self.told.next_number)
            elif started is self.number:
                show(f"{name} of {process} at first", before, self.cluster)
                if scheduler == "one_tile":
                    self.facts.show(f"no tile behind the first of {process}", term(end) - self.total)
                else:
                    step = workers(self.schedule, self.variant)
                    wanted = started + step if scheduler == "static" else self.facts.symbol("next number", 0, LARGEST)
                    show(f"the next tile's number of {process}", end, wanted)
            elif started.symbols <= {f"told.{word}" for word in range(TOLD_WORDS)}:
                (symbol,) = started.symbols
                wanted = self.word("next", int(symbol.partition(".")[2]))
                show(f"what {name} of {process} tells of the next tile", end, wanted)
            else:
                show(f"{name} of {process} at first", before, 0)
                show(f"{name} of {process} behind a tile", end, started + (1 if started is self.turn else count))

    def _placed(self, event: Event, tile: TermTile | None = None) -> tuple[Any, ...]:
        if tile is None or event.kind not in ("output", "lse"):
            return event.place
        row, head, batch = event.place
        whole = self.packed and self.variant.parts and not event.name
        names = {"output": ("Output", "Merged"), "lse": ("LSE", "MergedLSE")}
        tensor = self.tensors[names[event.kind][whole]]
        if event.name:
            element, left = row * tensor.row_stride, tile.sizes.seq_q - tile.row - head
        else:
            element = tensor.element(0 if self.packed else batch, head, row)
            left = tile.sizes.seq_q + tile.queries[0] - row
        if event.kind == "output" and self.schedule.kernel.output == "direct":
            left = self.ops.min(left, ROWS)
        return element, left, tensor.row_stride, tensor.head_stride if self.variant.tile_heads > 1 else 0


def without_heads(found: list[Event | Block]) -> list[Event | Block]:
    """Returns what a process does but for reads of numbers of heads, and arithmetic with these."""
    kept: list[Event | Block] = []
    for one in found:
        if isinstance(one, Block):
            kept.append(replace(one, inside=without_heads(one.inside), otherwise=without_heads(one.otherwise)))
        elif one.kind not in OF_HEADS:
            kept.append(one)
    return kept


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
