"""This module tells every mistake of a schedule file, each at the line that its author wrote.

It also tells what to change where a rule is broken. A rule between keys is told at a key that the author wrote. Keys
that only a base gives may have to change too: this module looks for values for them, and checks the other rules with
these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from pydantic import ValidationError

from tl_attention.errors import InputError, printable
from tl_attention.files.mends import Need, broken_by, lines_of, mended, need_of, of_file
from tl_attention.files.yaml_text import YamlFile
from tl_attention.schedule.dialect import Check
from tl_attention.schedule.key_errors import RuleBroken, key_and_message
from tl_attention.schedule.key_words import KeyPath, dotted, line_of, listed, spelled
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.options import OPTION_KEYS
from tl_attention.schedule.rules import KEYS_OF_ORDER, OF_EVERY_LOWERING, ORDER_GIVEN, rules_of

# The base that gives what a schedule of the lowering needs.
BASES = {"pipelined": "seed", "mma_sync": "mma_sync", "inferred": "inferred"}
# These stand for keys that are missing or wrong, so that the rules about the others can be asked.
STAND_INS = {"block_M": 128, "block_N": 128, "threads": 256, "num_stages": 2}
MOST_RULES = 40
MOST_TOLD = 20
MOST_SHOWN = 40


@dataclass(frozen=True)
class _Mistake:
    """A _Mistake is what is wrong with a file, and the key to blame.

    `needs` have to stand beside the key, and `about` are the keys that the needs give. `missing` are keys that have no
    line.
    """

    key: KeyPath
    message: str
    needs: tuple[Need, ...] = ()
    about: tuple[KeyPath, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Sources:
    """_Sources are a file and its bases, the outermost first.

    `more` are keys that count as if the author of the file had written them.
    """

    files: Sequence[YamlFile]
    more: tuple[KeyPath, ...] = ()

    @property
    def has_base(self) -> bool:
        return len(self.files) > 1

    def own(self, key: KeyPath) -> bool:
        """Says whether the author of the file wrote the key."""
        return not self.has_base or key in self.more or self.files[0].gives(key)

    def base(self, key: KeyPath) -> bool:
        """Says whether a base gives the key."""
        return any(base.gives(key) for base in self.files[1:])


def all_mistakes(files: Sequence[YamlFile], fields: dict[str, Any], model: type[Keys]) -> InputError:
    """Returns the error with a line for each mistake of the outermost file; `fields` are merged with its bases'."""
    file, sources = files[0], _Sources(files)
    told = [(fault.line, f"{file.path}:{fault.line}: {fault.message}") for fault in file.faults]
    for together in _together(_mistakes(fields, model, sources, {fault.key for fault in file.faults})):
        key = together[0].key
        told.append((file.line(key if sources.own(key) else ("base",)), _words(files, together, fields)))
    lines = [printable(text) for _, text in sorted(told, key=lambda entry: entry[0])]
    if len(lines) > MOST_TOLD:
        lines[MOST_TOLD:] = [f"{file.path}: {len(lines) - MOST_TOLD} more mistakes"]
    return InputError(*lines)


def blamed(files: Sequence[YamlFile], key: KeyPath, message: str, kind: str = "") -> str:
    """Returns the message as `file:line: kind: key: message`.

    The outermost file that has all of the key, or else the most of it, is to blame. If that is a base, and the
    outermost file does not decide the key itself, the line is that of the outermost file's `base` key, and the message
    names the line in the base. An empty key has no line.
    """
    file = files[0]
    if not key:
        return f"{file.path}: {kind}{message}"
    index = max(range(len(files)), key=lambda i: files[i].has(key))
    if index == 0 or file.gives(key):
        return file.placed(key, message, kind)
    where = f"from base {files[index - 1].fields['base']}, line {files[index].line(key)}"
    return f"{file.placed(key, message, kind, at=('base',))} ({where})"


# --- what is wrong -----------------------------------------------------------------------------------------------------


def _mistakes(
    fields: Mapping[str, Any], model: type[Keys], sources: _Sources, faulty: set[KeyPath]
) -> Iterator[_Mistake]:
    """Yields every mistake in the fields of a model; of `faulty` keys nothing is told."""
    try:
        model(**fields)
        return
    except ValidationError as error:
        # A rule that is broken is found once more below, with the others.
        details = [found for found in error.errors() if not isinstance(found.get("ctx", {}).get("error"), RuleBroken)]
    places = {detail["loc"] for detail in details}
    # A list without the entries that are wrong is too short as well.
    above = {place[:depth] for place in places for depth in range(len(place))}
    details = [detail for detail in details if detail["loc"] not in above]
    told = [key_and_message(detail, model) for detail in details if not _is_touched(detail["loc"], faulty)]
    # A mistyped key is also a missing one: the name that the file has is the one to tell.
    guessed = {message.partition("did you mean ")[2].partition("?")[0] for _, message in told}
    needed = [*STAND_INS, *(KEYS_OF_ORDER if fields.get("lowering") != "inferred" else ())]
    absent = {(key,) for key in needed if key not in fields and (not sources.has_base or key in STAND_INS)}
    yield from (_Mistake(key, message) for key, message in told if key not in absent)
    missing = tuple(key for key in needed if (key,) in absent - faulty and key not in guessed and "base" not in guessed)
    if missing:
        yield _Mistake((), "", missing=missing)
    # The lowering may be that of a base which is missing: then the rules of this one say nothing.
    if absent and not sources.has_base and "lowering" not in fields:
        return
    faulty = faulty | {detail["loc"] for detail in details} | absent
    if keys := _keys_without(fields, faulty):
        yield from _Broken(keys, sources, faulty).mistakes()


def _keys_without(fields: Mapping[str, Any], faulty: set[KeyPath]) -> Keys | None:
    """Returns the keys with defaults or stand-ins for those that are faulty; None where no keys can be made.

    None are made where the lowering is faulty, as the rules are those of the lowering.
    """
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
class _Broken:
    """_Broken finds the rules that keys break, one after another.

    In a trial it looks for no way out of them. It asks no rules about `faulty` keys. `changed` maps each key that was
    changed to the author's key that asked for the change.
    """

    keys: Keys
    sources: _Sources
    faulty: set[KeyPath]
    is_trial: bool = False
    changed: dict[KeyPath, KeyPath] = field(default_factory=dict)

    def mistakes(self) -> Iterator[_Mistake]:
        told: set[tuple[KeyPath, str]] = set()
        for _ in range(MOST_RULES):
            rule, broken = next(self._asked(), (None, None))
            if rule is None or broken is None:
                return
            mistake, changed = self._told(rule, broken)
            yield mistake
            if changed and (broken.key, str(broken)) not in told:
                told.add((broken.key, str(broken)))
                self.keys = changed
            else:
                self.faulty = self.faulty | {of_file(broken.key)}

    def _asked(self) -> Iterator[tuple[Check, RuleBroken]]:
        """Yields the rules that are broken, with what they say, except rules about faulty keys."""
        for rule in rules_of(self.keys.dialect):
            broken = broken_by(rule, self.keys)
            if broken and not any(_is_touched(key, self.faulty) for key in (broken.key, *broken.others)):
                yield rule, broken

    def _told(self, rule: Check, broken: RuleBroken) -> tuple[_Mistake, Keys | None]:
        """Returns the mistake of a broken rule, and the keys with a value of the base's key that meets the rule.

        The keys are None where no key of a base is changed.
        """
        own, base = self.sources.own, self.sources.base
        if own(broken.key) and broken.key not in self.changed:
            if rule in ORDER_GIVEN:
                empty = "; without this line the base's holds" if base(broken.key) else ""
                return _Mistake(broken.key, f"{broken}{empty}"), None
            return _Mistake(broken.key, broken.reason + self._way_out(broken)), None
        involved = (broken.key, *broken.others, *(() if rule in OF_EVERY_LOWERING else (("lowering",),)))
        written = [key for key in involved if own(key)]
        written += [self.changed[of_file(key)] for key in involved if of_file(key) in self.changed]
        key = of_file(broken.key)
        if not written:
            is_missing = rule in ORDER_GIVEN and not base(key)
            return _Mistake(broken.key, str(broken), missing=(str(key[0]),) if is_missing else ()), None
        self.changed[key] = written[0]
        mend = mended(self.keys, broken, key)
        need = need_of(self.keys, key, mend, base(key))
        return _Mistake(written[0], broken.why, (need,), (broken.key,)), mend.keys if mend else None

    def _way_out(self, broken: RuleBroken) -> str:
        """Returns what to do about a key that the author wrote: change that key, or keys of the base as well."""
        keys, sources = self.keys, self.sources
        if self.is_trial:
            return ""
        if broken.advice:
            has_base = sources.base(broken.key)
            return f": write `{line_of(of_file(broken.key), None)}`" if has_base else f", {broken.advice}"
        for key in map(of_file, broken.others):
            mend = mended(keys, broken, key) if sources.has_base and not sources.own(key) else None
            if mend is None:
                continue
            written = replace(sources, more=(*sources.more, key))
            more = list(_Broken(mend.keys, written, self.faulty, is_trial=True).mistakes())
            if all(mistake.needs for mistake in more):
                needs = [need_of(keys, key, mend, sources.base(key)), *(need for one in more for need in one.needs)]
                is_said = f"{key[-1]}: {spelled(mend.value)}" in broken.reason
                return f"; {'' if is_said else 'or '}write {lines_of(needs)} too"
        return ""


def _is_touched(key: KeyPath, faulty: set[KeyPath]) -> bool:
    """Says whether one of the faulty keys is this key, above it or below it."""
    return any(key[: len(other)] == other[: len(key)] for other in faulty)


# --- in words ----------------------------------------------------------------------------------------------------------


def _together(found: Iterator[_Mistake]) -> list[list[_Mistake]]:
    """Groups the mistakes that are told as one: those with needs of one key of the author's, and all missing keys."""
    mistakes = list(found)
    groups: dict[Any, list[_Mistake]] = {}
    # Beside a value that cannot be, nothing else is needed.
    wrong = {mistake.key for mistake in mistakes if not mistake.needs}
    for number, mistake in enumerate(mistakes):
        if mistake.needs and mistake.key in wrong:
            continue
        one: Any = ("needs", mistake.key) if mistake.needs else "missing" if mistake.missing else number
        groups.setdefault(one, []).append(mistake)
    return list(groups.values())


def _words(files: Sequence[YamlFile], together: list[_Mistake], fields: dict[str, Any]) -> str:
    first = together[0]
    if first.missing:
        return _missing(files, together, fields)
    if not first.needs:
        return blamed(files, first.key, first.message)
    file, key = files[0], first.key
    needs = lines_of(need for mistake in together for need in mistake.needs)
    whys = list(dict.fromkeys(mistake.message for mistake in together))
    value = spelled(_at(file.fields, key))
    of_lowering = f"; or start from `base: {BASES.get(value, 'best')}`" if key == ("lowering",) else ""
    return (
        f"{file.path}:{file.line(key)}: {dotted(key)}{value if len(value) < MOST_SHOWN else 'this value'} needs "
        f"{needs} too: {'; '.join(whys)}{_where(files, together)}{of_lowering}"
    )


def _where(files: Sequence[YamlFile], together: list[_Mistake]) -> str:
    """Returns which lines of a base have the keys that need to change, in words."""
    abouts = [key for mistake in together for key in mistake.about]
    for above, source in pairwise(files):
        lines = sorted({source.line(key) for key in abouts if source.gives(key)})
        if lines:
            numbers = f"line{'s' if len(lines) > 1 else ''} {listed(list(map(str, lines)))}"
            return f" (base {above.fields['base']} has other values on {numbers})"
    return ""


def _missing(files: Sequence[YamlFile], together: list[_Mistake], fields: dict[str, Any]) -> str:
    keys = list(dict.fromkeys(key for mistake in together for key in mistake.missing))
    base = BASES.get(str(fields.get("lowering")), "best")
    ways = "give" if len(files) > 1 else f"add `base: {base}`, or give"
    message = together[0].message or f"{keys[0]}: the key is missing"
    what = f"{message.removeprefix(f'{keys[0]}: ')}: {ways} it" if len(keys) == 1 else ""
    return files[0].placed((), f"{keys[0]}: {what}" if what else f"{listed(keys)} are missing: {ways} them")


def _at(fields: Any, key: KeyPath) -> Any:
    for part in key:
        fields = fields.get(part) if isinstance(fields, dict) else None
    return fields
