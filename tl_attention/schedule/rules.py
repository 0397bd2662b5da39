"""Rules between keys say what a schedule may not be, and at which key that is told.

This module first says what a rule is, and then has the rules that a schedule of any lowering must meet by itself.
Keywords of JSON Schema say what keys hold, by the keys' paths: `{"kernel.output": {"const": "tma"}}`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic import BaseModel

from tl_attention.loop.attention import FRAGMENTS, NUMBER, SOURCE
from tl_attention.loop.table import whole
from tl_attention.schedule.dialect import Check, Dialect, dialects
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.key_words import KeyPath
from tl_attention.schedule.keys import PRODUCER, Keys
from tl_attention.schedule.options import OPTION_KEYS, OPTION_PATHS, OPTIONS

Keywords = Mapping[str, Any]
Where = Mapping[str, Keywords]


@dataclass(frozen=True, eq=False)
class Rule:
    """A Rule says that keys which are as `given` must be as in `needs`.

    `told` says what is wrong with a schedule that breaks the rule. `blamed` is the key at which that is told, and
    `advice` is what to do about that key.
    """

    blamed: str
    told: Callable[[Keys], str]
    needs: Where
    given: Where = field(default_factory=dict)
    advice: Callable[[Keys], str] = lambda s: ""

    def __call__(self, s: Keys) -> None:
        if holds(s, self.given) and not holds(s, self.needs):
            others = tuple(tuple(path.split(".")) for path in (*self.needs, *self.given) if path != self.blamed)
            raise RuleBroken(self.told(s), *self.blamed.split("."), others=others, advice=self.advice(s))


def holds(s: Keys, where: Where) -> bool:
    """Says whether the keys of a schedule meet the keywords at their paths."""
    values = ((operator.attrgetter(path)(s), keywords) for path, keywords in where.items())
    return all(HOLDS[keyword](value, bound) for value, keywords in values for keyword, bound in keywords.items())


def _given_keys(keys: BaseModel) -> int:
    """Counts the keys that differ from their defaults: a default says nothing."""
    return sum(getattr(keys, name) != field.default for name, field in type(keys).model_fields.items())


# What JSON Schema's keywords ask of a value; those that rules use.
HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "const": operator.eq,
    "enum": lambda value, choices: value in choices,
    "type": lambda value, name: isinstance(value, {"array": tuple}[name]),
    "maximum": operator.le,
    "minItems": lambda values, least: len(values) >= least,
    "maxItems": lambda values, most: len(values) <= most,
    "maxProperties": lambda keys, most: _given_keys(keys) <= most,
}


# --- the rules of every lowering ---------------------------------------------------------------------------------------

KEYS_OF_ORDER = ("group", "order", "stage")


@cache
def rules_of(dialect: Dialect) -> tuple[Check, ...]:
    """Returns the rules that a schedule of this lowering must meet, in order: the first that is broken is told."""
    order = ORDER_LEFT_OUT if dialect.model is None else ORDER_GIVEN
    # A key that is left out as a whole is told as a whole.
    options = (
        rule
        for path, rule in OPTION_LEFT_OUT.items()
        if not dialect.takes(path) and (path in OPTION_KEYS or dialect.takes(path.partition(".")[0]))
    )
    return (*order, *options, *OF_EVERY_LOWERING, *dialect.rules)


ORDER_GIVEN = tuple(
    Rule(key, lambda s: f"missing or empty, lowering {s.lowering} needs it", needs={key: {"minItems": 1}})
    for key in KEYS_OF_ORDER
)


def _order_left_out(key: str) -> Rule:
    return Rule(
        key,
        lambda s: f"lowering {s.lowering} leaves the order to the compiler",
        needs={key: {"maxItems": 0}},
        # The first of the keys that are there is told.
        given={before: {"maxItems": 0} for before in KEYS_OF_ORDER[: KEYS_OF_ORDER.index(key)]},
        advice=lambda s: f"remove {' and '.join(name for name in KEYS_OF_ORDER if getattr(s, name))}",
    )


def _option_left_out(path: str) -> Rule:
    def told(s: Keys) -> str:
        return f"only lowering {' or '.join(dialect.name for dialect in dialects() if dialect.takes(path))} takes it"

    def advice(s: Keys) -> str:
        return f"remove it from lowering {s.lowering}"

    key, _, name = path.partition(".")
    whole = {"maxProperties": 0}
    needs = {"const": OPTIONS[key].model_fields[name].default} if name else whole
    return Rule(path, told, needs={path: needs}, advice=advice)


ORDER_LEFT_OUT = tuple(map(_order_left_out, KEYS_OF_ORDER))
OPTION_LEFT_OUT = {path: _option_left_out(path) for path in (*OPTION_KEYS, *OPTION_PATHS)}


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
    """Returns the keys that decide whether there is a statement, or chunk, of this name."""
    options = [("kernel", "q_operand")] if name == "frag_q" else []
    return ("split", FRAGMENTS.get(whole(name), whole(name))), *options, ("lowering",)


def parts(s: Keys, name: str) -> str:
    """Returns which chunks of a statement there are, in words that say why."""
    if name not in map(whole, s.statements):
        known = name in (*SOURCE.names, *s.dialect.own_statements)
        return f"lowering {s.lowering} has none{' with these options' if known else ''}"
    widths = s.split.columns(name)
    if not widths:
        return f"{name} is not split"
    return f"split.{FRAGMENTS.get(name, name)} cuts it into {name}.0 to {name}.{len(widths) - 1}"


def _named(name: str) -> str:
    return f"{name} ({NUMBER[name]})" if name in NUMBER else name


def _one_entry_per_group(key: str) -> Check:
    def check(s: Keys) -> None:
        if len(getattr(s, key)) != len(s.group):
            found = f"{len(getattr(s, key))} entries, expected one per group, {len(s.group)}"
            raise RuleBroken(found, key, others=(("group",),))

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
