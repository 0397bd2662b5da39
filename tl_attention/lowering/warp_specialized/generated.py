"""Proves the generated warp-specialised kernel: its threads run the events of their roles, on the tiles that they should.

`races.py` has proved these events; what else could make threads wait for each other is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm

import numpy as np

from tl_attention.hardware.device import HOPPER
from tl_attention.hardware.warpgroup import MEETING, ROWS, WARP, WARPS
from tl_attention.loop.exp2 import COEFFICIENTS
from tl_attention.lowering.warp_specialized.device_code import PRELUDE, exp2_polynomial
from tl_attention.lowering.warp_specialized.grid import NONE, GridTiles
from tl_attention.lowering.warp_specialized.resources import split_registers
from tl_attention.lowering.warp_specialized.roles import Roles
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import INTEGERS, kv_blocks
from tl_attention.problem.variant import Sizes
from tl_attention.program.program import Program
from tl_attention.proof.cuda.proof import MOST_KEYS, Proof
from tl_attention.proof.cuda.iterations import every
from tl_attention.proof.cuda.refused import Unsafe
from tl_attention.proof.cuda.run import Lengths, Run
from tl_attention.proof.cuda.stream import Expected, Stream
from tl_attention.proof.cuda.text import Arithmetic, For, Step
from tl_attention.proof.cuda.threads import Threads
from tl_attention.proof.cuda.tiles import Product, Tile
from tl_attention.proof.events import CLUSTER, NAMED, Event, Process, Q
from tl_attention.proof.generated.verdict import GeneratedCode, Verdict
from tl_attention.schedule.schedule import Schedule

IDLE = "an idle warp"
# Blocks that work on more tiles than this, of fixed sizes, are looked at for the first tiles; so many numbers of tiles
# at both ends of the grid are.
MOST_TURNS, SAMPLE = 64, 1 << 11
# Tiles of a block that run one after another.
TILES = 2
Place = tuple[int, int, int]


class RolesProof(Proof):
    """The proof of one kernel."""

    @cached_property
    def roles(self) -> Roles:
        return Roles.of(self.schedule, self.program)

    @property
    def prelude(self) -> str:
        polynomial = self.schedule.softmax.exp2_polynomial
        return PRELUDE if polynomial is None else PRELUDE + exp2_polynomial(COEFFICIENTS[polynomial.degree])

    @cached_property
    def tiles(self) -> dict[str, Tile]:
        variant, block_N = self.code.variant, self.schedule.block_N
        swizzled = {descriptor.tensor: descriptor.swizzle != 0 for descriptor in self.plan.descriptors}
        through_registers = self.roles.q_in_registers
        slots = self.roles.slots
        return {
            "Q": Tile("Q", ROWS, variant.head_dim, slots("Q"), not through_registers or swizzled.get("Q", True)),
            "K": Tile("K", block_N, variant.head_dim, slots("K")),
            "V": Tile("V", block_N, variant.head_dim_v, slots("V")),
        }

    @cached_property
    def products(self) -> dict[str, Product]:
        variant, block_N = self.code.variant, self.schedule.block_N
        q = "Q_local" if self.roles.q_in_registers else self.tiles["Q"]
        return {
            "acc_s": Product("acc_s", q, self.tiles["K"], block_N, variant.head_dim, False),
            "acc_o": Product("acc_o", "acc_s_cast", self.tiles["V"], variant.head_dim_v, block_N, True),
        }

    @cached_property
    def ring_period(self) -> int:
        return lcm(4, *(2 * depth for depth in self.program.buffers.values()))

    def check_code(self) -> None:
        wanted = {name: self.roles.slots(name.partition("_")[0]) for name in self.roles.counts}
        found = self.kernel.declared.barriers
        if found != wanted:
            raise Unsafe(f"its mbarriers are {found}, expected {wanted}")
        numbers = self.kernel.declared.numbers
        if numbers != ({"next_tile": 2} if self.roles.dynamic else {}):
            raise Unsafe(f"its numbers in shared memory are {numbers}")

    def sizes(self) -> Iterator[Sizes]:
        block_N, rows = self.schedule.block_N, self.schedule.block_M * self.schedule.kernel.cluster
        for blocks in range(1, self.program.span + 3):
            ragged = blocks * block_N - block_N // 3
            for seq_q, seq_kv in ((rows - 3, ragged), (rows, blocks * block_N), (5, ragged)):
                yield Sizes(1, TILES * self.workers, min(seq_q, seq_kv), seq_kv)
        # So long that no number of the code is longer.
        yield Sizes(1, TILES * self.workers, 5, MOST_KEYS)

    def grids(self) -> Iterator[Sizes]:
        # Late: it imports tilelang.
        from tl_attention.lowering.warp_specialized.tiles import SECTION_BYTES, TAPER

        rows = self.schedule.block_M * self.schedule.kernel.cluster
        # One row tile of many heads, so that a number in the order of tiles is not divided by anything else.
        yield Sizes(1, 9 * self.workers, rows, rows + 1)
        yield Sizes(2, 3, 5 * rows - rows // 3, 6 * rows)
        # As many row tiles as divide the tapered tiles, and those but one, and heads beyond them.
        tapered = TAPER * self.workers
        for tiles in (4, next(n for n in range(2, tapered) if (tapered - 1) % n == 0)):
            yield Sizes(1, tapered // tiles + 4, tiles * rows, tiles * rows)
        # Keys that divide what a section has, and sections of one head; the last section has fewer heads.
        keys = SECTION_BYTES // (4 * 2 * (self.code.variant.head_dim + self.code.variant.head_dim_v))
        yield Sizes(3, 7, 2 * rows + 1, keys)
        yield Sizes(1, 5, 3 * rows, 4 * keys + 1)

    def check_grid(self, sizes: Sizes) -> None:
        """Every number is one tile; every tile is taken by one block; blocks take numbers as they should."""
        shape = AttentionShape.of(self.code.variant, sizes)
        rows = self.schedule.block_M * self.roles.cluster
        row_tiles = -(-sizes.seq_q // rows) * self.roles.cluster
        total = row_tiles * sizes.heads * sizes.batch
        blocks, *others = (part.at(sizes._asdict()) for part in self.plan.grid)
        scheduler = self.schedule.kernel.tile_scheduler
        wanted = total if scheduler == "one_tile" else self.workers * self.roles.cluster
        if blocks != wanted or others != [1, 1] or self.plan.cluster != (self.roles.cluster, 1, 1):
            raise Unsafe(f"a grid of {[blocks, *others]} blocks, expected {wanted}")
        turns = -(-total // blocks) + 1
        if turns > MOST_TURNS:
            self._check_sample(sizes, blocks, total, row_tiles)
            return
        run, found = self._grid(sizes, np.arange(blocks), turns)
        numbers = self._numbers(found, sizes, row_tiles)
        there = numbers >= 0
        if sorted(numbers[there].tolist()) != list(range(total)):
            raise Unsafe(f"its blocks work on {len(set(numbers[there].tolist()))} of {total} tiles, {there.sum()} times")
        if any(any(counts) for counts in run.counters.values()):
            raise Unsafe(f"it leaves the counters of tiles as {run.counters}")
        self.note(run, [Event("tiles", place=tuple(numbers[there].tolist()))])

    def _check_sample(self, sizes: Sizes, blocks: int, total: int, row_tiles: int) -> None:
        """Of a grid of so many tiles: the first and the last numbers are tiles, each one; blocks take the next number."""
        cluster = self.roles.cluster
        some = np.unique(np.concatenate([np.arange(SAMPLE), np.arange(total - SAMPLE, total)]).clip(0, total - 1))
        some = some[(some // cluster + 1) * cluster <= total]
        run, found = self._grid(sizes, some, 1, whole=False)
        places = self._numbers(found, sizes, row_tiles)[0]
        if (places < 0).any() or len(np.unique(places)) != len(places):
            raise Unsafe(f"{len(np.unique(places))} tiles have {len(places)} numbers")
        self.note(run, [Event("tiles", place=tuple(places.tolist()))])
        turns = SAMPLE // blocks
        run, found = self._grid(sizes, np.arange(blocks), turns, whole=False)
        numbers = self._numbers(found, sizes, row_tiles)
        wanted = places[np.searchsorted(some, np.arange(turns * blocks))].reshape(turns, blocks)
        if (numbers != wanted).any():
            turn, block = np.argwhere(numbers != wanted)[0]
            raise Unsafe(f"tile {turn} of block {block} is number {numbers[turn, block]}, expected {wanted[turn, block]}")
        self.note(run)

    def _numbers(self, found: GridTiles, sizes: Sizes, row_tiles: int) -> np.ndarray:
        """(turn, block): a number for each tile's place, NONE where there is no tile."""
        row, head, batch = np.moveaxis(found["Q", 0], -1, 0)
        return np.where(
            row == NONE, NONE, (batch * sizes.heads + head) * row_tiles + row // self.schedule.block_M
        )

    def _grid(
        self, sizes: Sizes, blocks: np.ndarray, turns: int, whole: bool = True
    ) -> tuple[Run, GridTiles]:
        """One thread of each warpgroup and producer of the blocks, for `turns` tiles."""
        threads = Threads(blocks, self.roles.warpgroups + 1, (0,), lanes=1)
        counter = {"TileCounter": (0, 0)}
        lengths = Lengths(turns, ends=True)
        names, cluster = sizes._asdict(), self.roles.cluster
        run = Run(self.kernel, threads, names, lengths, cluster, counter, self.iterations, whole=whole)
        run.go()
        found = GridTiles.of(run, turns, self.expected(sizes))
        shape, block_N = AttentionShape.of(self.code.variant, sizes), self.schedule.block_N
        found.check(
            shape, self.roles.warpgroups, self.schedule.block_M, block_N, self.roles.cluster, self.program.least_blocks
        )
        phases = self.program.phases
        lag = next(op.lag for op in phases.steady.operations if op.statement == "mask")
        found.check_masks(GridTiles.trips(run, turns, self.unmasked), shape, block_N, phases.end - lag)
        return run, found

    @cached_property
    def unmasked(self) -> set[int]:
        """The lines of the loops over KV blocks that hide no scores."""
        loops = [node for node in every(self.kernel.body) if isinstance(node, For) and not node.unrolled]
        return {
            loop.line
            for loop in loops
            if any(isinstance(node, Step) and node.kind == "product" for node in every(loop.body))
            and not any(isinstance(node, Arithmetic) and node.mask for node in every(loop.body))
        }

    @property
    def workers(self) -> int:
        return HOPPER.sms // self.schedule.kernel.cluster

    def check_at(self, sizes: Sizes, start: int) -> None:
        run, expected = self._run(sizes, start), self.expected(sizes)
        shape = AttentionShape.of(self.code.variant, sizes)
        users: dict[tuple[int, int], Process] = {}
        tiles: dict[int, list[Loaded]] = {}
        streams = {}
        for process in self.roles.processes:
            stream = Stream(run, self._threads(run, process), str(process), expected)
            found = streams[process] = self._started(list(stream.events()), process)
            if process.warpgroup < 0:
                tiles[process.block] = loaded_tiles(found, tiles.get(0), self.schedule.block_N)
                self._check_blocks(process, tiles[process.block], shape)
            lengths = [tile.blocks - out for tile, out in zip(tiles[process.block], left_out(found))]
            masks = compare(process, found, self.roles.events(process, lengths, start=start, masks=True), users)
            if process.warpgroup >= 0:
                self._check_rows(process, found, tiles[process.block], shape)
                self._check_masks(process, masks, lengths, tiles[process.block], shape)
        self._check_idle(run, expected)
        self.note(run, *streams.values())

    def _check_idle(self, run: Run, expected: Expected) -> None:
        """The producer's other warps only start and end with the others."""
        threads = run.threads
        for block in range(self.roles.cluster):
            own = np.flatnonzero((threads.block == block) & (threads.y == self.roles.warpgroups) & (threads.x >= WARP))
            found = list(Stream(run, own, IDLE, expected).events())
            process = Process(block, -1, WARPS - 1)
            together = [Event("sync", CLUSTER)] if self.roles.cluster > 1 else []
            wanted = [*self._start(process), *together]
            if found != wanted:
                raise Unsafe(f"{IDLE} of block {block} does {', '.join(map(str, found))}")

    def _run(self, sizes: Sizes, start: int) -> Run:
        cluster = self.roles.cluster
        threads = Threads(np.arange(cluster), self.roles.warpgroups + 1, tuple(range(WARPS)))
        period = self.iterations.period
        lengths = Lengths(1 if start else TILES, self.program.span + period, period)
        counter = {"TileCounter": (0, 0)}
        run = Run(self.kernel, threads, sizes._asdict(), lengths, cluster, counter, self.iterations, start)
        run.go()
        return run

    def _threads(self, run: Run, process: Process) -> np.ndarray:
        threads = run.threads
        group = process.warpgroup if process.warpgroup >= 0 else self.roles.warpgroups
        mine = (threads.block == process.block) & (threads.y == group) & (threads.x < process.warps * WARP)
        return np.flatnonzero(mine)

    def _started(self, events: list[Event], process: Process) -> list[Event]:
        """The events after the mbarriers are initialised, which is the first thing to happen; registers are moved next."""
        counts = {
            Event("init", name, slot, count)
            for name, count in self.roles.counts.items()
            for slot in range(self.roles.slots(name.partition("_")[0]))
        }
        inits = [event for event in events if event.kind == "init"]
        if len(inits) != len(counts) or set(inits) != counts:
            raise Unsafe(f"its mbarriers are initialised as {_words(inits)}, expected {_words(sorted(counts, key=str))}")
        begin = [*inits, *self._start(process)]
        if events[: len(begin)] != begin:
            raise Unsafe(f"{process} starts with {', '.join(map(str, events[: len(begin)]))}")
        together = [Event("sync", CLUSTER)] if self.roles.cluster > 1 else []
        rest = [*together, *events[len(begin) :]]
        if any("registers" in event.kind for event in rest):
            raise Unsafe(f"{process} moves registers again")
        return rest

    def _start(self, process: Process) -> list[Event]:
        """What a process does behind the initialisation, before its role: it sees all barriers, and moves registers."""
        split = split_registers(self.schedule)
        kind = "fewer registers" if process.warpgroup < 0 else "more registers"
        moved = [Event(kind, value=split[process.warpgroup < 0])] if split else []
        return [Event("init fence"), Event("sync"), *[Event("sync", CLUSTER)] * (self.roles.cluster > 1), *moved]

    # --- the tiles ---------------------------------------------------------------------------------------------

    def _check_blocks(self, process: Process, tiles: Sequence[Loaded], shape: AttentionShape) -> None:
        """Each tile has its own rows of Q, and the KV blocks that rows of its cluster see."""
        rows, cluster = self.schedule.block_M, self.roles.cluster
        if len(tiles) != len({tile.place for tile in tiles}):
            raise Unsafe(f"{process} loads a tile twice")
        for tile in tiles:
            row = tile.place[0]
            number = row // rows
            if row % rows or number % cluster != process.block:
                raise Unsafe(f"block {process.block} loads rows of Q from {row} on")
            wanted = kv_blocks(shape, rows * cluster, self.schedule.block_N, number // cluster, self.program.least_blocks)
            if (tile.first, tile.blocks) != (wanted.start, len(wanted)):
                raise Unsafe(
                    f"it takes KV blocks {tile.first} to {tile.first + tile.blocks - 1} for rows of Q from {row} on, "
                    f"expected {wanted.start} to {wanted.stop - 1}"
                )

    def _check_rows(
        self, process: Process, found: Sequence[Event], tiles: Sequence[Loaded], shape: AttentionShape
    ) -> None:
        """What it stores are its own rows of each tile, once."""
        kind = "store" if self.roles.output_through_q else "output"
        stored = [(event.place, event.value) for event in found if event.kind == kind]
        for tile in tiles:
            row = tile.place[0] + ROWS * process.warpgroup
            place = (row, *tile.place[1:])
            if stored and stored[0][0] == place:
                rows = stored.pop(0)[1]
                if rows and rows != min(ROWS, shape.seq_q - row):
                    raise Unsafe(f"{process} stores {rows} rows of its tile from row {row} on")
            elif row < shape.seq_q:
                got = stored[0][0] if stored else "nothing"
                raise Unsafe(f"{process} stores {got} as (row, head, batch), expected {place}")
        if stored:
            raise Unsafe(f"{process} stores {stored[0][0]} besides")

    def _check_masks(
        self,
        process: Process,
        masks: Sequence[bool],
        lengths: Sequence[int],
        tiles: Sequence[Loaded],
        shape: AttentionShape,
    ) -> None:
        """A KV block some of whose keys are hidden from some of its rows is masked."""
        at = 0
        mask, block_N = self.code.variant.mask, self.schedule.block_N
        for tile, length in zip(tiles, lengths):
            row = tile.place[0] + ROWS * process.warpgroup
            whole = mask.end_whole(shape.seq_kv // block_N, row + shape.past_len, block_N, INTEGERS)
            needed = range(min(length, tile.first + tile.blocks - whole) if row < shape.seq_q else 0)
            for t in needed:
                if not masks[at + t]:
                    raise Unsafe(f"{process} does not mask KV block {tile.first + tile.blocks - 1 - t} of rows from {row} on")
            at += length


@dataclass(frozen=True)
class Loaded:
    """A tile that a producer loads: (row, head, batch) of its first row of Q, and its KV blocks."""

    place: Place
    first: int
    blocks: int


def loaded_tiles(producer: Sequence[Event], of_rank_0: Sequence[Loaded] | None, block_N: int) -> list[Loaded]:
    """The tiles of a producer, whose KV blocks, if it loads none, are those that the first block's loads."""
    rows: dict[str, list[Place]] = {"K": [], "V": []}
    jumps: list[int] = []
    starts: list[int] = []
    queries: list[list[Place]] = []
    left = 0
    for event in producer:
        if event.kind == "left out":
            left = event.value
        elif event.kind == "load" and event.name in rows:
            rows[event.name].append(event.place)
            if event.name == "K":
                jumps.append(left)
                left = 0
        elif event.kind == "load" and event.index == 0:
            # Q, which comes with the first block of its tile.
            starts.append(len(rows["K"]) - 1)
            queries.append([event.place])
        elif event.kind == "load":
            queries[-1].append(event.place)
    _check_queries(queries)
    places = [places[0] for places in queries]
    if not rows["K"] and not rows["V"] and of_rank_0 is not None:
        return [Loaded(place, tile.first, tile.blocks) for place, tile in zip(places, of_rank_0, strict=True)]
    if rows["K"] != rows["V"] or not starts or starts[0] != 0:
        raise Unsafe("its producer does not load V of the same rows as K")
    ends = [*starts[1:], len(rows["K"])]
    return [_loaded(*found, block_N) for found in zip(places, _cut(rows["K"], starts, ends), _cut(jumps, starts, ends))]


def _cut(values: Sequence, starts: Sequence[int], ends: Sequence[int]) -> list[Sequence]:
    return [values[start:end] for start, end in zip(starts, ends)]


def _check_queries(queries: Sequence[Sequence[Place]]) -> None:
    for row, head, batch in (found[0] for found in queries):
        found = next(found for found in queries if found[0] == (row, head, batch))
        if list(found) != [(row + ROWS * n, head, batch) for n in range(len(found))]:
            raise Unsafe(f"it loads {found} as (row, head, batch) of Q for one tile")


def _loaded(place: Place, rows: Sequence[Place], jumps: Sequence[int], block_N: int) -> Loaded:
    """A tile of the rows of K that are loaded for it, from the last block to the first."""
    first, last = rows[0][0], rows[-1][0]
    blocks = [first - block_N * (n + sum(jumps[: n + 1])) for n in range(len(rows))]
    if [(row, *place[1:]) for row in blocks] != list(rows) or first % block_N:
        raise Unsafe(f"its producer loads rows {[row for row, *_ in rows][:20]} of K, not block after block of {place}")
    return Loaded(place, last // block_N, (first - last) // block_N + 1)


def left_out(found: Sequence[Event]) -> list[int]:
    """How many iterations of each tile were left out of the run."""
    tiles: list[int] = []
    for event in found:
        if (event.kind, event.name) == ("wait", "Q_full") or (event.kind, event.name, event.index) == ("load", Q, 0):
            tiles.append(0)
        elif event.kind == "left out":
            tiles[-1] += event.value
    return tiles


def compare(
    process: Process, found: Sequence[Event], expected: Iterator[Event], users: dict[tuple[int, int], Process]
) -> list[bool]:
    """Refuse events that are not those of the process's role; whether each of its KV blocks is masked."""
    masks: list[bool] = []
    wanted = next(expected, None)
    told = (event for event in found if event.kind not in ("left out", "output"))
    for number, got in enumerate(told):
        while wanted and wanted.kind == "mask" and got.kind != "mask":
            masks.append(False)
            wanted = next(expected, None)
        if wanted and got.kind == wanted.kind == "mask":
            masks.append(True)
        elif got != wanted or _operands(got) != _operands(wanted):
            if _alone(got, process, users):
                continue
            raise Unsafe(f"operation {number} of {process} is {got}, expected {wanted or 'none'}")
        wanted = next(expected, None)
    while wanted and wanted.kind == "mask":
        masks.append(False)
        wanted = next(expected, None)
    if wanted:
        raise Unsafe(f"{process} ends before {wanted}")
    return masks


def _alone(event: Event, process: Process, users: dict[tuple[int, int], Process]) -> bool:
    """Whether it concerns the process alone: a fence, or a named barrier for as many threads as it has."""
    if event.kind == "sync" and event.name == NAMED and event.value == process.warps * WARP and event.index >= MEETING:
        user = users.setdefault((process.block, event.index), process)
        if user != process:
            raise Unsafe(f"{user} and {process} both use named barrier {event.index}")
        return True
    return event.kind == "fence"


def _operands(event: Event | None) -> set[tuple[str, int]]:
    """The shared buffers that a product reads."""
    return {read[:2] for read in event.reads} if event and event.kind == "product" else set()


def _words(events: Sequence[Event]) -> str:
    return ", ".join(f"{event.name}[{event.index}] {event.value}" for event in events)


def check(schedule: Schedule, program: Program, code: GeneratedCode) -> Verdict:
    """The verdict on a kernel. Raises ScheduleRefused."""
    return RolesProof(schedule, program, code).verdict()
