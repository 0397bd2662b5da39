"""Values of keys with which a broken rule between keys is met, and the lines that give them."""

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
    """A value of a key, and the keys with it."""

    value: Any
    keys: Keys


def broken_by(rule: Check, keys: Keys) -> RuleBroken | None:
    try:
        rule(keys)
    except RuleBroken as broken:
        return broken
    return None


def mended(keys: Keys, broken: RuleBroken, key: KeyPath) -> Mend | None:
    """The value of a key with which the rule is met: the one with the fewest other rules broken. None where there is none."""
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
    """The default, then what else the key may be, numbers from the one that it is."""
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
    """A value as a file would give it: null for a default that says nothing."""
    field = field_at(Keys, key)
    is_nothing = isinstance(value, BaseModel) or value == ()
    return None if is_nothing and field is not None and value == field.default else value


def of_file(key: KeyPath) -> KeyPath:
    """The part of a key's path that a file gives as a whole: a list is given with all of its entries."""
    return key[: next((depth for depth, part in enumerate(key) if isinstance(part, int)), len(key))]


def _with_value(keys: Keys, key: KeyPath, value: Any) -> Keys | None:
    """The keys with another value; None where the key cannot have it."""
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
    """What has to stand beside the author's key."""
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
    """The lines, of each key one: a file has a key once."""
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
