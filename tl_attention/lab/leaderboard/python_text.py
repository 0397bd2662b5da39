"""This module writes values and calls as Python text, in lines of WIDTH characters where they fit."""

from __future__ import annotations

from collections.abc import Iterable

WIDTH = 120


def literal(value: object) -> str:
    """Returns the repr of a value, with strings in double quotes."""
    text = repr(value)
    # Without a double quote in it, single ones stand around strings only.
    return text if '"' in text else text.replace("'", '"')


def enclosed(opening: str, parts: Iterable[str], closing: str, indent: int = 0, before: int = 0) -> str:
    """Returns parts with commas between two brackets: on a line if they fit, else on lines of their own.

    The line is indented by `indent`, has `before` characters before the bracket, and ends with a bracket or a comma
    behind that. A part that is several lines shares none of them.
    """
    parts = [*parts]
    line = f"{opening}{', '.join(parts)}{closing}"
    if indent + before + len(line) < WIDTH and "\n" not in line:
        return line
    lines = [""]
    for part in parts:
        together = f"{lines[-1]} {part},".lstrip()
        if indent + 4 + len(together) > WIDTH or "\n" in together:
            lines.append(f"{part},")
        else:
            lines[-1] = together
    pad = " " * indent
    return "\n".join([opening, *(f"{pad}    {line}" for line in lines if line), f"{pad}{closing}"])
