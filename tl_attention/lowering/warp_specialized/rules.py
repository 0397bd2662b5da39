"""What the warp-specialised lowering asks of a schedule, each rule stated once."""

from __future__ import annotations

from tl_attention.hardware.device import HOPPER
from tl_attention.hardware.warpgroup import WARPGROUP
from tl_attention.loop.table import whole
from tl_attention.lowering.warp_specialized.table import TABLE
from tl_attention.lowering.wgmma import threads_fit_the_tile
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.rules import parts


def _it_is_what_the_kernel_does(s: Keys) -> None:
    if s.block_M > 192:
        raise RuleBroken(f"{s.block_M}, expected at most 192: the registers of 3 warpgroups and a producer", "block_M")
    placed = [load for load in TABLE.loads if load not in s.producers]
    if placed:
        raise RuleBroken(f"{placed[0]} has a position, expected -1: a producer warp issues every load", "order")
    if s.kv_order != "descending":
        raise RuleBroken(
            "expected descending, the only order of this lowering: blocks that need a mask come first, and only they "
            "are masked",
            "kv_order",
        )
    group_of = {name: index for index, group in enumerate(s.group) for name in group}
    for name, partner in {**TABLE.fused, "mask": "mma0"}.items():
        partner = partner if partner in group_of else f"{partner}.0"
        if group_of[name] != group_of[partner]:
            raise RuleBroken(
                f"{name} is part of {partner} in this lowering, expected both in one group", "group", group_of[name]
            )


def _chunks_fill_the_tile(s: Keys) -> None:
    # The columns of rescale are head_dim's: see limits.py.
    for name in ("exp", "row_sum", "cast"):
        widths = s.split.columns(name)
        if widths and sum(widths) != s.block_N:
            raise RuleBroken(f"{sum(widths)} columns in total, expected block_N {s.block_N}", "split", name)


def _row_sums_in_chunks_are_per_thread(s: Keys) -> None:
    if s.split.row_sum and s.softmax.row_sum != "thread":
        raise RuleBroken("split, expected softmax.row_sum: thread (a row is reduced as a whole)", "split", "row_sum")


def _waits_and_releases_have_a_place(s: Keys) -> None:
    for key in ("wait_before", "release_before"):
        for what, name in getattr(s, key):
            if name is not None and name not in s.statements:
                raise RuleBroken(f"no statement {name} in this schedule: {parts(s, whole(name))}", key, what)
            if name in (*TABLE.fused, *TABLE.moved, *TABLE.loads):
                raise RuleBroken(f"{name} has no place of its own here, expected another statement", key, what)


def _the_polynomial_has_exponentials(s: Keys) -> None:
    # A thread holds two of every eight columns, of two rows.
    polynomial, exponentials = s.softmax.exp2_polynomial, s.block_N // 2
    if polynomial and polynomial.first >= exponentials:
        raise RuleBroken(
            f"{polynomial.first}, expected at most {exponentials - 1}: a thread computes block_N / 2 = {exponentials} "
            "exponentials of a block",
            "softmax",
            "exp2_polynomial",
            "first",
        )


def _kernel_suits_the_tile(s: Keys) -> None:
    if s.kernel.tile_scheduler == "dynamic" and s.kernel.cluster != 1:
        raise RuleBroken(
            "dynamic takes tiles for one block, expected with cluster: 1 (blocks of a cluster need the same tile pair)",
            "kernel",
            "tile_scheduler",
        )
    if s.kernel.ping_pong and s.block_M != 128:
        raise RuleBroken(f"two warpgroups take turns, expected block_M 128, found {s.block_M}", "kernel", "ping_pong")
    if s.kernel.output == "tma" and s.block_M > 128:
        # TileLang 0.1.15 computes the address of a third warpgroup's rows wrongly.
        raise RuleBroken(f"tma, expected block_M of at most 128, found {s.block_M}", "kernel", "output")


def _registers_fit_the_block(s: Keys) -> None:
    """setmaxnreg moves registers from the producer to the others, out of those that the block is launched with.

    It waits for registers that are not there, for ever (PTX ISA, setmaxnreg).
    """
    if s.kernel.registers is None:
        return
    computes, loads = s.kernel.registers
    threads = s.threads + WARPGROUP
    launched = HOPPER.registers_available(threads)
    if not loads <= launched <= computes:
        raise RuleBroken(
            f"[{computes}, {loads}], expected at least {launched} and at most {launched}: with block_M {s.block_M} a "
            f"thread is launched with {launched}",
            "kernel",
            "registers",
        )
    total, available = s.threads * computes + WARPGROUP * loads, threads * launched
    if total > available:
        raise RuleBroken(
            f"[{computes}, {loads}] take {total:,} registers, the block is launched with {available:,}: {s.threads} "
            f"threads that compute and {WARPGROUP} of the producer, with {launched} each",
            "kernel",
            "registers",
        )


RULES = (
    threads_fit_the_tile,
    _it_is_what_the_kernel_does,
    _chunks_fill_the_tile,
    _row_sums_in_chunks_are_per_thread,
    _waits_and_releases_have_a_place,
    _the_polynomial_has_exponentials,
    _kernel_suits_the_tile,
    _registers_fit_the_block,
)
