"""Every rule that a schedule must meet by itself, each stated once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tl_attention.options import OPTION_KEYS
from tl_attention.schedule_errors import RuleBroken
from tl_attention.statements import FUSED, LOADS, NUMBER, whole

if TYPE_CHECKING:
    from tl_attention.schedule import Schedule

PRODUCER = -1
KEYS_OF_ORDER = ("group", "order", "stage")

def _inferred_has_no_order(s: Schedule) -> None:
    given = [key for key in KEYS_OF_ORDER if getattr(s, key)]
    if s.lowering == "inferred" and given:
        raise RuleBroken(f"lowering inferred leaves the order to the compiler, remove {given[0]!r}", given[0])
    missing = [key for key in KEYS_OF_ORDER if not getattr(s, key)]
    if s.lowering != "inferred" and missing:
        raise RuleBroken(f"missing or empty, lowering {s.lowering} needs it", missing[0])


def _one_entry_per_group(s: Schedule) -> None:
    for key in ("order", "stage"):
        if len(getattr(s, key)) != len(s.group):
            raise RuleBroken(f"{len(getattr(s, key))} entries, expected one per group, {len(s.group)}", key)


def _groups_partition_the_statements(s: Schedule) -> None:
    seen: dict[str, int] = {}
    for index, group in enumerate(s.group):
        if not group:
            raise RuleBroken("an empty group, expected at least one statement", "group", index)
        for name in group:
            if name in seen:
                where = "twice" if seen[name] == index else f"in group {seen[name]} already"
                raise RuleBroken(f"statement {_named(name)} is {where}", "group", index)
            if name not in s.statements:
                columns = s.split.columns(whole(name))
                parts = f"it is split into {len(columns)} chunks" if columns else "it is not split"
                raise RuleBroken(f"no statement {name}: {parts} (key split)", "group", index)
            seen[name] = index
    missing = [name for name in s.statements if name not in seen]
    if s.group and missing:
        named = ", ".join(map(_named, missing))
        raise RuleBroken(f"in no group: {named}; expected each of the {len(s.statements)} statements in one", "group")


def _named(name: str) -> str:
    return f"{name} ({NUMBER[name]})" if name in NUMBER else name


def _producers_are_single_loads(s: Schedule) -> None:
    for index, (group, order, stage) in enumerate(zip(s.group, s.order, s.stage)):
        if (order == PRODUCER) != (stage == PRODUCER):
            key = "order" if order == PRODUCER else "stage"
            raise RuleBroken(f"-1 for {'+'.join(group)}, expected -1 in both order and stage or in neither", key, index)
        if order == PRODUCER and (len(group) != 1 or group[0] not in LOADS):
            raise RuleBroken(
                f"-1 marks a producer, which is exactly one load ({' or '.join(LOADS)}), found {'+'.join(group)}",
                "order", index,
            )


def _order_is_a_permutation(s: Schedule) -> None:
    placed = [(order, index) for index, order in enumerate(s.order) if order != PRODUCER]
    seen: dict[int, int] = {}
    for order, index in placed:
        if order in seen:
            raise RuleBroken(f"position {order} is taken by group {seen[order]} already", "order", index)
        if order >= len(placed):
            raise RuleBroken(f"position {order}, expected each of 0 to {len(placed) - 1} once", "order", index)
        seen[order] = index


def _stages_have_no_gap(s: Schedule) -> None:
    used = {stage for stage in s.stage if stage != PRODUCER}
    gaps = [stage for stage in range(max(used, default=0)) if stage not in used]
    if gaps:
        raise RuleBroken(f"no group has stage {gaps[0]}, expected every stage from 0 to {max(used)}", "stage")


def _threads_fit_the_tile(s: Schedule) -> None:
    # A warpgroup's wgmma has 64 rows, and TileLang 0.1.15 lays out acc_s for exactly that.
    if s.threads != 2 * s.block_M:
        raise RuleBroken(
            f"{s.threads} threads do not fit block_M {s.block_M}: each warpgroup of 128 threads computes 64 rows, "
            f"so expected 2 * {s.block_M} = {2 * s.block_M}",
            "threads",
        )


def _specialized_is_what_the_kernel_does(s: Schedule) -> None:
    if s.lowering != "warp_specialized":
        return
    if s.block_M > 192:
        raise RuleBroken(f"{s.block_M}, expected at most 192: the registers of 3 warpgroups and a producer", "block_M")
    placed = [load for load in LOADS if load not in s.producers]
    if placed:
        raise RuleBroken(f"{placed[0]} has a position, expected -1: a producer warp issues every load", "order")
    if s.kv_order != "descending":
        raise RuleBroken(
            "expected descending, the only order of this lowering: blocks that need a mask come first, and only they "
            "are masked", "kv_order",
        )
    group_of = {name: index for index, group in enumerate(s.group) for name in group}
    for name, partner in {**FUSED, "mask": "mma0"}.items():
        if group_of[name] != group_of[partner]:
            raise RuleBroken(
                f"{name} is part of {partner} in this lowering, expected both in one group", "group", group_of[name]
            )


def _options_belong_to_the_lowering(s: Schedule) -> None:
    given = [key for key in OPTION_KEYS if getattr(s, key) != type(getattr(s, key))()]
    if s.lowering != "warp_specialized" and given:
        raise RuleBroken(f"only lowering warp_specialized has it, remove it from lowering {s.lowering}", given[0])


def _chunks_fill_the_tile(s: Schedule) -> None:
    for name in ("exp", "row_sum", "cast"):
        columns = s.split.columns(name)
        if columns and sum(columns) != s.block_N:
            raise RuleBroken(f"{sum(columns)} columns in total, expected block_N {s.block_N}", "split", name)
    for key in ("wait_before", "release_before"):
        for what, statement in getattr(s, key):
            if statement is not None and statement not in s.statements:
                raise RuleBroken(f"{statement!r} is no statement of this schedule", key, what)
            if statement in (*FUSED, "mask", *LOADS):
                raise RuleBroken(f"{statement} has no place of its own in this lowering", key, what)


def _scheduler_suits_the_cluster(s: Schedule) -> None:
    if s.kernel.tile_scheduler == "dynamic" and s.kernel.cluster != 1:
        raise RuleBroken(
            "dynamic takes tiles for one block, expected with cluster: 1 (blocks of a cluster need the same tile pair)",
            "kernel", "tile_scheduler",
        )
    if s.kernel.ping_pong and s.block_M != 128:
        raise RuleBroken("two warpgroups take turns, expected block_M 128", "kernel", "ping_pong")
    if s.kernel.output == "tma" and s.block_M > 128:
        # TileLang 0.1.15 computes the address of a third warpgroup's rows wrongly.
        raise RuleBroken("tma, expected block_M of at most 128", "kernel", "output")


def _registers_are_setmaxnregs(s: Schedule) -> None:
    registers = s.kernel.registers
    if registers is None:
        return
    if any(count % 8 or not 24 <= count <= 240 for count in registers):
        raise RuleBroken(f"{list(registers)}, expected multiples of 8 from 24 to 240", "kernel", "registers")
    total = 128 * (s.threads // 128 * registers[0] + registers[1])
    if total > 65_536:
        raise RuleBroken(
            f"{list(registers)} take {total:,} registers, the SM has 65,536: 128 threads for the producer, {s.threads} "
            "that compute", "kernel", "registers",
        )


RULES = (
    _inferred_has_no_order,
    _groups_partition_the_statements,
    _one_entry_per_group,
    _producers_are_single_loads,
    _order_is_a_permutation,
    _stages_have_no_gap,
    _threads_fit_the_tile,
    _specialized_is_what_the_kernel_does,
    _options_belong_to_the_lowering,
    _chunks_fill_the_tile,
    _scheduler_suits_the_cluster,
    _registers_are_setmaxnregs,
)
