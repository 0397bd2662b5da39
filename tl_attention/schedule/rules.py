"""Every rule that a schedule must meet by itself, each stated once."""

from __future__ import annotations

from tl_attention.hardware.device import HOPPER
from tl_attention.hardware.warpgroup import WARPGROUP
from tl_attention.loop.statements import FUSED, LOADS, NUMBER, whole
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.keys import PRODUCER, Keys
from tl_attention.schedule.options import OPTION_KEYS

KEYS_OF_ORDER = ("group", "order", "stage")


def _inferred_has_no_order(s: Keys) -> None:
    given = [key for key in KEYS_OF_ORDER if getattr(s, key)]
    if s.lowering == "inferred" and given:
        raise RuleBroken(f"lowering inferred leaves the order to the compiler, remove {given[0]!r}", given[0])
    missing = [key for key in KEYS_OF_ORDER if not getattr(s, key)]
    if s.lowering != "inferred" and missing:
        raise RuleBroken(f"missing or empty, lowering {s.lowering} needs it", missing[0])


def _one_entry_per_group(s: Keys) -> None:
    for key in ("order", "stage"):
        if len(getattr(s, key)) != len(s.group):
            raise RuleBroken(f"{len(getattr(s, key))} entries, expected one per group, {len(s.group)}", key)


def _groups_partition_the_statements(s: Keys) -> None:
    seen: dict[str, int] = {}
    for index, group in enumerate(s.group):
        if not group:
            raise RuleBroken("an empty group, expected at least one statement", "group", index)
        for name in group:
            if name in seen:
                where = "twice" if seen[name] == index else f"in group {seen[name]} already"
                raise RuleBroken(f"statement {_named(name)} is {where}", "group", index)
            if name not in s.statements:
                raise RuleBroken(f"no statement {name} in this schedule: {_parts(s, whole(name))}", "group", index)
            seen[name] = index
    missing = [name for name in s.statements if name not in seen]
    if s.group and missing:
        named = ", ".join(map(_named, missing))
        raise RuleBroken(f"in no group: {named}; expected each of the {len(s.statements)} statements in one", "group")


def _parts(s: Keys, name: str) -> str:
    widths = s.split.columns(name)
    return f"split.{name} cuts it into {name}.0 to {name}.{len(widths) - 1}" if widths else f"{name} is not split"


def _named(name: str) -> str:
    return f"{name} ({NUMBER[name]})" if name in NUMBER else name


def _producers_are_single_loads(s: Keys) -> None:
    for index, (group, order, stage) in enumerate(zip(s.group, s.order, s.stage)):
        if (order == PRODUCER) != (stage == PRODUCER):
            key = "order" if order == PRODUCER else "stage"
            raise RuleBroken(f"-1 for {'+'.join(group)}, expected -1 in both order and stage or in neither", key, index)
        if order == PRODUCER and (len(group) != 1 or group[0] not in LOADS):
            raise RuleBroken(
                f"-1 marks a producer, which is exactly one load ({' or '.join(LOADS)}), found {'+'.join(group)}",
                "order",
                index,
            )


def _order_is_a_permutation(s: Keys) -> None:
    placed = [(order, index) for index, order in enumerate(s.order) if order != PRODUCER]
    seen: dict[int, int] = {}
    for order, index in placed:
        if order in seen:
            raise RuleBroken(f"position {order} is taken by group {seen[order]} already", "order", index)
        if order >= len(placed):
            raise RuleBroken(f"position {order}, expected each of 0 to {len(placed) - 1} once", "order", index)
        seen[order] = index


def _stages_have_no_gap(s: Keys) -> None:
    used = {stage for stage in s.stage if stage != PRODUCER}
    gap = next((stage for stage in range(max(used, default=0)) if stage not in used), None)
    if gap is not None:
        raise RuleBroken(f"no group has stage {gap}, expected every stage from 0 to {max(used)}", "stage")


def _threads_fit_the_tile(s: Keys) -> None:
    # A warpgroup's wgmma has 64 rows, and TileLang 0.1.15 lays out acc_s for exactly that.
    if s.threads != 2 * s.block_M:
        raise RuleBroken(
            f"{s.threads} threads do not fit block_M {s.block_M}: each warpgroup of 128 threads computes 64 rows, "
            f"so expected 2 * {s.block_M} = {2 * s.block_M}",
            "threads",
        )


def _specialized_is_what_the_kernel_does(s: Keys) -> None:
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
            "are masked",
            "kv_order",
        )
    group_of = {name: index for index, group in enumerate(s.group) for name in group}
    for name, partner in {**FUSED, "mask": "mma0"}.items():
        partner = partner if partner in group_of else f"{partner}.0"
        if group_of[name] != group_of[partner]:
            raise RuleBroken(
                f"{name} is part of {partner} in this lowering, expected both in one group", "group", group_of[name]
            )


def _options_belong_to_the_lowering(s: Keys) -> None:
    given = [key for key in OPTION_KEYS if getattr(s, key) != type(getattr(s, key))()]
    if s.lowering != "warp_specialized" and given:
        raise RuleBroken(f"only lowering warp_specialized takes it, remove it from lowering {s.lowering}", given[0])


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
                raise RuleBroken(f"no statement {name} in this schedule: {_parts(s, whole(name))}", key, what)
            if name in (*FUSED, "mask", *LOADS):
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
    _inferred_has_no_order,
    _options_belong_to_the_lowering,
    _groups_partition_the_statements,
    _one_entry_per_group,
    _producers_are_single_loads,
    _order_is_a_permutation,
    _stages_have_no_gap,
    _threads_fit_the_tile,
    _specialized_is_what_the_kernel_does,
    _chunks_fill_the_tile,
    _row_sums_in_chunks_are_per_thread,
    _waits_and_releases_have_a_place,
    _the_polynomial_has_exponentials,
    _kernel_suits_the_tile,
    _registers_fit_the_block,
)
