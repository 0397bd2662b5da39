"""The mistakes of a schedule file with its bases, each at the line that its author wrote."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tl_attention.errors import InputError, printable
from tl_attention.files.yaml_text import YamlFile
from tl_attention.schedule.key_words import KeyPath, dotted, listed, spelled
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.mends import lines_of
from tl_attention.schedule.mistakes import Author, Mistake, mistakes

# The base that gives what a schedule of the lowering needs.
BASES = {"pipelined": "seed", "mma_sync": "mma_sync", "inferred": "inferred"}
MOST_TOLD = 20
MOST_SHOWN = 40


def all_mistakes(sources: Sequence[YamlFile], fields: dict[str, Any], model: type[Keys]) -> InputError:
    """The error with a line for each mistake of the outermost file, whose `fields` are merged with its bases'."""
    file, bases = sources[0], sources[1:]
    has_base = bool(bases)
    author = Author(
        own=lambda key: not has_base or file.gives(key),
        base=lambda key: any(base.gives(key) for base in bases),
        has_base=has_base,
    )
    told = [(fault.line, f"{file.path}:{fault.line}: {fault.message}") for fault in file.faults]
    found = mistakes(fields, model, author, {fault.key for fault in file.faults})
    for together in _together(found):
        key = together[0].key
        line = file.line(key) if file.gives(key) or not has_base else file.line(("base",))
        told.append((line, _words(sources, together, fields)))
    lines = [printable(text) for _, text in sorted(told, key=lambda entry: entry[0])]
    if len(lines) > MOST_TOLD:
        lines[MOST_TOLD:] = [f"{file.path}: {len(lines) - MOST_TOLD} more mistakes"]
    return InputError(*lines)


def blamed(sources: Sequence[YamlFile], key: KeyPath, message: str, kind: str = "") -> str:
    """`file:line: kind: key: message`. The outermost file that has all of the key, or else the most of it, has the line."""
    file = sources[0]
    if not key:
        return f"{file.path}: {kind}{message}"
    index = max(range(len(sources)), key=lambda i: sources[i].has(key))
    name = "" if message.startswith(dotted(key)) else dotted(key)
    if index == 0 or file.gives(key):
        return f"{file.path}:{file.line(key)}: {kind}{name}{message}"
    base = sources[index - 1].fields["base"]
    where = f"from base {base}, line {sources[index].line(key)}"
    return f"{file.path}:{file.line(('base',))}: {kind}{name}{message} ({where})"


def _together(found: list[Mistake]) -> list[list[Mistake]]:
    """The mistakes, those that one key of the author's makes in one, and all missing keys in one."""
    groups: dict[Any, list[Mistake]] = {}
    # Beside a value that cannot be, nothing else is needed.
    wrong = {mistake.key for mistake in found if not mistake.needs}
    for number, mistake in enumerate(found):
        if mistake.needs and mistake.key in wrong:
            continue
        one: Any = ("needs", mistake.key) if mistake.needs else "missing" if mistake.missing else number
        groups.setdefault(one, []).append(mistake)
    return list(groups.values())


def _words(sources: Sequence[YamlFile], together: list[Mistake], fields: dict[str, Any]) -> str:
    first = together[0]
    if first.missing:
        return _missing(sources, together, fields)
    if not first.needs:
        return blamed(sources, first.key, first.message)
    file, key = sources[0], first.key
    needs = lines_of(need for mistake in together for need in mistake.needs)
    whys = list(dict.fromkeys(mistake.message for mistake in together))
    value = spelled(_at(file.fields, key))
    of_lowering = f"; or start from `base: {BASES.get(value, 'best')}`" if key == ("lowering",) else ""
    return (
        f"{file.path}:{file.line(key)}: {dotted(key)}{value if len(value) < MOST_SHOWN else 'this value'} needs "
        f"{needs} too: {'; '.join(whys)}{_where(sources, together)}{of_lowering}"
    )


def _where(sources: Sequence[YamlFile], together: list[Mistake]) -> str:
    """Which lines of a base have the keys that need to change."""
    abouts = [key for mistake in together for key in mistake.about]
    for above, source in pairwise(sources):
        lines = sorted({source.line(key) for key in abouts if source.gives(key)})
        if lines:
            numbers = f"line{'s' if len(lines) > 1 else ''} {listed(list(map(str, lines)))}"
            return f" (base {above.fields['base']} has other values on {numbers})"
    return ""


def _missing(sources: Sequence[YamlFile], together: list[Mistake], fields: dict[str, Any]) -> str:
    file = sources[0]
    keys = list(dict.fromkeys(key for mistake in together for key in mistake.missing))
    base = BASES.get(str(fields.get("lowering")), "best")
    ways = "give" if len(sources) > 1 else f"add `base: {base}`, or give"
    message = together[0].message or f"{keys[0]}: the key is missing"
    what = f"{message.removeprefix(f'{keys[0]}: ')}: {ways} it" if len(keys) == 1 else ""
    text = f"{keys[0]}: {what}" if what else f"{listed(keys)} are missing: {ways} them"
    return f"{file.path}:{file.line(())}: {text}"


def _at(fields: Any, key: KeyPath) -> Any:
    for part in key:
        fields = fields.get(part) if isinstance(fields, dict) else None
    return fields
