"""Every mistake in the keys of a schedule, each with the key to blame and, where a rule is broken, what to change.

A rule between keys is told at a key that its author wrote. Keys that only a base gives may have to change too: values
for them are looked for, and with these the other rules are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pydantic import ValidationError

from tl_attention.schedule.dialect import Check
from tl_attention.schedule.key_errors import RuleBroken, key_and_message
from tl_attention.schedule.key_words import KeyPath, line_of, spelled
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.mends import Need, broken_by, lines_of, need_of, of_file, value_that_works, with_value
from tl_attention.schedule.options import OPTION_KEYS
from tl_attention.schedule.rules import KEYS_OF_ORDER, OF_EVERY_LOWERING, ORDER_GIVEN, rules_of

# Stand for keys that are missing or wrong, so that the rules about the others can be asked.
STAND_INS = {"block_M": 128, "block_N": 128, "threads": 256, "num_stages": 2}
MOST_RULES = 40


@dataclass(frozen=True)
class Mistake:
    """The key to blame and what is wrong. `needs` have to stand beside it, `about` are the keys that they give.

    `missing` are keys that have no line.
    """

    key: KeyPath
    message: str
    needs: tuple[Need, ...] = ()
    about: tuple[KeyPath, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Author:
    """Which keys the author of a file wrote, `own`, and which of them, or of others, a base gives, if there is one."""

    own: Callable[[KeyPath], bool]
    base: Callable[[KeyPath], bool]
    has_base: bool


def mistakes(fields: Mapping[str, Any], model: type[Keys], author: Author, faulty: set[KeyPath]) -> list[Mistake]:
    """All of the fields of a model; of `faulty` keys nothing is told."""
    try:
        model(**fields)
        return []
    except ValidationError as error:
        # A rule that is broken is found once more below, with the others.
        details = [found for found in error.errors() if not isinstance(found.get("ctx", {}).get("error"), RuleBroken)]
    places = {detail["loc"] for detail in details}
    # A list without the entries that are wrong is too short as well.
    above = {place[:depth] for place in places for depth in range(len(place))}
    details = [detail for detail in details if detail["loc"] not in above]
    told = [(detail, *key_and_message(detail, model)) for detail in details if not _is_touched(detail["loc"], faulty)]
    # A mistyped key is also a missing one: the name that the file has is the one to tell.
    guessed = {message.partition("did you mean ")[2].partition("?")[0] for detail, _, message in told}
    needed = [*STAND_INS, *(KEYS_OF_ORDER if fields.get("lowering") != "inferred" else ())]
    absent = {(key,) for key in needed if key not in fields and (not author.has_base or key in STAND_INS)}
    found = [Mistake(key, message) for _, key, message in told if key not in absent]
    missing = tuple(key for key in needed if (key,) in absent - faulty and key not in guessed and "base" not in guessed)
    if missing:
        found.append(Mistake((), "", missing=missing))
    # Where the lowering may be that of a base which is missing, its rules say nothing.
    is_open = absent and not author.has_base and "lowering" not in fields
    faulty = faulty | {detail["loc"] for detail in details} | absent
    keys = None if is_open else _keys_without(fields, faulty)
    return found + (list(_broken(keys, author, faulty)) if keys else [])


def _keys_without(fields: Mapping[str, Any], faulty: set[KeyPath]) -> Keys | None:
    """The keys, those that are faulty as by default or as anything; None where it is the lowering, whose rules they are."""
    clean: dict[str, Any] = {key: value for key, value in fields.items() if key in Keys.model_fields}
    for key in faulty:
        if not key or key[0] not in clean:
            continue
        inside = clean[key[0]]
        if len(key) > 1 and key[0] in OPTION_KEYS and isinstance(inside, dict):
            clean[key[0]] = {name: value for name, value in inside.items() if name != key[1]}
        else:
            del clean[key[0]]
    try:
        return None if ("lowering",) in faulty else Keys(**(STAND_INS | clean))
    except ValidationError:
        return None


@dataclass
class _Looked:
    """What was found so far: keys whose rules are no more asked, and for which key of the author others were changed."""

    faulty: set[KeyPath]
    is_trial: bool
    changed: dict[KeyPath, KeyPath] = field(default_factory=dict)
    told: set[tuple[KeyPath, str]] = field(default_factory=set)


def _broken(keys: Keys, author: Author, faulty: set[KeyPath], is_trial: bool = False) -> Iterator[Mistake]:
    """The mistakes in keys together; in a trial without ways out of them."""
    looked = _Looked(set(faulty), is_trial)
    for _ in range(MOST_RULES):
        rule, broken = next(_asked(keys, looked.faulty), (None, None))
        if rule is None or broken is None:
            return
        mistake, change = _told(keys, rule, broken, author, looked)
        yield mistake
        if change and (broken.key, str(broken)) not in looked.told:
            looked.told.add((broken.key, str(broken)))
            keys = with_value(keys, *change) or keys
        else:
            looked.faulty.add(of_file(broken.key))


def _asked(keys: Keys, faulty: set[KeyPath]) -> Iterator[tuple[Check, RuleBroken]]:
    """The rules that are broken, with what they say, without those about faulty keys."""
    for rule in rules_of(keys.dialect):
        broken = broken_by(rule, keys)
        if broken and not any(_is_touched(key, faulty) for key in (broken.key, *broken.others)):
            yield rule, broken


def _told(
    keys: Keys, rule: Check, broken: RuleBroken, author: Author, looked: _Looked
) -> tuple[Mistake, tuple[KeyPath, Any] | None]:
    """The mistake, and the change of a key of the base with which the rule is met."""
    others = broken.others if rule in OF_EVERY_LOWERING else (*broken.others, ("lowering",))
    involved = (broken.key, *others)
    if author.own(broken.key) and broken.key not in looked.changed:
        if rule in ORDER_GIVEN:
            empty = "; without this line the base's holds" if author.base(broken.key) else ""
            return Mistake(broken.key, f"{broken}{empty}"), None
        return Mistake(broken.key, broken.reason + _way_out(keys, broken, author, looked)), None
    blamed = next((key for key in involved if author.own(key)), None)
    blamed = blamed or next((looked.changed[of_file(key)] for key in involved if of_file(key) in looked.changed), None)
    key = of_file(broken.key)
    if blamed is None:
        is_missing = rule in ORDER_GIVEN and not author.base(key)
        return Mistake(broken.key, str(broken), missing=(str(key[0]),) if is_missing else ()), None
    looked.changed[key] = blamed
    value = value_that_works(keys, broken, key)
    need = need_of(keys, key, value, author.base(key))
    return Mistake(blamed, broken.why, (need,), (broken.key,)), (key, value[0]) if value else None


def _way_out(keys: Keys, broken: RuleBroken, author: Author, looked: _Looked) -> str:
    """What to do about a key that the author wrote: that, or change keys of the base as well."""
    if looked.is_trial:
        return ""
    if broken.advice:
        has_base = author.base(broken.key)
        return f": write `{line_of(of_file(broken.key), None)}`" if has_base else f", {broken.advice}"
    for key in map(of_file, broken.others):
        value = value_that_works(keys, broken, key) if author.has_base and not author.own(key) else None
        changed = with_value(keys, key, value[0]) if value else None
        if value is None or changed is None:
            continue
        owner = replace(author, own=partial(_owns, author, key))
        more = list(_broken(changed, owner, looked.faulty, is_trial=True))
        if all(mistake.needs for mistake in more):
            needs = [need_of(keys, key, value, author.base(key)), *(need for mistake in more for need in mistake.needs)]
            is_said = f"{key[-1]}: {spelled(value[0])}" in broken.reason
            return f"; {'' if is_said else 'or '}write {lines_of(needs)} too"
    return ""


def _owns(author: Author, key: KeyPath, other: KeyPath) -> bool:
    """Whether the author wrote another key, once this one is written too."""
    return other == key or author.own(other)


def _is_touched(key: KeyPath, faulty: set[KeyPath]) -> bool:
    """Whether one of the faulty keys is this one, above it or below it."""
    return any(key[: len(other)] == other[: len(key)] for other in faulty)
