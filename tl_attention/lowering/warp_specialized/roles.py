"""What each role of the warp-specialised kernel does with barriers and shared memory, tile after tile.

A thread block has a warpgroup for every 64 rows of its tile and a producer warp. It works on one row tile after
another; its rings go on from tile to tile: load number s of a ring is in slot s % depth. In a cluster block 0 loads K
and V for all. `races.py` proves that the events of all roles go together, and `generated.py` that the generated code
runs these and no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tl_attention.hardware.warpgroup import MEETING, OWN, ROWS, TURN, WARP, WARPGROUP, WARPS
from tl_attention.loop.statements import BY_NAME, LOAD_OF, LOADS, PRODUCTS
from tl_attention.program.program import CONSUMER, Program, Step, phases
from tl_attention.proof.events import CLUSTER, NAMED, TILE, Event, Process, Read
from tl_attention.schedule.schedule import Schedule

Q = "Q"
# The buffer that a load fills: K of K_shared.
RING_OF = {load: BY_NAME[load].writes[0].removesuffix("_shared") for load in LOADS}


@dataclass(frozen=True)
class Roles:
    """The roles of one cluster."""

    program: Program
    warpgroups: int
    cluster: int
    dynamic: bool
    ping_pong: bool
    q_in_registers: bool
    output_through_q: bool

    @classmethod
    def of(cls, schedule: Schedule, program: Program) -> Roles:
        kernel = schedule.kernel
        return cls(
            program,
            schedule.block_M // ROWS,
            kernel.cluster,
            kernel.tile_scheduler == "dynamic",
            kernel.ping_pong,
            kernel.q_operand == "registers",
            kernel.output == "tma",
        )

    @property
    def processes(self) -> tuple[Process, ...]:
        return tuple(
            Process(block, warpgroup, 1 if warpgroup < 0 else WARPS)
            for block in range(self.cluster)
            for warpgroup in range(-1, self.warpgroups)
        )

    def slots(self, name: str) -> int:
        """Buffers that a load has, and so the mbarriers of each of its two kinds."""
        depths = {RING_OF[load]: depth for load, depth in self.program.buffers.items()}
        return {Q: self.warpgroups, TILE: 2, **depths}[name]

    @property
    def counts(self) -> dict[str, int]:
        """The arrivals of a phase of each mbarrier: lanes of the producer warp, warps that compute."""
        warps = WARPS * self.warpgroups
        counts = {"Q_full": WARP, "Q_free": WARPS}
        for ring in RING_OF.values():
            counts |= {f"{ring}_full": WARP, f"{ring}_free": warps * self.cluster}
        return counts | ({"tile_full": WARP, "tile_free": warps} if self.dynamic else {})

    def events(self, process: Process, tiles: Sequence[int]) -> Iterator[Event]:
        """All that a process does for row tiles of so many KV blocks each."""
        together = [Event("sync", CLUSTER)] if self.cluster > 1 else []
        run = self._produce(process.block, tiles) if process.warpgroup < 0 else self._compute(process, tiles)
        yield from (*together, *run, *together)

    # --- the producer ------------------------------------------------------------------------------------------

    def _produce(self, block: int, tiles: Sequence[int]) -> Iterator[Event]:
        every_block = tuple(range(self.cluster))
        loads = [op.statement for op in self.program.producer if op.kind == "issue"]
        base = 0
        for turn, blocks in enumerate(tiles):
            for step in range(base, base + blocks):
                for load in loads:
                    slot, lap = self._place(load, step)
                    # Block 0 loads for the whole cluster; every block expects the bytes.
                    into = every_block if block == 0 else ()
                    yield from self._load(RING_OF[load], slot, lap, block, into, step)
                for warpgroup in range(self.warpgroups) if step == base else ():
                    yield from self._load(Q, warpgroup, turn % 2, block, (block,), turn)
            base += blocks
            if self.dynamic:
                yield Event("wait", "tile_free", turn % 2, turn // 2 % 2 ^ 1)
                yield Event("take", TILE, turn % 2, blocks=(block,), step=turn)
                yield Event("arrive", "tile_full", turn % 2, WARP, (block,))
                yield from self._next_tile(turn)

    def _load(self, name: str, slot: int, lap: int, block: int, into: tuple[int, ...], step: int) -> Iterator[Event]:
        yield Event("wait", f"{name}_free", slot, lap ^ 1)
        yield Event("expect", f"{name}_full", slot, 1)
        if into:
            yield Event("load", name, slot, blocks=into, step=step)
        yield Event("arrive", f"{name}_full", slot, WARP, (block,))

    def _next_tile(self, turn: int) -> Iterator[Event]:
        yield Event("wait", "tile_full", turn % 2, turn // 2 % 2)
        yield Event("read", TILE, turn % 2, reads=((TILE, turn % 2, turn),))

    def _place(self, load: str, step: int) -> tuple[int, int]:
        """(slot, parity) of a ring's load number `step`."""
        depth = self.program.buffers[load]
        return step % depth, step // depth % 2

    # --- the warpgroups that compute -----------------------------------------------------------------------------

    def _compute(self, process: Process, tiles: Sequence[int]) -> Iterator[Event]:
        group, here = process.warpgroup, (process.block,)
        free_q = Event("arrive", "Q_free", group, 1, here)
        if self.ping_pong and group == 1:
            yield Event("signal", NAMED, TURN, 2 * WARPGROUP)
        base = 0
        for turn, blocks in enumerate(tiles):
            yield Event("wait", "Q_full", group, turn % 2)
            q = ((Q, group, turn),)
            if self.q_in_registers:
                yield Event("read", Q, group, reads=q)
            if self.q_in_registers and not self.output_through_q:
                yield free_q
            yield from self._tile(group, base, blocks, () if self.q_in_registers else q, free_q)
            if self.output_through_q:
                # TileLang lets all warpgroups meet before one writes where it believes that others read.
                yield Event("sync", NAMED, MEETING, WARPGROUP * self.warpgroups)
                ours = Event("sync", NAMED, OWN + group, WARPGROUP)
                yield from (Event("write", Q, group, reads=q), Event("fence"), ours)
                yield from (Event("store", Q, group, reads=q), Event("stored"), ours, free_q)
            base += blocks
            if self.dynamic:
                yield from (*self._next_tile(turn), Event("arrive", "tile_free", turn % 2, 1, here))
        if self.ping_pong and group == 0:
            yield Event("sync", NAMED, TURN, 2 * WARPGROUP)

    def _tile(self, group: int, base: int, blocks: int, q: tuple[Read, ...], free_q: Event) -> Iterator[Event]:
        """The Program's operations for one tile of `blocks` KV blocks, the rings being at step `base`.

        With `q`, the products read Q_shared: it is free once the last of them is waited for, but for the output.
        """
        iterations: dict[int, list[Step]] = {}
        for step in self.program.roles(blocks)[CONSUMER]:
            iterations.setdefault(step.block + step.op.lag, []).append(step)
        last_use = ("wait", "mma0", blocks - 1) if q and not self.output_through_q else None
        owed = False
        for t, steps in sorted(iterations.items()):
            in_epilogue = t >= blocks - self._epilogue_length
            if owed and in_epilogue:
                yield free_q
            owed &= not in_epilogue
            uses = [place for place, step in enumerate(steps) if _is_turn(step)] if self.ping_pong else []
            for place, step in enumerate(steps):
                if uses and place == uses[0]:
                    yield Event("sync", NAMED, TURN + group, 2 * WARPGROUP)
                yield from self._operation(step, base, q)
                if uses and place == uses[-1]:
                    yield Event("signal", NAMED, TURN + 1 - group, 2 * WARPGROUP)
                if (step.op.kind, step.op.statement, step.block) == last_use:
                    owed = not in_epilogue
                    if in_epilogue:
                        yield free_q
        if owed:
            yield free_q

    @cached_property
    def _epilogue_length(self) -> int:
        """Iterations after the steady state, which is a loop: what its last one alone would do comes after it."""
        view = phases(self.program)
        return view.blocks - view.epilogue[0][0] if view.epilogue else 0

    def _operation(self, step: Step, base: int, q: tuple[Read, ...]) -> Iterator[Event]:
        kind, statement = step.op.kind, step.op.statement
        if kind == "issue":
            load = LOAD_OF[statement]
            slot, _ = self._place(load, base + step.block)
            reads = ((RING_OF[load], slot, base + step.block), *(q if statement == "mma0" else ()))
            yield Event(statement, RING_OF[load], slot, reads=reads)
        elif kind == "wait" and statement in PRODUCTS:
            yield Event("products wait", value=step.outstanding)
        elif kind != "run":
            slot, lap = self._place(statement, base + step.block)
            if kind == "wait":
                yield Event("wait", f"{RING_OF[statement]}_full", slot, lap)
            else:
                yield Event("arrive", f"{RING_OF[statement]}_free", slot, 1, tuple(range(self.cluster)))


def _is_turn(step: Step) -> bool:
    """Whether warpgroups that take turns do it in theirs: products, and the waits for what these read."""
    return step.op.kind == "issue" or (step.op.kind == "wait" and step.op.statement in LOADS)


def tile_lists(program: Program) -> tuple[tuple[int, ...], ...]:
    """KV blocks of a block's row tiles, one after another, that show every state of its rings: short ones and long."""
    least = program.least_blocks
    long = max(program.span, least)
    return (), (least,), (least, least + 2, least + 1, least, least), (long, long + 1, long + 2)
