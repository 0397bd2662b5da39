"""What the warp-specialised lowering asks of a schedule, each rule stated once."""

from __future__ import annotations

from tl_attention.hardware.card import HOPPER
from tl_attention.hardware.warpgroup import WARPGROUP
from tl_attention.loop.table import whole
from tl_attention.lowering.warp_specialized.table import TABLE
from tl_attention.lowering.wgmma import THREADS_FIT_THE_TILE
from tl_attention.schedule.dialect import Check
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.rule import Rule
from tl_attention.schedule.rules import parts

ROWS_HAVE_REGISTERS = Rule(
    "block_M",
    lambda s: f"{s.block_M}, expected at most 192: the registers of 3 warpgroups and a producer",
    needs={"block_M": {"maximum": 192}},
)


def _every_load_is_a_producers(s: Keys) -> None:
    placed = [load for load in TABLE.loads if load not in s.producers]
    if placed:
        raise RuleBroken(f"{placed[0]} has a position, expected -1: a producer warp issues every load", "order")


MASKED_BLOCKS_COME_FIRST = Rule(
    "kv_order",
    lambda s: (
        "expected descending, the only order of this lowering: blocks that need a mask come first, and only they are "
        "masked"
    ),
    needs={"kv_order": {"const": "descending"}},
)


def _fused_statements_are_in_one_group(s: Keys) -> None:
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


ROW_SUMS_IN_CHUNKS_ARE_PER_THREAD = Rule(
    "split.row_sum",
    lambda s: "split, expected softmax.row_sum: thread (a row is reduced as a whole)",
    given={"split.row_sum": {"type": "array"}},
    needs={"softmax.row_sum": {"const": "thread"}},
)


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


ONE_BLOCK_TAKES_A_TILE = Rule(
    "kernel.tile_scheduler",
    lambda s: (
        "dynamic takes tiles for one block, expected with cluster: 1 (blocks of a cluster need the same tile pair)"
    ),
    given={"kernel.tile_scheduler": {"const": "dynamic"}},
    needs={"kernel.cluster": {"const": 1}},
)
TWO_TAKE_TURNS = Rule(
    "kernel.ping_pong",
    lambda s: f"two warpgroups take turns, expected block_M 128, found {s.block_M}",
    given={"kernel.ping_pong": {"const": True}},
    needs={"block_M": {"const": 128}},
)
# TileLang 0.1.15 computes the address of a third warpgroup's rows wrongly.
TWO_STORE_BY_TMA = Rule(
    "kernel.output",
    lambda s: f"tma, expected block_M of at most 128, found {s.block_M}",
    given={"kernel.output": {"const": "tma"}},
    needs={"block_M": {"maximum": 128}},
)


def _registers_fit_the_block(s: Keys) -> None:
    """setmaxnreg moves registers from the producer to the others, out of those that the block is launched with.

    It waits for registers that are not there, for ever (PTX ISA, setmaxnreg).
    """
    if s.kernel.registers is None:
        return
    computes, loads = s.kernel.registers
    threads, blocks = s.threads + WARPGROUP, s.kernel.blocks_per_sm
    launched = HOPPER.registers_available(threads, blocks)
    shared = "" if blocks == 1 else f" and {blocks} blocks on an SM"
    if not loads <= launched <= computes:
        raise RuleBroken(
            f"[{computes}, {loads}], expected at least {launched} and at most {launched}: with block_M {s.block_M}"
            f"{shared} a thread is launched with {launched}",
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


# In this order: the first that is broken is told.
RULES: tuple[Check, ...] = (
    *THREADS_FIT_THE_TILE,
    ROWS_HAVE_REGISTERS,
    _every_load_is_a_producers,
    MASKED_BLOCKS_COME_FIRST,
    _fused_statements_are_in_one_group,
    _chunks_fill_the_tile,
    ROW_SUMS_IN_CHUNKS_ARE_PER_THREAD,
    _waits_and_releases_have_a_place,
    _the_polynomial_has_exponentials,
    ONE_BLOCK_TAKES_A_TILE,
    TWO_TAKE_TURNS,
    TWO_STORE_BY_TMA,
    _registers_fit_the_block,
)
