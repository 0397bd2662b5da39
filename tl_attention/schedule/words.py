"""What a schedule's option does, in words for people, beside the field that checks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from tl_attention.schedule.key_words import shown


class Words:
    """Stands in the annotation of an option: what each of its values does, as `explain` says it of the one in force.

    `any_value` are the words for a value without words of its own, formatted with it: {0}, or {0.every} for one of
    its keys. Where there are none the others describe the key in the JSON Schema.
    """

    def __init__(self, values: Mapping[Any, str] | None = None, any_value: str = ""):
        self._values = values or {}
        self._any_value = any_value

    def of(self, value: Any) -> str:
        """What this value does; nothing if there is nothing to say."""
        if value in self._values:
            return self._values[value]
        text = " + ".join(map(str, value)) if isinstance(value, tuple) else value
        return "" if value is None else self._any_value.format(text)

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        if not self._any_value:
            of_each = (
                (value if isinstance(value, str) else shown(value), words) for value, words in self._values.items()
            )
            schema["description"] = "; ".join(f"{value}: {words}" for value, words in of_each)
        return schema


def words_of(field: FieldInfo, value: Any) -> str:
    """What the value of an option does; nothing if its field has no words."""
    return next((words.of(value) for words in field.metadata if isinstance(words, Words)), "")
