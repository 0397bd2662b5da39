"""This module puts keys and values into words: paths with dots, values as files spell them, names that were meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

KeyPath = tuple[str | int, ...]
FOUND_CHARACTERS = 40
LINE_CHARACTERS = 80
# Text that needs no quotes.
PLAIN = re.compile(r"[\w.+-]+")


def dotted(key: KeyPath) -> str:
    """Returns a key's path with dots and brackets, and a colon and a space behind it; "" for the empty path.

    ("order", 2) gives `order[2]: `.
    """
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return f"{text.removeprefix('.')}: " if text else ""


def shown(value: Any) -> str:
    """Returns at most 40 characters that show a value in an error message; of a dict or None only its kind."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping of keys"
    if isinstance(value, (list, tuple)):
        return short(f"the list [{', '.join(shown(item) for item in value[:FOUND_CHARACTERS])}]")
    return short(repr(value) if isinstance(value, (str, float)) else str(value))


def spelled(value: Any) -> str:
    """Returns a value as YAML spells it on one line, in full, dicts and lists included."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {spelled(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(spelled, value))}]"
    if isinstance(value, bool) or (isinstance(value, str) and not PLAIN.fullmatch(value)):
        return shown(value)
    return str(value)


def line_of(key: KeyPath, value: Any) -> str:
    """Returns the line of YAML that gives the key at this path the value, or `...` for one over 80 characters.

    ("kernel", "output") and "tma" give `kernel: {output: tma}`.
    """
    if len(spelled(value)) > LINE_CHARACTERS:
        value = "..."
    for part in reversed(key[1:]):
        value = {part: value}
    return f"{key[0]}: {spelled(value)}"


def joined_by_and(texts: Sequence[str]) -> str:
    """Returns one text with the texts joined by commas, the last by `and`, such as `a, b and c`."""
    *others, last = texts
    return f"{', '.join(others)} and {last}" if others else last


def short(text: str) -> str:
    """Returns the text, or its first 40 characters and dots where it is longer."""
    return text if len(text) <= FOUND_CHARACTERS else f"{text[:FOUND_CHARACTERS]}..."


def meant(text: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns `: did you mean run?` of the name that is spelled most like a text; "" where none is close."""
    words = suggestion(text, [*known], cutoff)
    return f": {words.rstrip()}" if words else ""


def suggestion(text: str, choices: Sequence[str], cutoff: float = 0.7) -> str:
    """Returns `did you mean mma1? ` with the choice that is spelled most like the text; "" where none is close."""
    by_lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(text.lower(), by_lower, n=1, cutoff=cutoff)
    return f"did you mean {by_lower[close[0]]}? " if close else ""
