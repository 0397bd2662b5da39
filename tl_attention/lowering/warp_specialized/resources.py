"""What a block of the warp-specialised kernel takes of the SM: mbarriers and moved registers besides tiles."""

from __future__ import annotations

from tl_attention.errors import ScheduleRefused
from tl_attention.hardware.card import Card
from tl_attention.hardware.warpgroup import ROWS, WARPGROUP
from tl_attention.problem.head_dims import HeadSize, sizes_of, tile_size
from tl_attention.program.planned import Planned
from tl_attention.proof.limits import Resources, fragment_registers, shared_bytes
from tl_attention.schedule.schedule import Schedule

MBARRIER_BYTES, TILE_NUMBER_BYTES = 8, 4
TILE_NUMBER = "tile number"

# Registers per thread of the warpgroups that compute and of the producer's, by block_M and the blocks of an SM: they share
# those of the launch. With one warpgroup that has the SM to itself that gives every thread 255 already.
SPLIT_REGISTERS: dict[tuple[int, int], tuple[int, int]] = {
    (128, 1): (240, 24),
    (192, 1): (160, 32),
    (64, 2): (232, 24),
    (64, 3): (136, 24),
}


def resources(planned: Planned, size: HeadSize, card: Card) -> Resources:
    """What one block takes: the tiles' own, and a pair of mbarriers for each buffer.

    Raises ScheduleRefused where the output has another place than the rows of Q that it would go through.
    """
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
        rings=planned.buffers,
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
    """Registers per thread that compute and of the producer's, or None where all keep those of the launch."""
    return schedule.kernel.registers or SPLIT_REGISTERS.get((schedule.block_M, schedule.kernel.blocks_per_sm))


def mbarrier_pairs(planned: Planned) -> dict[str, int]:
    """Pairs of mbarriers of one block, one for full and one for empty.

    One for each warpgroup's rows of Q, for each buffer of K and V, and, where a counter gives the tiles, for the two
    numbers of the next tiles.
    """
    schedule, (k, v) = planned.schedule, planned.buffers
    tiles = {TILE_NUMBER: 2} if schedule.kernel.tile_scheduler == "dynamic" else {}
    return {"Q": schedule.block_M // ROWS, "K": k, "V": v, **tiles}
