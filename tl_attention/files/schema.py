"""The JSON Schema of a schedule file, by which editors complete and check it."""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from tl_attention.files.schedule_file import FILE_KEYS, ScheduleKeys
from tl_attention.loop.attention import NAMES, SPLITTABLE
from tl_attention.schedule.options import OPTION_KEYS
from tl_attention.schedule.rules import KEYS_OF_ORDER
from tl_attention.schedule.statement_name import MOST_CHUNKS

NULL = {"type": "null"}


def json_schema() -> str:
    """The JSON Schema of a schedule file, as committed beside the schedules.

    A file with a base has some of the keys, and may give null for one that has a default; what a whole file needs
    besides stands under `else`.
    """
    schema = ScheduleKeys.model_json_schema(schema_generator=_UntitledKeys)
    keys = schema["properties"]
    del keys["base"]["default"]
    keys["group"]["items"] |= {"minItems": 1, "uniqueItems": True}
    keys["head_dims"]["uniqueItems"] = True
    for key in KEYS_OF_ORDER:
        keys[key]["maxItems"] = len(NAMES) + len(SPLITTABLE) * (MOST_CHUNKS - 1)
    whole = _loosened(schema, schema["$defs"]) | {"allOf": _rules_between_keys()}
    dialect = {"$schema": GenerateJsonSchema.schema_dialect}
    return json.dumps(dialect | schema | {"if": {"required": ["base"]}, "else": whole}, indent=2) + "\n"


def _loosened(model: dict[str, Any], models: dict[str, Any]) -> dict[str, Any]:
    """Make a model's schema, and those below it, what a file with a base may give. Returns what a whole one must."""
    must: dict[str, Any] = {"required": required} if (required := model.pop("required", None)) else {}
    rules: dict[str, Any] = {}
    for key, entry in model["properties"].items():
        choices = entry.get("anyOf", [entry])
        inner = next((choice["$ref"].rpartition("/")[2] for choice in choices if "$ref" in choice), None)
        rule = _loosened(models[inner], models) if inner else {}
        if "default" in entry and NULL not in choices and key not in FILE_KEYS:
            said = {word: entry.pop(word) for word in ("default", "description")}
            model["properties"][key] = {"anyOf": [entry, NULL], **said}
            rule["not"] = NULL
        if rule:
            rules[key] = rule
    return must | ({"properties": rules} if rules else {})


def _rules_between_keys() -> list[dict[str, Any]]:
    """Those of schedule_rules.py that JSON Schema can say."""
    whole = {"maxItems": len(NAMES), "items": {"maximum": len(NAMES) - 1}}
    return [
        _if(
            {"lowering": {"const": "inferred"}},
            {"properties": {key: {"maxItems": 0} for key in KEYS_OF_ORDER}},
            {"properties": {key: {"minItems": 1} for key in KEYS_OF_ORDER}, "required": list(KEYS_OF_ORDER)},
        ),
        _if(
            {"lowering": {"const": "warp_specialized"}},
            {
                "properties": {"kv_order": {"const": "descending"}, "block_M": {"maximum": 192}},
                "required": ["kv_order"],
            },
            {"properties": {key: {"maxProperties": 0} for key in OPTION_KEYS}},
        ),
        _if({"split": {}}, {}, {"properties": {"order": whole, "stage": whole}}),
        *(
            _if({"block_M": {"const": rows}}, {"properties": {"threads": {"const": 2 * rows}}})
            for rows in (64, 128, 192, 256)
        ),
        _if(_kernel("ping_pong", True), {"properties": {"block_M": {"const": 128}}}),
        _if(_kernel("output", "tma"), {"properties": {"block_M": {"maximum": 128}}}),
        _if(
            _kernel("tile_scheduler", "dynamic"),
            {"properties": {"kernel": {"properties": {"cluster": {"const": 1}}, "required": ["cluster"]}}},
        ),
    ]


def _if(given: dict[str, Any], then: dict[str, Any], otherwise: dict[str, Any] | None = None) -> dict[str, Any]:
    """A rule for files that have these keys with these values, and for those that have not."""
    rule = {"if": {"properties": given, "required": list(given)}, "then": then}
    return rule | ({"else": otherwise} if otherwise else {})


def _kernel(key: str, value: Any) -> dict[str, Any]:
    return {"kernel": {"properties": {key: {"const": value}}, "required": [key]}}


class _UntitledKeys(GenerateJsonSchema):
    """Titles that only repeat the key would hide its description in an editor."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
