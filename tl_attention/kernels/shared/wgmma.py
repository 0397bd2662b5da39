"""Lowerings that multiply by wgmma share their cards, a rule about threads, and the plain resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tl_attention.problem.card import HOPPER, Card
from tl_attention.problem.head_dims import HeadSize
from tl_attention.problem.warpgroup import ROWS, WARPGROUP
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.keys import Keys

if TYPE_CHECKING:
    from tl_attention.program.limits import Resources
    from tl_attention.program.planned import Planned


# The cards that have it.
WGMMA_ARCHS = (HOPPER.arch,)


def threads_fit_the_tile(s: Keys) -> None:
    # A warpgroup's wgmma has 64 rows, and TileLang 0.1.15 lays out acc_s for exactly that.
    if s.threads != 2 * s.block_M:
        raise RuleBroken(
            f"{s.threads} threads do not fit block_M {s.block_M}: each warpgroup of {WARPGROUP} threads computes {ROWS} "
            f"rows, so write `threads: {2 * s.block_M}`",
            "threads",
            others=(("block_M",),),
        )


def plain_resources(planned: Planned, size: HeadSize, card: Card) -> Resources:
    """Returns the SM resources of a block whose threads all compute, with tiles in shared memory and no mbarriers."""
    from tl_attention.program.limits import Resources, fragment_registers, shared_bytes

    schedule = planned.schedule
    registers = card.registers_available(schedule.threads)
    return Resources(
        rings=planned.rings,
        shared_bytes=shared_bytes(planned, size),
        fragments=fragment_registers(schedule, size),
        registers=registers,
        launched=registers,
        barriers={},
    )
