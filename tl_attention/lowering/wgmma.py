"""What the lowerings that multiply by wgmma have in common."""

from __future__ import annotations

from tl_attention.hardware.device import HOPPER
from tl_attention.proof.limits import Resources, fragment_registers, ring_buffers, shared_bytes
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.schedule import Schedule


def threads_fit_the_tile(s: Keys) -> None:
    # A warpgroup's wgmma has 64 rows, and TileLang 0.1.15 lays out acc_s for exactly that.
    if s.threads != 2 * s.block_M:
        raise RuleBroken(
            f"{s.threads} threads do not fit block_M {s.block_M}: each warpgroup of 128 threads computes 64 rows, "
            f"so expected 2 * {s.block_M} = {2 * s.block_M}",
            "threads",
        )


def plain_resources(schedule: Schedule, head_dim: int) -> Resources:
    """What a block takes whose threads all compute: tiles in dynamic shared memory, no mbarriers of its own."""
    return Resources(
        rings=ring_buffers(schedule),
        shared_bytes=shared_bytes(schedule, head_dim),
        fragments=fragment_registers(schedule, head_dim),
        registers=HOPPER.registers_available(schedule.threads),
        barriers={},
    )
