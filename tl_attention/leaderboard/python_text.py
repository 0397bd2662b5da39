"""Constants as Python text, of one line or with one item a line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

# Columns of a constant, left of which its name still fits into 120.
WIDTH = 100


def tuple_text(texts: Iterable[str]) -> str:
    """The text of a tuple of expressions, at least two."""
    return f"({', '.join(texts)})"


def literal(value: Any, indent: str = "") -> str:
    """The text of a constant, its strings in double quotes; a dict or tuple that is too long gets one item a line."""
    if isinstance(value, str):
        return json.dumps(value)
    inner = indent + "    "
    if isinstance(value, dict):
        items, brackets = [f"{literal(key)}: {literal(item, inner)}" for key, item in value.items()], "{}"
    elif isinstance(value, tuple):
        items, brackets = [literal(item, inner) for item in value], "()"
    else:
        return repr(value)
    comma = "," if brackets == "()" and len(items) == 1 else ""
    line = f"{brackets[0]}{', '.join(items)}{comma}{brackets[1]}"
    if len(indent + line) <= WIDTH and "\n" not in line:
        return line
    return "\n".join([brackets[0], *(f"{inner}{item}," for item in items), f"{indent}{brackets[1]}"])
