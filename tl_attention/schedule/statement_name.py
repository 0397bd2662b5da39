"""How a schedule names a statement: by name, by number in source order, or a chunk of a split one as `exp.0`."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from tl_attention.loop.attention import IN_CHUNKS, NAMES, NUMBER
from tl_attention.schedule.key_words import shown, suggestion

MOST_CHUNKS = 16
CHUNK = re.compile(rf"({'|'.join(IN_CHUNKS)})\.([0-9]|1[0-5])")
EVERY_NAME = (*NAMES, *(f"{name}.{chunk}" for name in IN_CHUNKS for chunk in range(MOST_CHUNKS)))

# What a statement was called once.
RENAMED = {"logsum": "sum_merge"}


def _to_name(statement: Any) -> Any:
    """A statement's number or name, to its name."""
    if isinstance(statement, int) and not isinstance(statement, bool) and 0 <= statement < len(NAMES):
        return NAMES[statement]
    if isinstance(statement, str) and (statement in NUMBER or CHUNK.fullmatch(statement)):
        return statement
    guess = suggestion(RENAMED.get(statement, statement), EVERY_NAME) if isinstance(statement, str) else ""
    raise PydanticCustomError(
        "statement",
        "{found} is no statement, {expected} a number 0 to {last}, one of {names}, or a chunk of {split}: exp.0 to "
        "exp.{most}",
        {
            "found": shown(statement),
            "expected": f"{guess}Expected" if guess else "expected",
            "last": len(NAMES) - 1,
            "names": ", ".join(NAMES),
            "split": " or ".join(IN_CHUNKS),
            "most": MOST_CHUNKS - 1,
        },
    )


StatementName = Annotated[
    str,
    BeforeValidator(_to_name),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(NAMES)},
                {"type": "integer", "minimum": 0, "maximum": len(NAMES) - 1},
                {"type": "string", "pattern": f"^{CHUNK.pattern}$"},
            ]
        }
    ),
]
