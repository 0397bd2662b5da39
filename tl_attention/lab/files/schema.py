"""This module makes the JSON Schema of schedule files, by which editors complete and check them."""

from __future__ import annotations

import inspect
import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from tl_attention.schedule.files.schedule_file import ScheduleKeys
from tl_attention.schedule.keys import Keys

Schema = dict[str, Any]
NULL = {"type": "null"}


def json_schema() -> str:
    """Returns the text of the JSON Schema of a schedule file. It has no rules between keys.

    The text is committed beside the schedules. A file may give null for a key that has a default. A file with a
    base has some of the keys; what a whole file needs besides stands under `else`.
    """
    schema = ScheduleKeys.model_json_schema(schema_generator=_UntitledKeys)
    del schema["properties"]["base"]["default"]
    # What the keys say together, below what a file is.
    schema["description"] += "\n\n" + inspect.cleandoc(Keys.__doc__ or "").partition("\n\n")[2]
    whole = _loosened(schema, schema["$defs"])
    dialect = {"$schema": GenerateJsonSchema.schema_dialect}
    return json.dumps(dialect | schema | {"if": {"required": ["base"]}, "else": whole}, indent=2) + "\n"


def _loosened(model: Schema, models: dict[str, Schema]) -> Schema:
    """Makes a model's JSON Schema's keys optional, in place, and returns a schema of what a whole file must give."""
    must: Schema = {"required": required} if (required := model.pop("required", None)) else {}
    whole: Schema = {}
    for key, entry in model["properties"].items():
        choices = entry.get("anyOf", [entry])
        inner = next((choice["$ref"].rpartition("/")[2] for choice in choices if "$ref" in choice), None)
        # Those of nested models are loosened too. Then they allow what a file with a base may give.
        of_key = _loosened(models[inner], models) if inner else {}
        # Null is allowed where there is a default.
        if "default" in entry and NULL not in choices:
            said = {word: entry.pop(word) for word in ("default", "description")}
            model["properties"][key] = {"anyOf": [entry, NULL], **said}
        if of_key:
            whole[key] = of_key
    return must | ({"properties": whole} if whole else {})


class _UntitledKeys(GenerateJsonSchema):
    """This generator makes a JSON Schema whose keys have no titles, which would hide descriptions in an editor."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
