"""What the mma.sync lowering asks of a schedule, each rule stated once."""

from __future__ import annotations

from tl_attention.hardware.warpgroup import WARP
from tl_attention.lowering.emitted_rules import (
    MASKED_BLOCKS_COME_FIRST,
    chunks_have_all_keys,
    fused_statements_are_in_one_group,
    places_exist,
)
from tl_attention.lowering.mma_sync.table import TABLE
from tl_attention.schedule.choices import choices
from tl_attention.schedule.dialect import Check
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.rule import Rule

# Of an mma.sync: m16n8k16.
ROWS_OF_A_PRODUCT = 16


def rows_at_once(threads: int) -> int:
    """How many rows all warps of a block compute at a time."""
    return threads // WARP * ROWS_OF_A_PRODUCT


def _warps_share(threads: int) -> Rule:
    rows = rows_at_once(threads)
    return Rule(
        "threads",
        lambda s: (
            f"{threads} threads do not fit block_M {s.block_M}: each of {threads // WARP} warps computes "
            f"{ROWS_OF_A_PRODUCT} rows at a time, so expected block_M to be a multiple of {rows}"
        ),
        given={"threads": {"const": threads}},
        needs={"block_M": {"enum": [M for M in choices(Keys.model_fields["block_M"]) if M % rows == 0]}},
    )


def _places_say_how_many_buffers(s: Keys) -> None:
    for key, load in (("k_stages", "load_k"), ("v_stages", "load_v")):
        if getattr(s.kernel, key) is not None and load not in s.producers:
            raise RuleBroken(
                f"{load} has a position, which says how many buffers it fills: expected -1 for it, or no {key}",
                *("kernel", key),
                others=(("order",), ("stage",), ("group",), ("lowering",)),
            )


# In this order: the first that is broken is told.
RULES: tuple[Check, ...] = (
    # The fewest fit every block_M.
    *map(_warps_share, choices(Keys.model_fields["threads"])[1:]),
    MASKED_BLOCKS_COME_FIRST,
    fused_statements_are_in_one_group(TABLE),
    # The columns of rescale and of mma0 are head_dim's: see limits.py.
    *chunks_have_all_keys("exp", "row_sum", "cast", "mma1"),
    _places_say_how_many_buffers,
    places_exist((*TABLE.fused, *TABLE.moved)),
)
