"""Makes the tables of keys and of statements, from the JSON Schema and the loop, for the pages about schedules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pages.made import SCHEDULES, Make, filling
from tl_attention.kernels.registry import LOWERINGS, OF_LOOPS
from tl_attention.lab.show.table import markdown
from tl_attention.schedule.dialect import dialects
from tl_attention.schedule.loop.attention import SOURCE

SCHEMA = json.loads((SCHEDULES / "schedule.schema.json").read_text())


def keys() -> str:
    """Makes the table of keys: what each says, its default, and the lowerings that take it."""
    lines = []
    for path, key in _keys(SCHEMA["properties"]):
        default = key.get("default")
        words = (
            default
            if isinstance(default, str)
            else json.dumps(default)
            if isinstance(default, bool | int | float)
            else ""
        )
        takes = [name for name, lowering in LOWERINGS.items() if lowering.dialect.takes(path)] or [
            f"loop {loop}" for loop in OF_LOOPS if any(dialect.takes(path) for dialect in dialects(loop))
        ]
        lines.append((f"`{path}`", key["description"], words, ", ".join(takes)))
    return markdown(("key", "what it says", "default", "only for"), lines)


def _keys(properties: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each key by its path: `split`, then `split.exp`."""
    for name, key in properties.items():
        yield f"{above}{name}", key
        for one in key.get("anyOf", ()):
            if "$ref" in one:
                yield from _keys(SCHEMA["$defs"][one["$ref"].rpartition("/")[2]]["properties"], f"{above}{name}.")


def statements() -> str:
    """Makes the table of the loop's statements."""
    lines = [(str(number), f"`{one.name}`", f"`{one.formula}`") for number, one in enumerate(SOURCE.statements)]
    return markdown(("number", "statement", "what it computes"), lines)


MADE: dict[str, Make] = {
    **filling("docs/schedules.md", {"keys": keys}),
    **filling("docs/reading-a-schedule.md", {"statements": statements}),
}
