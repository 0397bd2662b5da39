"""Roles say what each role of the warp-specialised kernel does with barriers and shared memory, tile after tile.

A thread block has a warpgroup for every 64 rows of its tile and a producer warp. It works on one row tile after
another; its rings go on from tile to tile: load number s of a ring is in slot s % depth. In a cluster block 0 loads K
and V for all. `races.py` proves that the events of all roles go together, and `code_proof.py` that the generated code
runs these events and no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tl_attention.problem.mask import INTEGERS
from tl_attention.problem.packed import TILES_TOLD
from tl_attention.problem.warpgroup import MEETING, OWN, ROWS, TURN, WARP, WARPGROUP, WARPS
from tl_attention.program import races
from tl_attention.program.events import (
    CLUSTER,
    EXPONENTIALS,
    NAMED,
    TILE,
    Event,
    Expected,
    P,
    Place,
    PlacedTile,
    Process,
    Q,
    Read,
    Repeat,
    Where,
    written_out,
)
from tl_attention.program.program import Operation, Program
from tl_attention.schedule.loop.table import Table, symbol, whole
from tl_attention.schedule.schedule import Schedule


@dataclass(frozen=True)
class Roles:
    """Roles derives, for one cluster, the events of its producer warps and of its warpgroups that compute."""

    program: Program
    warpgroups: int
    cluster: int
    dynamic: bool  # a counter gives the tiles: a producer warp tells the others a tile's number before the tile
    packed: bool  # it tells the tile's place too, the next one's behind a tile's first loads
    q_in_registers: bool
    p_in_shared: bool
    output: str
    members: int = 1  # heads of Q that a tile of keys works on, one behind the other

    @classmethod
    def of(cls, schedule: Schedule, program: Program, packed: bool = False) -> Roles:
        kernel = schedule.kernel
        return cls(
            program,
            schedule.block_M // ROWS,
            kernel.cluster,
            kernel.tile_scheduler == "dynamic",
            packed,
            kernel.q_operand == "registers",
            kernel.p_operand == "shared",
            kernel.output,
        )

    @property
    def output_through_q(self) -> bool:
        """Returns True if the output is stored by TMA out of the rows of Q_shared."""
        return self.output == "tma"

    @property
    def table(self) -> Table:
        return self.program.table

    @cached_property
    def rings(self) -> dict[str, str]:
        """Returns, by load, the name that events use for the buffer that the load fills, such as K for K_shared."""
        return {load: symbol(self.table.ring_of(load)) for load in self.table.loads}

    @cached_property
    def residents(self) -> dict[str, str]:
        """Returns, by the load that their release names, the names that events use for tiles that are resident."""
        return {buffer.load: buffer.symbol for buffer in self.table.residents}

    @cached_property
    def take_turns(self) -> bool:
        """Returns True if two warpgroups take turns to issue their products."""
        return any(op.kind == "turn" for op in self.program.phases.steady.operations)

    @property
    def processes(self) -> tuple[Process, ...]:
        return tuple(
            Process(block, warpgroup, 1 if warpgroup < 0 else WARPS)
            for block in range(self.cluster)
            for warpgroup in range(-1, self.warpgroups)
        )

    def slots(self, name: str) -> int:
        """Returns how many buffers events have under this name, such as K, V, Q, P or tile.

        K, V, Q and tile have as many full mbarriers, and as many empty ones.
        """
        depths = {self.rings[load]: depth for load, depth in self.program.buffers.items()}
        of_warpgroups = dict.fromkeys((*self.residents.values(), P), self.warpgroups)
        return {**of_warpgroups, TILE: TILES_TOLD if self.packed else 2, **depths}[name]

    @property
    def counts(self) -> dict[str, int]:
        """Returns how many arrivals complete a phase of each mbarrier, by the mbarrier's name.

        Lanes of the producer warp arrive, or warps that compute.
        """
        warps = WARPS * self.warpgroups
        counts: dict[str, int] = {}
        for resident in self.residents.values():
            counts |= {f"{resident}_full": WARP, f"{resident}_empty": WARPS}
        for ring in self.rings.values():
            counts |= {f"{ring}_full": WARP, f"{ring}_empty": warps * self.cluster}
        return counts | ({"tile_full": WARP, "tile_empty": warps} if self.dynamic or self.packed else {})

    @property
    def cluster_sync(self) -> tuple[Event, ...]:
        """Returns the event by which a cluster's blocks wait for each other at start and end, () for a single block."""
        return (Event("sync", CLUSTER),) if self.cluster > 1 else ()

    def prove(self) -> None:
        """Raises Unsafe if the roles could race or deadlock, for tiles that together show every state of the rings."""
        for tiles in tile_lists(self.program):
            races.prove({process: tuple(self.events(process, tiles)) for process in self.processes}, self.counts)

    def events(self, process: Process, lengths: Sequence[int], *, start: int = 0) -> Iterator[Event]:
        """Yields the events of a process that other processes see, for row tiles with `lengths` KV blocks each.

        The process runs as if `start` loads of each ring, and as many tiles, had been before.
        """
        for event in self.expected(process, lengths, [None] * len(lengths), start=start):
            assert isinstance(event, Event)
            yield event

    def expected(
        self, process: Process, lengths: Sequence[int], tiles: Sequence[PlacedTile | None], *, start: int = 0
    ) -> Iterator[Expected]:
        """Yields all events of a process for these tiles, its masks and stores too where a tile's place is given.

        Masks and stores of rows concern the process alone. Events have their tiles' places. The process runs as if
        `start` loads of each ring, and as many tiles, had been before.
        """
        base = start
        yield from (*self.cluster_sync, *self.before_tiles(process))
        for turn, (blocks, tile) in enumerate(zip(lengths, tiles, strict=True), start):
            yield from written_out(self.tile_events(process, turn, base, blocks, tile))
            base += self.members * blocks
        yield from (*self.behind_tiles(process), *self.cluster_sync)

    # --- the producer ------------------------------------------------------------------------------------------

    def before_tiles(self, process: Process) -> Iterator[Event]:
        """Yields a process's events between the common start and its first tile."""
        if process.warpgroup < 0 and self.packed:
            yield from self._hand_over(process.block, 0)
        if self.take_turns and process.warpgroup == 1:
            yield Event("signal", NAMED, TURN, 2 * WARPGROUP)
        if self.packed:
            yield from self._next_tile(0)

    def tile_events(
        self, process: Process, turn: Any, base: Any, blocks: Any, tile: PlacedTile | None, ops: Any = INTEGERS
    ) -> Iterator[Expected | Repeat | Where]:
        """Yields a process's events for its tile number `turn`, with `blocks` KV blocks, after `base` earlier loads.

        Of several heads each has so many. The numbers may be integers, or unknowns with their `ops`.
        """
        role = self._of_producer if process.warpgroup < 0 else self._of_consumer
        for member in range(self.members):
            of_member = tile.of_member(member) if tile and self.members > 1 else tile
            yield from role(process, turn, base + member * blocks, blocks, of_member, ops, member)

    def _of_producer(
        self, process: Process, turn: Any, base: Any, blocks: Any, tile: PlacedTile | None, ops: Any, member: int
    ) -> Iterator[Expected | Repeat | Where]:
        # Block 0 loads for the whole cluster; every block expects the bytes.
        block, into = process.block, tuple(range(self.cluster)) if process.block == 0 else ()

        def first() -> Iterator[Event]:
            for warpgroup in range(self.warpgroups):
                place = tile.coordinates(tile.box * warpgroup) if tile else ()
                for resident in self.residents.values():
                    yield from self._load(resident, warpgroup, turn % 2, block, (block,), turn, place, tile)
            if self.packed:
                yield from self._hand_over(block, turn + 1)

        def body(number: Any) -> Iterator[Expected | Repeat | Where]:
            for load in self.program.loads:
                ring, slot, lap = self._place(load, base + number)
                place = tile.kv_coordinates(number) if tile and into else ()
                yield from self._load(ring, slot, lap, block, into, base + number, place, tile)
            yield Where(1 - ops.min(member + number, 1), first())

        yield Repeat(0, blocks, body)
        if member < self.members - 1:
            return
        if self.packed:
            yield from self._next_tile(turn + 1)
        elif self.dynamic:
            yield from (*self._hand_over(block, turn), *self._next_tile(turn))

    def _hand_over(self, block: int, turn: int) -> Iterator[Event]:
        slot, lap = self._place_of_tile(turn)
        yield Event("wait", "tile_empty", slot, lap ^ 1)
        yield Event("take", TILE, slot, blocks=(block,), step=turn)
        yield Event("arrive", "tile_full", slot, WARP, (block,))

    def _load(
        self, name: str, slot: int, lap: int, block: int, into: tuple[int, ...], step: int, place: Place,
        tile: PlacedTile | None,
    ) -> Iterator[Event]:  # fmt: skip
        yield Event("wait", f"{name}_empty", slot, lap ^ 1)
        yield Event("expect", f"{name}_full", slot, 1)
        if into:
            yield Event("load", name, slot, blocks=into, step=step, place=place)
        yield Event("arrive", f"{name}_full", slot, WARP, (block,))

    def _next_tile(self, turn: int) -> Iterator[Event]:
        yield from (Event("wait", "tile_full", *self._place_of_tile(turn)), self._read_tile(turn))

    def _read_tile(self, turn: int) -> Event:
        slot, _ = self._place_of_tile(turn)
        return Event("read", TILE, slot, reads=((TILE, slot, turn),))

    def _place_of_tile(self, turn: int) -> tuple[int, int]:
        """Returns (slot, parity) of the place in shared memory where a block's tile number `turn` is handed over."""
        return turn % self.slots(TILE), turn // self.slots(TILE) % 2

    def _place(self, load: str, step: int) -> tuple[str, int, int]:
        """Returns (ring, slot, parity) of load number `step`."""
        depth = self.program.buffers[load]
        return self.rings[load], step % depth, step // depth % 2

    # --- the warpgroups that compute -----------------------------------------------------------------------------

    def behind_tiles(self, process: Process) -> Iterator[Event]:
        """Yields a process's events between its last tile and the common end."""
        if self.take_turns and process.warpgroup == 0:
            yield Event("sync", NAMED, TURN, 2 * WARPGROUP)

    def _of_consumer(
        self, process: Process, turn: Any, base: Any, blocks: Any, tile: PlacedTile | None, ops: Any, member: int
    ) -> Iterator[Expected | Repeat | Where]:
        group, is_last = process.warpgroup, member == self.members - 1
        yield from self.begun(tile, tile.box * group) if tile else ()
        residents = tuple((name, group, turn) for name in self.residents.values())
        for name, _, _ in residents:
            yield Event("wait", f"{name}_full", group, turn % 2)
        q = residents[:1]
        if self.q_in_registers:
            yield Event("read", Q, group, reads=q)
        if self.q_in_registers and not self.output_through_q:
            yield from (Event("fence"), self._release_resident(process, Q))

        def done(block: Any, op: Operation) -> Iterator[Expected | Where]:
            if op.statement == "mask" and op.kind == "run":
                yield from (tile.mask(block, tile.box * group, tile.box),) if tile else ()
            elif is_last or op.kind != "release" or op.statement not in self.residents:
                # A tile's first block clears the accumulators.
                reads, opens = () if self.q_in_registers else residents, 1 - ops.min(member + block, 1)
                yield from self._operation(process, op, base + block, reads, opens)

        yield from self.program.phases.events(blocks, done)
        if not is_last:
            return
        if self.packed:
            yield from (self._read_tile(turn), self._release_tile(process, turn))
        yield from self._stored(tile, tile.box * group) if tile else ()
        if self.output_through_q:
            # TileLang makes all warpgroups meet before a warpgroup writes where TileLang believes that others read.
            yield Event("sync", NAMED, MEETING, WARPGROUP * self.warpgroups)
            ours = Event("sync", NAMED, OWN + group, WARPGROUP)
            yield from (Event("write", Q, group, reads=q), Event("fence"), ours)
            place = tile.coordinates(tile.box * group) if tile else ()
            yield Event("store", Q, group, reads=q, place=place)
            yield from (Event("stored"), ours, self._release_resident(process, Q))
        if self.packed:
            yield from self._next_tile(turn + 1)
        elif self.dynamic:
            yield from (*self._next_tile(turn), self._release_tile(process, turn))

    def begun(self, tile: PlacedTile, own: int) -> Iterator[Expected]:
        """Yields what a warpgroup does with a tile's rows, from `own` on, before it waits for their tiles: nothing."""
        yield from ()

    def _release_tile(self, process: Process, turn: int) -> Event:
        return Event("arrive", "tile_empty", self._place_of_tile(turn)[0], 1, (process.block,))

    def _stored(self, tile: PlacedTile, own: int) -> Iterator[Expected | Where]:
        """Yields the events by which a warpgroup stores its rows' LSE and output from registers."""
        for kind in ("lse",) * ("LSE" in tile.tensors) + ("output",) * (not self.output_through_q):
            yield tile.store_event(Event(kind, place=tile.stored_rows(kind, own)), own)

    def _release_resident(self, process: Process, name: str) -> Event:
        return Event("arrive", f"{name}_empty", process.warpgroup, 1, (process.block,))

    def _operation(
        self, process: Process, op: Operation, number: Any, residents: tuple[Read, ...], opens: Any
    ) -> Iterator[Event]:
        """Yields the events of an operation on load `number` of a ring, in a tile's first block if `opens` is 1.

        `residents` are the reads of the tile's resident buffers that lie in shared memory.
        """
        match op.kind:
            case "issue":
                ring, slot, _ = self._place(self.table.loads_of(op.statement)[0], number)
                statement = self.table.by_name[op.statement]
                p = ((P, process.warpgroup, number),) if self.p_in_shared else ()
                read = {symbol(whole(buffer)) for buffer in statement.reads}
                own = (resident for resident in residents if resident[0] in read)
                reads = ((ring, slot, number), *own, *(p if "acc_s_cast" in read else ()))
                # A product that adds to its accumulators clears them in a tile's first block, any other product always.
                adds = (1 - opens) * int(not set(statement.writes).isdisjoint(statement.reads))
                yield Event("product", ring, slot, reads=reads, place=(adds,))
            case "wait" if op.statement in self.table.products:
                yield Event("products wait", value=op.outstanding)
            case "wait":
                ring, slot, lap = self._place(op.statement, number)
                yield Event("wait", f"{ring}_full", slot, lap)
            case "release" if op.statement in self.residents:
                yield self._release_resident(process, self.residents[op.statement])
            case "release":
                ring, slot, _ = self._place(op.statement, number)
                yield Event("arrive", f"{ring}_empty", slot, 1, tuple(range(self.cluster)))
            case "turn":
                yield Event("sync", NAMED, TURN + process.warpgroup, 2 * WARPGROUP)
            case "pass":
                yield Event("signal", NAMED, TURN + 1 - process.warpgroup, 2 * WARPGROUP)
            case "hold":
                # A call holds four registers in eight: two calls hold all of them.
                first, end = op.registers
                yield from (Event("hold", EXPONENTIALS, start, end) for start in (first, first + 4))
            case "hold_last":
                yield Event("hold last", EXPONENTIALS, op.registers[1] - 1)
            case "resume":
                yield Event("resume")
            case "run" if self.p_in_shared and whole(op.statement) == "cast":
                yield Event(
                    "put", P, process.warpgroup, step=number, place=self.table.by_name[op.statement].columns or ()
                )
            case "fence":
                yield Event("fence")
            case "run" if threads_read := self._read_by_threads(op.statement, number):
                # They come with the tile of their ring.
                yield Event("read", *threads_read[0][:2], reads=threads_read)
            case "share":
                yield from (Event("fence"), Event("sync", NAMED, OWN + process.warpgroup, WARPGROUP))
            case "run":
                pass
            case unknown:
                raise AssertionError(f"{unknown} is no operation of a warpgroup that computes")

    def _read_by_threads(self, statement: str, number: Any) -> tuple[Read, ...]:
        """Returns the reads of ring buffers by a vector statement's threads, such as of row vectors."""
        loads = self.table.loads_of(statement)
        return tuple((ring, slot, number) for ring, slot, _ in (self._place(load, number) for load in loads))


def tile_lists(program: Program) -> tuple[tuple[int, ...], ...]:
    """Returns tuples of KV block counts, one per row tile of a block, that together show every state of the rings.

    There are short and long ones.
    """
    least = program.least_blocks
    long = max(program.span, least)
    return (), (least,), (least, least + 2, least + 1, least, least), (long, long + 1, long + 2)
