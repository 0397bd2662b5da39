"""This module tells every mistake of a schedule file, each at the line that its author wrote.

A rule between keys may be broken at a key that only a base gives. It is told at a key of the rule that the author
wrote, and says on which line of the base the other key is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from tl_attention.errors import InputError, printable
from tl_attention.schedule.dialect import Check
from tl_attention.schedule.files.yaml_text import YamlFile
from tl_attention.schedule.key_errors import RuleBroken, key_and_message
from tl_attention.schedule.key_words import KeyPath, joined_by_and
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.rules import KEYS_OF_ORDER, ORDER_GIVEN, rules_for

# The base that gives what a schedule of the lowering needs.
BASES = {"pipelined": "seed", "mma_sync": "mma_sync", "inferred": "inferred"}
SIZES = ("block_M", "block_N", "threads", "num_stages")
MOST_TOLD = 20
# A line of the outermost file, and what is wrong there.
Mistake = tuple[int, str]


def all_mistakes(files: Sequence[YamlFile], fields: dict[str, Any], model: type[Keys]) -> InputError:
    """Returns an InputError with a line for each mistake in the schedule file files[0], at most 20 of them.

    The other files are its bases, and `fields` are the merged keys of all. A last line counts further mistakes.
    """
    file = files[0]
    mistakes = [(fault.line, f"{file.path}:{fault.line}: {fault.message}") for fault in file.faults]
    mistakes += _mistakes(files, fields, model, {fault.key for fault in file.faults})
    lines = [printable(text) for _, text in sorted(mistakes, key=lambda entry: entry[0])]
    if len(lines) > MOST_TOLD:
        lines[MOST_TOLD:] = [f"{file.path}: {len(lines) - MOST_TOLD} more mistakes"]
    return InputError(*lines)


def blamed(files: Sequence[YamlFile], key: KeyPath, message: str, kind: str = "", at: KeyPath = ("base",)) -> Mistake:
    """Returns (line number in files[0] to blame for a key, the message with file, line, kind and key in front).

    The message is `file:line: kind: key: message`.

    The outermost file that has all of the key, or else the most of it, is to blame. If that is a base, and the
    outermost file does not decide the key itself, the line is that of the outermost file's key `at`, and the message
    names the line in the base. An empty key has no line.
    """
    file = files[0]
    if not key:
        return 0, f"{file.path}: {kind}{message}"
    index = max(range(len(files)), key=lambda i: files[i].depth_of(key))
    if index == 0 or file.gives(key):
        at = key if file.depth_of(key) else at
        return file.line(at), file.placed(key, message, kind, at)
    where = f"from base {files[index - 1].fields['base']}, line {files[index].line(key)}"
    return file.line(at), f"{file.placed(key, message, kind, at)} ({where})"


def _mistakes(
    files: Sequence[YamlFile], fields: Mapping[str, Any], model: type[Keys], faulty: set[KeyPath]
) -> Iterator[Mistake]:
    """Yields (line, message) of each mistake that the model finds in the fields, but of none at the `faulty` keys."""
    try:
        model(**fields)
        return
    except ValidationError as error:
        details = error.errors()
    # Rules are asked where each key is right by itself.
    is_rule = isinstance(details[0].get("ctx", {}).get("error"), RuleBroken)
    details = [] if is_rule else details
    places = {detail["loc"] for detail in details}
    # A list without the entries that are wrong is too short as well.
    above = {place[:depth] for place in places for depth in range(len(place))}
    details = [detail for detail in details if detail["loc"] not in above]
    worded = [key_and_message(detail, model) for detail in details if not _is_touched(detail["loc"], faulty)]
    # A mistyped key is also a missing one: the name that the file has is the one to tell.
    guessed = {message.partition("did you mean ")[2].partition("?")[0] for _, message in worded}
    needed = [*SIZES, *(KEYS_OF_ORDER if fields.get("lowering") != "inferred" else ())]
    has_base = len(files) > 1
    absent = {(key,) for key in needed if key not in fields and not (has_base and files[0].gives((key,)))}
    yield from (blamed(files, key, message) for key, message in worded if key not in absent)
    missing = [key for key in needed if (key,) in absent - faulty and key not in guessed and "base" not in guessed]
    if missing:
        base = BASES.get(str(fields.get("lowering")), "best")
        ways = "give" if has_base else f"add `base: {base}`, or give"
        what = f"the key is missing: {ways} it" if len(missing) == 1 else ""
        message = f"{missing[0]}: {what}" if what else f"{joined_by_and(missing)} are missing: {ways} them"
        yield files[0].line(()), files[0].placed((), message)
    if is_rule and not absent and not faulty:
        yield from _broken_rules(
            files, Keys(**{key: value for key, value in fields.items() if key in Keys.model_fields})
        )


def _broken_rules(files: Sequence[YamlFile], keys: Keys) -> Iterator[Mistake]:
    """Yields (line, message) of each rule that the keys break, unless an earlier broken rule blames the same key."""
    blamed_keys: set[KeyPath] = set()
    for rule in rules_for(keys):
        try:
            rule(keys)
        except RuleBroken as broken:
            if not any(_is_touched(key, blamed_keys) for key in (broken.key, *broken.others)):
                blamed_keys.add(_of_file(broken.key))
                yield _of_rule(files, rule, broken)


def _of_rule(files: Sequence[YamlFile], rule: Check, broken: RuleBroken) -> Mistake:
    """Returns (line, message) of a broken rule, at its key or, if a base gives that, at another key of the rule."""
    file, *bases = files
    message = str(broken)
    if any(base.gives(broken.key) for base in bases):
        if rule in ORDER_GIVEN:
            message += "; without this line the base's holds"
        elif broken.advice:
            message += ": null removes what a base gives"
    at = next((key for key in (*broken.others, ("lowering",)) if file.gives(key)), ("base",))
    return blamed(files, broken.key, message, at=at)


def _of_file(key: KeyPath) -> KeyPath:
    """Returns a key's path up to the first index of a list, as a file gives a list with all of its entries."""
    return key[: next((depth for depth, part in enumerate(key) if isinstance(part, int)), len(key))]


def _is_touched(key: KeyPath, faulty: set[KeyPath]) -> bool:
    """Says whether one of the `faulty` keys is this key, contains it, or is contained in it."""
    return any(key[: len(other)] == other[: len(key)] for other in faulty)
