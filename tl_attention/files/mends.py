"""A Mend meets a broken rule by a new value of a key; this module finds mends, and the lines that give them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from tl_attention.schedule.dialect import Check
from tl_attention.schedule.fields import choices, field_at, model_of
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.key_words import KeyPath, line_of, listed
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.rules import rules_of

MOST_CANDIDATES = 64
# A key and its value, or what to change in words.
Need = tuple[KeyPath, Any] | str


class Mend(NamedTuple):
    """A Mend is a new value of one key, and all keys with that value."""

    value: Any
    keys: Keys


def broken_by(rule: Check, keys: Keys) -> RuleBroken | None:
    try:
        rule(keys)
    except RuleBroken as broken:
        return broken
    return None


def mended(keys: Keys, broken: RuleBroken, key: KeyPath) -> Mend | None:
    """Finds the value of a key that meets the broken rule; None where there is none.

    Of several values it takes the one with which the fewest other rules are broken.
    """
    before: Any = keys
    for part in key:
        before = getattr(before, str(part), None)
    candidates = [broken.offers[key]] if broken.offers.get(key) is not None else list(_candidates(key, before))
    best: tuple[int, Mend] | None = None
    for value in candidates:
        changed = _with_value(keys, key, value) if value != before else None
        if changed is None or changed.dialect is not keys.dialect:
            continue
        left = [other for one in rules_of(changed.dialect) if (other := broken_by(one, changed))]
        if any(other.key == broken.key or of_file(other.key) == key for other in left):
            continue
        if best is None or len(left) < best[0]:
            best = len(left), Mend(value, changed)
    return best[1] if best else None


def _candidates(key: KeyPath, before: Any) -> Iterator[Any]:
    """Yields the values to try for a key: its default, then all others, numbers by their distance from the present one."""
    field = field_at(Keys, key)
    if field is None:
        return
    if not field.is_required():
        yield field.default
    if model_of(field.annotation):
        return
    values = list(islice(choices(field), MOST_CANDIDATES))
    if isinstance(before, int) and not isinstance(before, bool):
        values.sort(key=lambda value: abs(value - before))
    yield from values


def _as_given(value: Any, key: KeyPath) -> Any:
    """Returns a value as a file would give it: null for a default that says nothing."""
    field = field_at(Keys, key)
    is_nothing = isinstance(value, BaseModel) or value == ()
    return None if is_nothing and field is not None and value == field.default else value


def of_file(key: KeyPath) -> KeyPath:
    """Returns the part of a key's path that a file gives as a whole: a list is given with all of its entries."""
    return key[: next((depth for depth, part in enumerate(key) if isinstance(part, int)), len(key))]


def _with_value(keys: Keys, key: KeyPath, value: Any) -> Keys | None:
    """Returns the keys with another value of one key; None where that key cannot have the value."""
    fields: dict[Any, Any] = keys.model_dump()
    inside = fields
    for part in key[:-1]:
        inside = inside[part]
        if inside is None:
            return None
    inside[key[-1]] = value.model_dump() if isinstance(value, BaseModel) else value
    try:
        return Keys(**fields)
    except ValidationError:
        return None


def need_of(keys: Keys, key: KeyPath, mend: Mend | None, is_in_base: bool) -> Need:
    """Returns what has to stand beside the author's key: a key and its value, or what to change in words."""
    if mend is None:
        return f"{'another ' if is_in_base else ''}`{key[0]}`"
    if key == ("group",) and mend.value:
        before, after = ([name for group in groups for name in group] for groups in (keys.group, mend.value))
        gone, come = ([name for name in one if name not in other] for one, other in ((before, after), (after, before)))
        if not come:
            return f"`group` without {listed(gone)}" if gone else "another `group`"
        instead = f" in place of {listed(gone)}" if gone else ""
        return f"`group` with {listed(come)}{instead}"
    return key, _as_given(mend.value, key)


def lines_of(needs: Iterable[Need]) -> str:
    """Returns the lines that give these needs, in words. Each key has one line: a file has a key once."""
    lines: dict[str, str] = {}
    given: dict[Any, Any] = {}
    for need in needs:
        if isinstance(need, str):
            lines[need] = need
            continue
        (*above, last), value = need
        inside = given
        for part in above:
            inside = inside[part] if isinstance(inside.get(part), dict) else inside.setdefault(part, {})
        inside[last] = value
        top = str(need[0][0])
        lines[top] = f"`{line_of((top,), given[top])}`"
    return listed(list(lines.values()))
