"""What the warp-specialised lowering asks of a schedule, each rule stated once."""

from __future__ import annotations

from tl_attention.hardware.card import HOPPER
from tl_attention.hardware.warpgroup import WARPGROUP
from tl_attention.lowering.emitted_rules import (
    MASKED_BLOCKS_COME_FIRST,
    ROW_SUMS_IN_CHUNKS_ARE_PER_THREAD,
    chunks_have_all_keys,
    fused_statements_are_in_one_group,
    places_exist,
)
from tl_attention.lowering.warp_specialized.table import TABLE
from tl_attention.lowering.wgmma import THREADS_FIT_THE_TILE
from tl_attention.schedule.dialect import Check
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.rule import Rule

# The most registers that a schedule can give a thread.
MOST_MOVED = 240
ROWS_HAVE_REGISTERS = Rule(
    "block_M",
    lambda s: f"{s.block_M}, expected at most 192: the registers of 3 warpgroups and a producer",
    needs={"block_M": {"maximum": 192}},
)


def _every_load_is_a_producers(s: Keys) -> None:
    placed = [load for load in TABLE.loads if load not in s.producers]
    if placed:
        raise RuleBroken(
            f"{placed[0]} has a position, expected -1: a producer warp issues every load",
            "order",
            others=(("stage",), ("group",), ("lowering",)),
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
            offers={("softmax", "exp2_polynomial", "first"): exponentials - 1},
        )


ONE_BLOCK_TAKES_A_TILE = Rule(
    "kernel.tile_scheduler",
    lambda s: (
        "dynamic takes tiles for one block, expected with cluster: 1 (blocks of a cluster need the same tile pair)"
    ),
    why=lambda s: (
        "a tile scheduler that is dynamic takes tiles for one block, those of a cluster need the same tile pair"
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
    *THREADS_FIT_THE_TILE,
    ROWS_HAVE_REGISTERS,
    _every_load_is_a_producers,
    MASKED_BLOCKS_COME_FIRST,
    fused_statements_are_in_one_group(TABLE),
    # The columns of rescale are head_dim's: see limits.py.
    *chunks_have_all_keys("exp", "row_sum", "cast"),
    ROW_SUMS_IN_CHUNKS_ARE_PER_THREAD,
    places_exist((*TABLE.fused, *TABLE.moved, *TABLE.loads)),
    _the_polynomial_has_exponentials,
    ONE_BLOCK_TAKES_A_TILE,
    TWO_TAKE_TURNS,
    TWO_STORE_BY_TMA,
    _registers_fit_the_block,
)
