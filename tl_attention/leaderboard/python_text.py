"""Constants and calls as Python text, of one line or with one item a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

# Columns of a constant, left of which its name still fits into 120.
WIDTH = 100


def tuple_text(texts: Iterable[str]) -> str:
    """The text of a tuple of expressions, at least two."""
    return f"({', '.join(texts)})"


def call_text(arguments: Mapping[str, Any], indent: str = "") -> str:
    """The text of a call of dict with one argument a line, also for a dict inside it."""
    lines = ["dict("]
    for key, value in arguments.items():
        named = isinstance(value, dict) and value and all(name.isidentifier() for name in value)
        text = call_text(value, indent + "    ") if named else literal(value, indent + "    ")
        lines.append(f"{indent}    {key}={text},")
    return "\n".join([*lines, f"{indent})"])


def literal(value: Any, indent: str = "") -> str:
    """The text of a constant, its strings in double quotes; a dict or tuple that is too long gets one item a line.

    A named tuple is a call of its class, without the fields that have their default.
    """
    if isinstance(value, str):
        return json.dumps(value)
    inner = indent + "    "
    if isinstance(value, dict):
        opening, closing = "{}"
        items = [f"{literal(key)}: {literal(item, inner)}" for key, item in value.items()]
    elif hasattr(value, "_fields"):
        opening, closing = f"{type(value).__name__}(", ")"
        items = _field_texts(value, inner)
    elif isinstance(value, tuple):
        opening, closing = "()"
        items = [literal(item, inner) for item in value]
    else:
        return repr(value)
    comma = "," if opening == "(" and len(items) == 1 else ""
    line = f"{opening}{', '.join(items)}{comma}{closing}"
    if len(indent + line) <= WIDTH and "\n" not in line:
        return line
    return "\n".join([opening, *(f"{inner}{item}," for item in items), f"{indent}{closing}"])


def _field_texts(value: Any, indent: str) -> list[str]:
    """The fields of a named tuple: those without a default by their place, others by name, where they differ."""
    defaults = value._field_defaults
    items = [literal(item, indent) for name, item in value._asdict().items() if name not in defaults]
    changed = [name for name, default in defaults.items() if getattr(value, name) != default]
    return [*items, *(f"{name}={literal(getattr(value, name), indent)}" for name in changed)]
