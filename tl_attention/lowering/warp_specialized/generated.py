"""Proves the generated warp-specialised kernel: its threads run the events of their roles, on the tiles that they should.

`races.py` has proved these events; what else could make threads wait for each other is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from tl_attention.hardware.warpgroup import ROWS, WARP, WARPS
from tl_attention.loop.exp2 import COEFFICIENTS
from tl_attention.lowering.device_code import device_code
from tl_attention.lowering.warp_specialized.device_code import (
    PRELUDE,
    STORE_COLUMNS,
    STORE_P,
    STRIDED_PRELUDE,
    STRIDED_STORE_COLUMNS,
    exp2_polynomial,
)
from tl_attention.lowering.warp_specialized.dialect import split_registers
from tl_attention.lowering.warp_specialized.grid_proof import GridProof, check_samples, grids, whole_groups, workers
from tl_attention.lowering.warp_specialized.roles import Roles
from tl_attention.problem.lengths import cuts, ends, without_keys
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import kv_blocks, whole_blocks
from tl_attention.problem.variant import Sizes
from tl_attention.program.program import Program
from tl_attention.proof.events import Event, Process
from tl_attention.proof.generated.loaded import Loaded, left_out, loaded_tiles
from tl_attention.proof.generated.parts import Expected
from tl_attention.proof.generated.per_head import check_per_head
from tl_attention.proof.generated.proof import MOST_KEYS, Proof
from tl_attention.proof.generated.refused import Unsafe
from tl_attention.proof.generated.role_events import compare
from tl_attention.proof.generated.run import Run
from tl_attention.proof.generated.seen import Lengths
from tl_attention.proof.generated.stream import Stream
from tl_attention.proof.generated.threads import Threads
from tl_attention.proof.generated.tiles import Product, Tile
from tl_attention.proof.generated.verdict import GeneratedCode, Verdict
from tl_attention.schedule.schedule import Schedule

IDLE = "an idle warp"
# Tiles of a block that run one after another.
TILES = 2


class RolesProof(Proof):
    """The proof of one kernel."""

    @cached_property
    def roles(self) -> Roles:
        return Roles.of(self.schedule, self.program)

    @property
    def prelude(self) -> str:
        polynomial = self.schedule.softmax.exp2_polynomial
        variant = self.code.variant
        exp2 = "" if polynomial is None else exp2_polynomial(COEFFICIENTS[polynomial.degree])
        common, columns = (STRIDED_PRELUDE, STRIDED_STORE_COLUMNS) if variant.strided else (PRELUDE, STORE_COLUMNS)
        columns = columns if variant.head_dim_v < variant.tile_dim_v else ""
        p = STORE_P if self.roles.p_in_shared else ""
        return common + columns + exp2 + p + device_code(variant.optional)

    @cached_property
    def tiles(self) -> dict[str, Tile]:
        variant, block_N = self.code.variant, self.schedule.block_N
        swizzled = {descriptor.tensor: descriptor.swizzle != 0 for descriptor in self.plan.descriptors}
        through_registers = self.roles.q_in_registers
        slots = self.roles.slots
        p = {"P": Tile("P", ROWS, block_N, slots("P"))} if self.roles.p_in_shared else {}
        return {
            "Q": Tile("Q", ROWS, variant.tile_dim, slots("Q"), not through_registers or swizzled.get("Q", True)),
            "K": Tile("K", block_N, variant.tile_dim, slots("K")),
            "V": Tile("V", block_N, variant.tile_dim_v, slots("V")),
            **p,
        }

    @cached_property
    def products(self) -> dict[str, Product]:
        variant, block_N = self.code.variant, self.schedule.block_N
        q = "Q_local" if self.roles.q_in_registers else self.tiles["Q"]
        p = self.tiles["P"] if self.roles.p_in_shared else "acc_s_cast"
        return {
            "acc_s": Product("acc_s", q, self.tiles["K"], block_N, variant.tile_dim, False),
            "acc_o": Product("acc_o", p, self.tiles["V"], variant.tile_dim_v, block_N, True),
        }

    @cached_property
    def cycles(self) -> tuple[int, ...]:
        return (4, *(2 * depth for depth in self.program.buffers.values()))

    @property
    def rows(self) -> int:
        return self.schedule.block_M * self.schedule.kernel.cluster

    def check_code(self) -> None:
        wanted = {name: self.roles.slots(name.partition("_")[0]) for name in self.roles.counts}
        found = self.kernel.declared.barriers
        if found != wanted:
            raise Unsafe(f"its mbarriers are {found}, expected {wanted}")
        numbers = self.kernel.declared.numbers
        if numbers != ({"next_tile": 2} if self.roles.dynamic else {}):
            raise Unsafe(f"its numbers in shared memory are {numbers}")

    def sizes(self) -> Iterator[Sizes]:
        block_N, rows = self.schedule.block_N, self.rows
        heads = whole_groups(TILES * workers(self.schedule, self.code.variant), self.code.variant)
        loops = ends(self.program.span + 2, rows, block_N)
        mask = self.code.variant.mask
        for lengths in (*loops, *cuts(mask, rows, block_N, ROWS), *without_keys(mask, rows, block_N)):
            yield Sizes(1, heads, *lengths)
        # So long that no number of the code is longer. In batches, as heads times keys are bounded.
        yield Sizes(heads // self.code.variant.group, self.code.variant.group, 5, MOST_KEYS)

    def grids(self) -> Iterator[Sizes]:
        return grids(self.schedule, self.code.variant)

    def check_grid(self, sizes: Sizes) -> None:
        GridProof(self, self.roles, sizes).check()

    def check_samples(self) -> None:
        check_samples(self, self.roles)

    def check_at(self, sizes: Sizes, start: int, tile: int) -> None:
        run, expected = self._run(sizes, start, tile), self.expected(sizes)
        shape = AttentionShape.of(self.code.variant, sizes)
        users: dict[tuple[int, int], Process] = {}
        tiles: dict[int, list[Loaded]] = {}
        streams = {}
        for process in self.roles.processes:
            stream = Stream(run, self._threads(run, process), str(process), expected)
            found = streams[process] = self._started(list(stream.events()), process)
            if process.warpgroup < 0:
                tiles[process.block] = loaded_tiles(found, tiles.get(0), self.schedule.block_N, shape.group)
                self._check_blocks(process, tiles[process.block], shape)
            lengths = [tile.blocks - out for tile, out in zip(tiles[process.block], left_out(found))]
            if any(blocks < self.program.least_blocks for blocks in lengths):
                raise Unsafe(f"a loop of {process} has more iterations than its tile has KV blocks")
            masks = compare(process, found, self.roles.events(process, lengths, start=start, masks=True), users)
            if process.warpgroup >= 0:
                for kind in self._stored:
                    self._check_rows(process, kind, found, tiles[process.block], shape)
                check_per_head(found, self.code.variant.optional, [tile.place[1] for tile in tiles[process.block]])
                self._check_masks(process, masks, tiles[process.block], shape)
        self._check_idle(run, expected)
        self.note(run, *streams.values())

    def _check_idle(self, run: Run, expected: Expected) -> None:
        """The producer's other warps only start and end with the others."""
        threads = run.threads
        for block in range(self.roles.cluster):
            own = np.flatnonzero((threads.place == block) & (threads.y == self.roles.warpgroups) & (threads.x >= WARP))
            found = list(Stream(run, own, IDLE, expected).events())
            process = Process(block, -1, WARPS - 1)
            wanted = [*self._start(process), *self.roles.together]
            if found != wanted:
                raise Unsafe(f"{IDLE} of block {block} does {', '.join(map(str, found))}")

    def _run(self, sizes: Sizes, start: int, tile: int) -> Run:
        cluster = self.roles.cluster
        threads = Threads(tile * cluster + np.arange(cluster), self.roles.warpgroups + 1, tuple(range(WARPS)))
        period = self.iterations.period
        lengths = Lengths(1 if start else TILES, self.program.span + period, period)
        counter = {"TileCounter": (0, 0)}
        run = Run(
            self.kernel, threads, self.names(sizes), lengths, cluster, counter, self.iterations, start,
            whole=False, workers=workers(self.schedule, self.code.variant),
        )  # fmt: skip
        run.go()
        return run

    def _threads(self, run: Run, process: Process) -> np.ndarray:
        threads = run.threads
        group = process.warpgroup if process.warpgroup >= 0 else self.roles.warpgroups
        mine = (threads.place == process.block) & (threads.y == group) & (threads.x < process.warps * WARP)
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
            raise Unsafe(
                f"its mbarriers are initialised as {_words(inits)}, expected {_words(sorted(counts, key=str))}"
            )
        begin = [*inits, *self._start(process)]
        if events[: len(begin)] != begin:
            raise Unsafe(f"{process} starts with {', '.join(map(str, events[: len(begin)]))}")
        rest = [*self.roles.together, *events[len(begin) :]]
        if any("registers" in event.kind for event in rest):
            raise Unsafe(f"{process} moves registers again")
        return rest

    def _start(self, process: Process) -> list[Event]:
        """What a process does behind the initialisation, before its role: it sees all barriers, and moves registers."""
        split = split_registers(self.schedule)
        kind = "fewer registers" if process.warpgroup < 0 else "more registers"
        moved = [Event(kind, value=split[process.warpgroup < 0])] if split else []
        return [Event("init fence"), Event("sync"), *self.roles.together, *moved]

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
            wanted = kv_blocks(
                shape, rows * cluster, self.schedule.block_N, number // cluster, self.program.least_blocks
            )
            if (tile.first, tile.blocks) != (wanted.start, len(wanted)):
                raise Unsafe(
                    f"it takes KV blocks {tile.first} to {tile.first + tile.blocks - 1} for rows of Q from {row} on, "
                    f"expected {wanted.start} to {wanted.stop - 1}"
                )

    @property
    def _stored(self) -> tuple[str, ...]:
        """The events that store rows."""
        output = "store" if self.roles.output_through_q else "output"
        return (output, "lse") if self.lse else (output,)

    def _check_rows(
        self, process: Process, kind: str, found: Sequence[Event], tiles: Sequence[Loaded], shape: AttentionShape
    ) -> None:
        """What it stores are its own rows of each tile, once."""
        stored = [(event.place, event.value) for event in found if event.kind == kind]
        of = " of lse" if kind == "lse" else ""
        # Of a store by TMA it is the slot.
        if later := [event.index for event in found if event.kind == kind != "store" and event.index]:
            raise Unsafe(f"{process} stores rows{of} from register {later[0]} on, expected the first")
        for tile in tiles:
            row = tile.place[0] + ROWS * process.warpgroup
            place = (row, *tile.place[1:])
            if stored and stored[0][0] == place:
                rows = stored.pop(0)[1]
                if rows and rows != min(ROWS, shape.seq_q - row):
                    raise Unsafe(f"{process} stores {rows} rows of its tile from row {row} on")
            elif row < shape.seq_q:
                got = stored[0][0] if stored else "nothing"
                raise Unsafe(f"{process} stores {got} as (row, head, batch){of}, expected {place}")
        if stored:
            raise Unsafe(f"{process} stores {stored[0][0]}{of} besides")

    def _check_masks(
        self, process: Process, masks: Sequence[bool], tiles: Sequence[Loaded], shape: AttentionShape
    ) -> None:
        """A KV block some of whose keys are hidden from some of its rows is masked."""
        at = 0
        block_N = self.schedule.block_N
        for tile in tiles:
            row = tile.place[0] + ROWS * process.warpgroup
            whole = range(*whole_blocks(shape, shape.mask, row, ROWS, block_N))
            of_tile = masks[at : at + tile.blocks]
            if row < shape.seq_q and False in of_tile:
                # What needs no mask lies together, so the first and the last block without one tell of all between.
                places = of_tile.index(False), len(of_tile) - 1 - of_tile[::-1].index(False)
                for kv in (tile.first + tile.blocks - 1 - place for place in places):
                    if kv not in whole:
                        raise Unsafe(f"{process} does not mask KV block {kv} of rows from {row} on")
            at += tile.blocks


def _words(events: Sequence[Event]) -> str:
    return ", ".join(f"{event.name}[{event.index}] {event.value}" for event in events)


def check(schedule: Schedule, program: Program, code: GeneratedCode) -> Verdict:
    """The verdict on a kernel. Raises ScheduleRefused."""
    return RolesProof(schedule, program, code).verdict()
