"""These rules hold for lowerings that emit the loop operation by operation, with the softmax of `loop/emitted.py`."""

from __future__ import annotations

from collections.abc import Collection

from tl_attention.schedule.dialect import Check
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.key_words import line_of
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.loop.loops import cut_like
from tl_attention.schedule.loop.table import Table, whole
from tl_attention.schedule.rules import parts


def masked_blocks_come_first(s: Keys) -> None:
    if s.kv_order != "descending":
        raise RuleBroken(
            "expected descending, the only order of this lowering: blocks that need a mask come first, and only they "
            "are masked",
            "kv_order",
        )


def fused_statements_are_in_one_group(table: Table) -> Check:
    """Returns a check that refuses a schedule unless fused statements are in their partners' groups, mask in mma0's.

    `table.fused` names the partners. The mask hides scores of mma0.
    """

    def check(s: Keys) -> None:
        group_of = {name: index for index, group in enumerate(s.group) for name in group}
        for name, partner in {**table.fused, "mask": "mma0"}.items():
            partner = partner if partner in group_of else f"{partner}.0"
            # One that is in no group is told already.
            if name in group_of and partner in group_of and group_of[name] != group_of[partner]:
                raise RuleBroken(
                    f"{name} is part of {partner} in this lowering, expected both in one group",
                    *("group", group_of[name]),
                )

    return check


def chunks_have_all_keys(*names: str) -> tuple[Check, ...]:
    """Returns a check per named statement, which refuses chunks of it whose columns do not add up to block_N.

    The columns of these statements are the block's keys.
    """
    return tuple(map(_chunks_have_all_keys, names))


def _chunks_have_all_keys(name: str) -> Check:
    def check(s: Keys) -> None:
        widths = s.split.columns(name)
        if widths and sum(widths) != s.block_N:
            # The number of chunks stays: groups and waits name them.
            last = s.block_N - sum(widths[:-1])
            line = f": write `{line_of(('split', name), [*widths[:-1], last])}`" if last > 0 else ""
            raise RuleBroken(
                f"{sum(widths)} columns in total, expected block_N {s.block_N}{line}",
                *("split", name),
                others=(("block_N",),),
            )

    return check


def row_sums_in_chunks_are_per_thread(s: Keys) -> None:
    if s.split.row_sum and s.softmax.row_sum != "thread":
        raise RuleBroken(
            "split, expected softmax.row_sum: thread (a row is reduced as a whole)",
            *("split", "row_sum"),
            others=(("softmax", "row_sum"),),
        )


def places_exist(unnamed: Collection[str]) -> Check:
    """Returns a check that refuses wait_before and release_before names that are no statement, or are in `unnamed`.

    Those in `unnamed` have no operation of their own.
    """

    def check(s: Keys) -> None:
        for key in ("wait_before", "release_before"):
            for what, name in getattr(s, key):
                if name is not None and name not in s.statements:
                    raise RuleBroken(
                        f"no statement {name} in this schedule: {parts(s, whole(name))}",
                        *(key, what),
                        others=(("split", cut_like(whole(name))),),
                    )
                if name in unnamed:
                    raise RuleBroken(f"{name} has no place of its own here, expected another statement", key, what)

    return check
