"""Rules between keys say what a schedule may not be, and at which key that is told.

A rule is a function that raises RuleBroken. These are the rules that a schedule of any lowering must meet by itself.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tl_attention.schedule.dialect import Check, Dialect, dialects
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.key_words import KeyPath
from tl_attention.schedule.keys import PRODUCER, Keys
from tl_attention.schedule.loop.loops import LOOPS, NUMBER, cut_like
from tl_attention.schedule.loop.table import whole
from tl_attention.schedule.options import OPTION_KEYS, OPTION_PATHS, OPTIONS

KEYS_OF_ORDER = ("group", "order", "stage")


def rules_for(s: Keys) -> tuple[Check, ...]:
    """Returns the functions that check these keys, in order: of a lowering without the loop only one that says so."""
    lowerings = [dialect.name for dialect in dialects(s.loop)]
    return rules_of(s.dialect) if s.lowering in lowerings else (_the_lowering_has_the_loop,)


def _the_lowering_has_the_loop(s: Keys) -> None:
    line = f"write `lowering: {' or '.join(dialect.name for dialect in dialects(s.loop))}`"
    raise RuleBroken(f"lowering {s.lowering} has no loop {s.loop}: {line}", "loop", others=(("lowering",),))


@cache
def rules_of(dialect: Dialect) -> tuple[Check, ...]:
    """Returns the functions that check a schedule of this lowering, in order, each of which may raise RuleBroken.

    Only the first RuleBroken reaches the user.
    """
    order = (_order_is_left_out,) if dialect.model is None else ORDER_GIVEN
    # A key that is left out as a whole is told as a whole.
    options = (
        rule
        for path, rule in OPTION_LEFT_OUT.items()
        if not dialect.takes(path) and (path in OPTION_KEYS or dialect.takes(path.partition(".")[0]))
    )
    return (*order, *options, *OF_EVERY_LOWERING, *dialect.rules)


def _order_is_given(key: str) -> Check:
    def check(s: Keys) -> None:
        if not getattr(s, key):
            raise RuleBroken(f"missing or empty, lowering {s.lowering} needs it", key)

    return check


def _order_is_left_out(s: Keys) -> None:
    if given := [key for key in KEYS_OF_ORDER if getattr(s, key)]:
        advice = f"remove {' and '.join(given)}"
        raise RuleBroken(f"lowering {s.lowering} leaves the order to the compiler", given[0], advice=advice)


def _option_is_left_out(path: str) -> Check:
    key, _, name = path.partition(".")
    default: Any = OPTIONS[key]()
    if name:
        default = getattr(default, name)

    def check(s: Keys) -> None:
        options = getattr(s, key)
        if (getattr(options, name) if name else options) != default:
            kind, own = "lowering", s.lowering
            takers = [dialect.name for dialect in dialects(s.loop) if dialect.takes(path)]
            if not takers:
                kind, own = "loop", s.loop
                takers = [loop for loop in LOOPS if any(dialect.takes(path) for dialect in dialects(loop))]
            advice = f"remove it from {kind} {own}"
            raise RuleBroken(f"only {kind} {' or '.join(takers)} takes it", *path.split("."), advice=advice)

    return check


ORDER_GIVEN = tuple(map(_order_is_given, KEYS_OF_ORDER))
OPTION_LEFT_OUT = {path: _option_is_left_out(path) for path in (*OPTION_KEYS, *OPTION_PATHS)}


def _groups_partition_the_statements(s: Keys) -> None:
    statements = s.statements
    seen: dict[str, int] = {}
    for index, group in enumerate(s.group):
        if not group:
            raise RuleBroken("an empty group, expected at least one statement", "group", index)
        for name in group:
            if name in seen:
                where = "twice" if seen[name] == index else f"in group {seen[name]} already"
                raise RuleBroken(f"statement {_named(name)} is {where}", "group", index)
            if name not in statements:
                raise RuleBroken(
                    f"no statement {name} in this schedule: {parts(s, whole(name))}",
                    *("group", index),
                    others=_cut_by(name),
                )
            seen[name] = index
    missing = [name for name in statements if name not in seen]
    if s.group and missing:
        named = ", ".join(map(_named, missing))
        raise RuleBroken(
            f"in no group: {named}; expected each of the {len(statements)} statements in one",
            "group",
            others=tuple(key for name in missing for key in _cut_by(name)),
        )


def _cut_by(name: str) -> tuple[KeyPath, ...]:
    """Returns the paths of the keys that decide whether a schedule has a statement or chunk of this name."""
    options = [("kernel", "q_operand")] if name == "frag_q" else []
    return ("split", cut_like(whole(name))), *options


def parts(s: Keys, name: str) -> str:
    """Returns words on which chunks a schedule cuts a statement into, or why it has none of them."""
    if name not in map(whole, s.statements):
        known = name in (*s.dialect.source.names, *s.dialect.own_statements)
        of_loop = any(name in (*d.source.names, *d.own_statements) for d in dialects(s.loop))
        own = f"lowering {s.lowering}" if of_loop else f"loop {s.loop}"
        return f"{own} has none{' with these options' if known else ''}"
    widths = s.split.columns(name)
    if not widths:
        return f"{name} is not split"
    return f"split.{cut_like(name)} cuts it into {name}.0 to {name}.{len(widths) - 1}"


def _named(name: str) -> str:
    return f"{name} ({NUMBER[name]})" if name in NUMBER else name


def _one_entry_per_group(key: str) -> Check:
    def check(s: Keys) -> None:
        if len(getattr(s, key)) != len(s.group):
            message = f"{len(getattr(s, key))} entries, expected one per group, {len(s.group)}"
            raise RuleBroken(message, key, others=(("group",),))

    return check


def _producers_are_single_loads(s: Keys) -> None:
    loads = s.dialect.table.loads
    for index, (group, order, stage) in enumerate(zip(s.group, s.order, s.stage)):
        if (order == PRODUCER) != (stage == PRODUCER):
            key = "order" if order == PRODUCER else "stage"
            raise RuleBroken(
                f"-1 for {'+'.join(group)}, expected -1 in both order and stage or in neither",
                *(key, index),
                others=(("stage",) if key == "order" else ("order",), ("group",)),
            )
        if order == PRODUCER and (len(group) != 1 or group[0] not in loads):
            raise RuleBroken(
                f"-1 marks a producer, which is exactly one load ({' or '.join(loads)}), found {'+'.join(group)}",
                *("order", index),
                others=(("stage",), ("group",)),
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


OF_EVERY_LOWERING: tuple[Check, ...] = (
    _groups_partition_the_statements,
    *map(_one_entry_per_group, ("order", "stage")),
    _producers_are_single_loads,
    _order_is_a_permutation,
    _stages_have_no_gap,
)
