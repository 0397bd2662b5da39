"""The rules that a schedule of any lowering must meet by itself, each stated once."""

from __future__ import annotations

from tl_attention.loop.attention import NUMBER
from tl_attention.loop.table import whole
from tl_attention.schedule.dialect import dialects
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.keys import PRODUCER, Keys
from tl_attention.schedule.options import OPTION_KEYS

KEYS_OF_ORDER = ("group", "order", "stage")


def _the_order_is_whose_it_is(s: Keys) -> None:
    given = [key for key in KEYS_OF_ORDER if getattr(s, key)]
    if not s.has_program and given:
        raise RuleBroken(f"lowering {s.lowering} leaves the order to the compiler, remove {given[0]!r}", given[0])
    missing = [key for key in KEYS_OF_ORDER if not getattr(s, key)]
    if s.has_program and missing:
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
                raise RuleBroken(f"no statement {name} in this schedule: {parts(s, whole(name))}", "group", index)
            seen[name] = index
    missing = [name for name in s.statements if name not in seen]
    if s.group and missing:
        named = ", ".join(map(_named, missing))
        raise RuleBroken(f"in no group: {named}; expected each of the {len(s.statements)} statements in one", "group")


def parts(s: Keys, name: str) -> str:
    widths = s.split.columns(name)
    return f"split.{name} cuts it into {name}.0 to {name}.{len(widths) - 1}" if widths else f"{name} is not split"


def _named(name: str) -> str:
    return f"{name} ({NUMBER[name]})" if name in NUMBER else name


def _producers_are_single_loads(s: Keys) -> None:
    loads = s.dialect.table.loads
    for index, (group, order, stage) in enumerate(zip(s.group, s.order, s.stage)):
        if (order == PRODUCER) != (stage == PRODUCER):
            key = "order" if order == PRODUCER else "stage"
            raise RuleBroken(f"-1 for {'+'.join(group)}, expected -1 in both order and stage or in neither", key, index)
        if order == PRODUCER and (len(group) != 1 or group[0] not in loads):
            raise RuleBroken(
                f"-1 marks a producer, which is exactly one load ({' or '.join(loads)}), found {'+'.join(group)}",
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


def _options_belong_to_the_lowering(s: Keys) -> None:
    given = [key for key in OPTION_KEYS if getattr(s, key) != type(getattr(s, key))()]
    stray = next((key for key in given if key not in s.dialect.options), None)
    if stray:
        takers = " or ".join(dialect.name for dialect in dialects() if stray in dialect.options)
        raise RuleBroken(f"only lowering {takers} takes it, remove it from lowering {s.lowering}", stray)


# In this order: the first that is broken is told. Those of the lowering come after them.
RULES = (
    _the_order_is_whose_it_is,
    _options_belong_to_the_lowering,
    _groups_partition_the_statements,
    _one_entry_per_group,
    _producers_are_single_loads,
    _order_is_a_permutation,
    _stages_have_no_gap,
)
