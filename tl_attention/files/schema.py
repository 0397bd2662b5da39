"""This module makes the JSON Schema of schedule files, by which editors complete and check them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from tl_attention.files.schedule_file import ScheduleKeys
from tl_attention.schedule.dialect import dialects
from tl_attention.schedule.fields import model_of
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.rules import Implying, Keywords, Rule, Where, is_so, rules_of

Schema = dict[str, Any]
# What some rules that hold under the same condition need.
Said = tuple[Where, dict[str, Keywords]]
NULL = {"type": "null"}


def json_schema() -> str:
    """Returns the JSON Schema of a schedule file, as committed beside the schedules.

    A file may give null for a key that has a default. A file with a base has some of the keys; what a whole file needs
    besides stands under `else`.
    """
    schema = ScheduleKeys.model_json_schema(schema_generator=_UntitledKeys)
    keys = schema["properties"]
    del keys["base"]["default"]
    # What the keys say together, below what a file is.
    schema["description"] += "\n\n" + inspect.cleandoc(Keys.__doc__ or "").partition("\n\n")[2]
    alone, between = _rules()
    for key, keywords in alone:
        keys[key] = _with(keys[key], keywords)
    whole = _loosened(schema, schema["$defs"]) | {"allOf": between}
    dialect = {"$schema": GenerateJsonSchema.schema_dialect}
    return json.dumps(dialect | schema | {"if": {"required": ["base"]}, "else": whole}, indent=2) + "\n"


def _loosened(model: Schema, models: dict[str, Schema]) -> Schema:
    """Changes a model's schema, and the schemas below it, to what a file with a base may give.

    Returns what a whole file must give.
    """
    must: Schema = {"required": required} if (required := model.pop("required", None)) else {}
    whole: Schema = {}
    for key, entry in model["properties"].items():
        choices = entry.get("anyOf", [entry])
        inner = next((choice["$ref"].rpartition("/")[2] for choice in choices if "$ref" in choice), None)
        of_key = _loosened(models[inner], models) if inner else {}
        if "default" in entry and NULL not in choices:
            said = {word: entry.pop(word) for word in ("default", "description")}
            model["properties"][key] = {"anyOf": [entry, NULL], **said}
        if of_key:
            whole[key] = of_key
    return must | ({"properties": whole} if whole else {})


def _rules() -> tuple[list[tuple[str, Keywords]], list[Schema]]:
    """Returns what the rules say: about single keys wherever they stand, and about the keys of a whole file together."""
    lowerings: dict[Rule | Implying, list[str]] = {}
    for dialect in dialects():
        for rule in rules_of(dialect):
            if isinstance(rule, Rule | Implying):
                lowerings.setdefault(rule, []).append(dialect.name)
    alone: list[tuple[str, Keywords]] = []
    between: dict[tuple[str, ...], list[Said]] = {}
    for rule, names in lowerings.items():
        if len(names) == len(dialects()) and not rule.given:
            alone += rule.needs.items()
        else:
            _say(between.setdefault(tuple(names), []), rule)
    return alone, [schema for names, said in between.items() for schema in _of_lowerings(names, said)]


def _say(said: list[Said], rule: Rule | Implying) -> None:
    """Adds a rule to what is said: under the `if` of a rule with the same condition, where that speaks of other keys."""
    for given, needs in said:
        if given == rule.given and not needs.keys() & rule.needs.keys():
            needs.update(rule.needs)
            return
    said.append((rule.given, dict(rule.needs)))


def _of_lowerings(names: Sequence[str], said: list[Said]) -> list[Schema]:
    rules = [_if(given, _mapping(needs)) for given, needs in said]
    if len(names) == len(dialects()):
        return rules
    return [_if({"lowering": {"enum": list(names)}}, {"allOf": rules} if len(rules) > 1 else rules[0])]


def _if(given: Where, then: Schema) -> Schema:
    return {"if": _mapping(given), "then": then} if given else then


def _mapping(where: Where, model: type[BaseModel] = Keys) -> Schema:
    """Returns the schema of keys that are as `where`, in a file that may leave out those that are so by default."""
    below: dict[str, dict[str, Keywords]] = {}
    for path, keywords in where.items():
        key, _, rest = path.partition(".")
        below.setdefault(key, {})[rest] = keywords
    properties: Schema = {}
    required = []
    for key, inside in below.items():
        field = model.model_fields[key]
        own = inside.pop("", {})
        nested = model_of(field.annotation) if inside else None
        properties[key] = dict(own) | (_mapping(inside, nested) if nested else {})
        by_default = not field.is_required() and is_so(field.default, own)
        required += [] if by_default and "required" not in properties[key] else [key]
    return {"properties": properties} | ({"required": required} if required else {})


def _with(entry: Schema, keywords: Keywords) -> Schema:
    """Returns a key's schema with these keywords too, also of its items."""
    inside = {keyword: _with(entry[keyword], more) for keyword, more in keywords.items() if isinstance(more, dict)}
    return entry | dict(keywords) | inside


class _UntitledKeys(GenerateJsonSchema):
    """This generator gives keys no titles: titles that repeat the key would hide its description in an editor."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
