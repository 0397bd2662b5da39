"""The key `lowering`: the name of one that is registered."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticKnownError

from tl_attention.schedule.dialect import dialects


def _known(name: Any) -> Any:
    names = [dialect.name for dialect in dialects()]
    if name not in names:
        *others, last = map(repr, names)
        expected = f"{', '.join(others)} or {last}" if others else last
        raise PydanticKnownError("literal_error", {"expected": expected})
    return name


class _SchemaOfTheRegistry:
    """Made when the JSON Schema is: a lowering may be registered after this module is imported."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        words = "; ".join(f"{dialect.name}: {dialect.words}" for dialect in dialects())
        return {"description": words, "enum": [dialect.name for dialect in dialects()], "type": "string"}


LoweringName = Annotated[str, BeforeValidator(_known), _SchemaOfTheRegistry()]
