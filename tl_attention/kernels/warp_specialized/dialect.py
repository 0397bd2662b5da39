"""Schedules see the warp-specialised kernel like this: its statements, rules, passes of a Program, and resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.shared.emitted_rules import (
    chunks_have_all_keys,
    fused_statements_are_in_one_group,
    masked_blocks_come_first,
    places_exist,
    row_sums_in_chunks_are_per_thread,
)
from tl_attention.kernels.shared.wgmma import threads_fit_the_tile
from tl_attention.problem.card import HOPPER, Card
from tl_attention.problem.head_dims import HeadSize, sizes_of, tile_size
from tl_attention.problem.warpgroup import ROWS, WARPGROUP
from tl_attention.program.program import Iteration, Operation, Phases
from tl_attention.schedule.dialect import Check
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.loop.emitted import SOFTMAX, emitted_table
from tl_attention.schedule.loop.table import Buffer, statement, symbol, whole
from tl_attention.schedule.schedule import Schedule

if TYPE_CHECKING:
    from tl_attention.program.limits import Resources
    from tl_attention.program.planned import Planned

TABLE = emitted_table(
    ("load_k", "mma0", "mask", *SOFTMAX, "load_v", "mma1"),
    [statement("product", "mma0", "Q_shared K_shared", "acc_s", "acc_s = Q_shared @ K_shared^T")],
)


# The most registers that a schedule can give a thread.
MOST_MOVED = 240


def rows_have_registers(s: Keys) -> None:
    if s.block_M > 192:
        raise RuleBroken(f"{s.block_M}, expected at most 192: the registers of 3 warpgroups and a producer", "block_M")


def every_load_is_a_producers(s: Keys) -> None:
    placed = [load for load in s.dialect.table.loads if load not in s.producers]
    if placed:
        raise RuleBroken(
            f"{placed[0]} has a position, expected -1: a producer warp issues every load",
            "order",
            others=(("stage",), ("group",)),
        )


def _the_polynomial_has_exponentials(s: Keys) -> None:
    # A thread holds two of every eight columns, of two rows.
    polynomial, exponentials = s.softmax.exp2_polynomial, s.block_N // 2
    if polynomial and polynomial.first >= exponentials:
        raise RuleBroken(
            f"{polynomial.first}, expected at most {exponentials - 1}: a thread computes block_N / 2 = {exponentials} "
            "exponentials of a block",
            *("softmax", "exp2_polynomial", "first"),
            others=(("block_N",),),
        )


def _one_block_takes_a_tile(s: Keys) -> None:
    if s.kernel.tile_scheduler == "dynamic" and s.kernel.cluster != 1:
        raise RuleBroken(
            "dynamic takes tiles for one block, expected with cluster: 1 (blocks of a cluster need the same tile pair)",
            *("kernel", "tile_scheduler"),
            others=(("kernel", "cluster"),),
        )


def _one_block_computes_a_part(s: Keys) -> None:
    # TileLang gives the kernel that merges the parts the same clusters.
    if s.kernel.part_blocks and s.kernel.cluster != 1:
        raise RuleBroken(
            f"{s.kernel.part_blocks}, expected with cluster: 1: a part is computed by one thread block",
            *("kernel", "part_blocks"),
            others=(("kernel", "cluster"),),
        )
    if s.kernel.part_blocks and s.kernel.tile_scheduler == "one_tile":
        raise RuleBroken(
            f"{s.kernel.part_blocks}, expected with a persistent tile_scheduler: the parts are the tiles' own",
            *("kernel", "part_blocks"),
            others=(("kernel", "tile_scheduler"),),
        )


def _rows_of_heads_lie_box_by_box(s: Keys) -> None:
    for key, value in {"output": "vector", "q_operand": "shared"}.items():
        if s.kernel.rows_of == "group" and getattr(s.kernel, key) != value:
            message = f"group, expected with {key}: {value}: rows of several heads are loaded and stored head by head"
            raise RuleBroken(message, "kernel", "rows_of", others=(("kernel", key),))


def _two_take_turns(s: Keys) -> None:
    if s.kernel.ping_pong and s.block_M != 128:
        message = f"two warpgroups take turns, found block_M {s.block_M}: expected 128, or write `kernel: {{ping_pong: false}}`"
        raise RuleBroken(message, "kernel", "ping_pong", others=(("block_M",),))


def _at_most_two_store_by_tma(s: Keys) -> None:
    otherwise = "or write `kernel: {output: vector}`"
    # TileLang 0.1.15 computes the address of a third warpgroup's rows wrongly.
    if s.kernel.output == "tma" and s.block_M > 128:
        message = f"tma, found block_M {s.block_M}: expected at most 128, {otherwise}"
        raise RuleBroken(message, "kernel", "output", others=(("block_M",),))
    # It gives the barrier at which warpgroups meet before such a store the number of one of the producer's, at which a
    # warp waits for the next tile's number: an H200 ends such a kernel with an illegal instruction now and then.
    if s.kernel.output == "tma" and s.kernel.tile_scheduler == "dynamic":
        message = f"tma, found tile_scheduler dynamic: expected one_tile or static, {otherwise}"
        raise RuleBroken(message, "kernel", "output", others=(("kernel", "tile_scheduler"),))


def registers_fit_the_block(s: Keys) -> None:
    """Raises RuleBroken unless `kernel.registers` fits the registers that the block is launched with."""
    # setmaxnreg moves registers from the producer to the others, and waits for ever for registers that are not there
    # (PTX ISA, setmaxnreg).
    if s.kernel.registers is None:
        return
    computes, loads = s.kernel.registers
    threads, blocks = s.threads + WARPGROUP, s.kernel.blocks_per_sm
    launched = HOPPER.registers_available(threads, blocks)
    shared = "" if blocks == 1 else f" and {blocks} blocks on an SM"
    if not loads <= launched <= computes:
        fits = f"the first at least {launched} and the second at most {launched}" if launched <= MOST_MOVED else "none"
        raise RuleBroken(
            f"[{computes}, {loads}], expected {fits}: with block_M {s.block_M}{shared} a thread is launched with {launched}",
            *("kernel", "registers"),
            others=(("kernel", "blocks_per_sm"), ("block_M",), ("threads",)),
        )
    total, available = s.threads * computes + WARPGROUP * loads, threads * launched
    if total > available:
        raise RuleBroken(
            f"[{computes}, {loads}] take {total:,} registers, the block is launched with {available:,}: {s.threads} "
            f"threads that compute and {WARPGROUP} of the producer, with {launched} each",
            *("kernel", "registers"),
            others=(("kernel", "blocks_per_sm"), ("block_M",), ("threads",)),
        )


# In this order: the first that is broken is told.
RULES: tuple[Check, ...] = (
    threads_fit_the_tile,
    rows_have_registers,
    every_load_is_a_producers,
    masked_blocks_come_first,
    fused_statements_are_in_one_group(TABLE),
    # The columns of rescale are head_dim's: see limits.py.
    *chunks_have_all_keys("exp", "row_sum", "cast"),
    row_sums_in_chunks_are_per_thread,
    places_exist((*TABLE.fused, *TABLE.moved, *TABLE.loads)),
    _the_polynomial_has_exponentials,
    _one_block_takes_a_tile,
    _one_block_computes_a_part,
    _rows_of_heads_lie_box_by_box,
    _two_take_turns,
    _at_most_two_store_by_tma,
    registers_fit_the_block,
)


PRODUCTS = "products"


def without_first_rescale(phases: Phases, schedule: Schedule, buffers: Mapping[str, int]) -> Phases:
    """Returns the phases without the rescale of block 0, for which acc_o is 0. The first product clears acc_o."""
    identities = {name for name, s in schedule.table.by_name.items() if s.identity == "zero"}

    def change(iteration: Iteration) -> tuple[Operation, ...]:
        t, operations = iteration
        return tuple(op for op in operations if op.statement not in identities or t > op.lag)

    return replace(phases, prologue=_changed(phases.prologue, change))


def holds(phases: Phases, schedule: Schedule, buffers: Mapping[str, int]) -> Phases:
    """Returns the phases with waits and releases kept behind the exponentials before them, unless kernel.waits is free.

    Operations of their own keep them there. `loose` keeps a wait or release behind the last exponential of the chunk
    before; `exact` keeps it behind all of them, and the next chunk behind it.
    """
    if schedule.kernel.waits == "free":
        return phases
    table, exact = schedule.table, schedule.kernel.waits == "exact"

    def writes(op: Operation) -> set[str]:
        return {*table.by_name[op.statement].writes}

    def change(iteration: Iteration) -> tuple[Operation, ...]:
        changed: list[Operation] = []
        ran: Operation | None = None
        held = False
        for op in iteration.operations:
            exponentials = op.kind == "run" and whole(op.statement) == "exp"
            if ran and op.kind == "issue" and not writes(op).isdisjoint(writes(ran)):
                # Exponentials come before a product that writes over them, and may not be read again.
                ran, held = None, False
            late = op.kind == "release" or (op.kind == "wait" and op.statement in table.products)
            if late and ran:
                first, end = table.by_name[ran.statement].columns or (0, schedule.block_N)
                # A thread has two rows and every fourth pair of columns: N / 2 registers for N columns.
                kind = "hold" if exact else "hold_last"
                changed.append(ran._replace(kind=kind, registers=(first // 2, end // 2)))
                ran, held = None, exact
            if exponentials and held:
                changed.append(op._replace(kind="resume"))
            if exponentials:
                ran, held = op, False
            changed.append(op)
        return tuple(changed)

    return everywhere(phases, change)


def turns(phases: Phases, schedule: Schedule, buffers: Mapping[str, int]) -> Phases:
    """Returns the phases with a turn taken and passed around each iteration's products, if kernel.ping_pong is set.

    Two warpgroups then take turns to issue the products, and to wait for what the first of them reads.
    """
    if not schedule.kernel.ping_pong:
        return phases

    def change(iteration: Iteration) -> tuple[Operation, ...]:
        operations = iteration.operations
        issues = [place for place, op in enumerate(operations) if op.kind == "issue"]
        if not issues:
            return operations
        first, behind = issues[0], issues[-1] + 1
        if first and operations[first - 1].kind == "wait":
            first -= 1
        turn, given = Operation("turn", PRODUCTS, 0), Operation("pass", PRODUCTS, 0)
        return (*operations[:first], turn, *operations[first:behind], given, *operations[behind:])

    return everywhere(phases, change)


def q_release(phases: Phases, schedule: Schedule, buffers: Mapping[str, int]) -> Phases:
    """Returns the phases with a release of Q_shared after its last product, unless Q is in registers or output is tma.

    That may be before the epilogue. None is added where Q is copied to registers, as it is free earlier, and where the
    output goes through Q_shared, as it is free only later.
    """
    if schedule.kernel.q_operand == "registers" or schedule.kernel.output == "tma":
        return phases
    return resident_releases(phases, schedule, buffers)


def resident_releases(phases: Phases, schedule: Schedule, buffers: Mapping[str, int]) -> Phases:
    """Returns the phases with a release of each resident tile after the last product that reads it.

    That may be before the epilogue.
    """
    for resident in schedule.table.residents:
        phases = _released(phases, schedule, resident)
    return phases


def _released(phases: Phases, schedule: Schedule, resident: Buffer) -> Phases:
    readers = [name for name in schedule.table.products if resident.name in schedule.table.by_name[name].reads]
    epilogue = list(phases.epilogue) or [Iteration(0, ())]
    waits = [
        (number, place)
        for number, iteration in enumerate(epilogue)
        for place, op in enumerate(iteration.operations)
        if op.kind == "wait" and op.statement in readers
    ]
    number, place = waits[-1] if waits else (0, -1)
    t, operations = epilogue[number]
    # With the last KV block.
    release = Operation("release", resident.load, t + 1)
    epilogue[number] = Iteration(t, (*operations[: place + 1], release, *operations[place + 1 :]))
    return replace(phases, epilogue=tuple(epilogue))


def p_shares(phases: Phases, schedule: Schedule, buffers: Mapping[str, int]) -> Phases:
    """Returns the phases with an operation behind the last cast that shows P to products, if P is in shared memory.

    Where P stays in registers none is added.
    """
    if schedule.kernel.p_operand == "registers":
        return phases
    last = [name for name in schedule.table.by_name if whole(name) == "cast"][-1]

    def change(iteration: Iteration) -> tuple[Operation, ...]:
        changed: list[Operation] = []
        for op in iteration.operations:
            changed.append(op)
            if op.kind == "run" and op.statement == last:
                changed.append(op._replace(kind="share"))
        return tuple(changed)

    return everywhere(phases, change)


# In any order: none looks at what another one adds or leaves out.
PASSES = (without_first_rescale, holds, turns, q_release, p_shares)

Change = Callable[[Iteration], tuple[Operation, ...]]


def _changed(iterations: Sequence[Iteration], change: Change) -> tuple[Iteration, ...]:
    return tuple(iteration._replace(operations=change(iteration)) for iteration in iterations)


def everywhere(phases: Phases, change: Change) -> Phases:
    (steady,) = _changed([phases.steady], change)
    return Phases(_changed(phases.prologue, change), steady, _changed(phases.epilogue, change))


MBARRIER_BYTES, TILE_NUMBER_BYTES = 8, 4
TILE_NUMBER = "tile number"

# Registers per thread of the warpgroups that compute and of the producer's, by block_M and the blocks of an SM. They
# share those of the launch. One warpgroup that has the SM to itself has 255 per thread already.
SPLIT_REGISTERS: dict[tuple[int, int], tuple[int, int]] = {
    (128, 1): (240, 24),
    (192, 1): (160, 32),
    (64, 2): (232, 24),
    (64, 3): (136, 24),
}


def resources(planned: Planned, size: HeadSize, card: Card) -> Resources:
    """Returns the Resources of one block of the kernel: registers per thread, shared memory and mbarriers.

    Raises ScheduleRefused where the output has another place than the rows of Q that it would go through.
    """
    # Late, here and below: a process that calls a finished kernel needs neither the proof nor a Program.
    from tl_attention.program.limits import Resources, fragment_registers, shared_bytes

    schedule = planned.schedule
    columns, columns_v = sizes_of(tile_size(size))
    if schedule.kernel.output == "tma" and columns != columns_v:
        raise ScheduleRefused(
            f"kernel.output: tma goes through Q's tile, of {columns} columns, and the output's has {columns_v}: expected "
            "vector or direct",
            "kernel",
            "output",
        )
    split, blocks = split_registers(schedule), schedule.kernel.blocks_per_sm
    launched = card.registers_available(schedule.threads + WARPGROUP, blocks)
    barriers = mbarrier_pairs(planned)
    return Resources(
        rings=planned.rings,
        shared_bytes=shared_bytes(planned, size),
        fragments=fragment_registers(schedule, size),
        registers=split[0] if split else launched,
        launched=launched,
        barriers=barriers,
        barrier_bytes=sum(barriers.values()) * 2 * MBARRIER_BYTES + barriers.get(TILE_NUMBER, 0) * TILE_NUMBER_BYTES,
        split=split,
        producer_threads=WARPGROUP,
        blocks=blocks,
    )


def split_registers(schedule: Schedule) -> tuple[int, ...] | None:
    """Returns the registers per thread of (computing warpgroups, producer), None where all keep those of the launch."""
    return schedule.kernel.registers or SPLIT_REGISTERS.get((schedule.block_M, schedule.kernel.blocks_per_sm))


def mbarrier_pairs(planned: Planned) -> dict[str, int]:
    """Returns how many pairs of full and empty mbarriers one block has, by what they guard.

    One for each warpgroup's rows of what is resident, such as Q, for each buffer that a load fills, and, where a
    counter gives the tiles, for the two numbers of the next tiles.
    """
    schedule = planned.schedule
    table = schedule.table
    residents = {buffer.symbol: schedule.block_M // ROWS for buffer in table.residents}
    rings = {symbol(table.ring_of(load)): planned.rings[table.ring_of(load)] for load in table.loads}
    tiles = {TILE_NUMBER: 2} if schedule.kernel.tile_scheduler == "dynamic" else {}
    return {**residents, **rings, **tiles}
