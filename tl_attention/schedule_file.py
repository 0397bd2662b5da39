"""Schedules as YAML files: loading with file, line and key in every error, and the JSON Schema for editors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic.json_schema import GenerateJsonSchema

from tl_attention.errors import InputError
from tl_attention.options import OPTION_KEYS
from tl_attention.schedule import Schedule
from tl_attention.schedule_errors import dotted, first_error, shown
from tl_attention.schedule_rules import KEYS_OF_ORDER
from tl_attention.statement_name import MOST_CHUNKS
from tl_attention.statements import NAMES, SPLITTABLE

MAX_BYTES = 64 * 1024
MAX_NESTING = 8
SCHEMA_NAME = "schedule.schema.json"
YAML_TAG = "tag:yaml.org,2002:"
# What YAML 1.1 and YAML 1.2 both read as the same number: 0200, 0x80, 1_28 and 2:08 are all 128 to YAML 1.1 alone.
DECIMAL = {
    f"{YAML_TAG}int": (re.compile(r"-?(0|[1-9][0-9]*)"), "integer, expected one such as 128"),
    f"{YAML_TAG}float": (re.compile(r"[^_:]*"), "number, expected one such as 8.0"),
}


def load(path: str | Path) -> Schedule:
    """Read one schedule. Raises InputError with `file:line: key: message`."""
    path = Path(path)
    text = _read(path)
    node = _compose(text, path)
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"{path}:{node.start_mark.line + 1}: expected a mapping of keys, such as block_M: 128")
    fields = _construct(node, path)
    try:
        return Schedule(**fields)
    except ValueError as error:
        key, message = first_error(error, Schedule)
        raise InputError(f"{path}:{_line(node, key)}: {dotted(key)}{message}") from None


def json_schema() -> str:
    """The JSON Schema of a schedule file, as committed beside the schedules."""
    schema = Schedule.model_json_schema(schema_generator=_UntitledKeys)
    keys = schema["properties"]
    keys["group"]["items"] |= {"minItems": 1, "uniqueItems": True}
    for key in KEYS_OF_ORDER:
        keys[key]["maxItems"] = len(NAMES) + len(SPLITTABLE) * (MOST_CHUNKS - 1)
    whole = {"maxItems": len(NAMES), "items": {"maximum": len(NAMES) - 1}}
    # The rules between keys that JSON Schema can say: see schedule_rules.py.
    schema["allOf"] = [
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
    return json.dumps({"$schema": GenerateJsonSchema.schema_dialect} | schema, indent=2) + "\n"


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


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES // 1024} KiB, which no schedule is")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: not a text file: byte {data[error.start]:#04x} is not UTF-8") from None
    if not text.strip():
        raise InputError(f"{path}: the file is empty, expected a schedule's keys, such as block_M: 128")
    return text


def _compose(text: str, path: Path) -> yaml.Node:
    """The node tree of plain YAML: one document, no tags, anchors or aliases, little nesting."""
    try:
        nesting = 0
        documents = 0
        # Events come from an iterative parser; composing first could exhaust the stack on a deep file.
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            where = f"{path}:{event.start_mark.line + 1}"
            nesting += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            documents += isinstance(event, yaml.DocumentStartEvent)
            if nesting > MAX_NESTING:
                raise InputError(f"{where}: nested deeper than {MAX_NESTING} levels, which no schedule is")
            if documents > 1:
                raise InputError(f"{where}: a second document, expected one schedule per file")
            if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
                raise InputError(f"{where}: anchors and aliases are not allowed, found {event.anchor[:40]!r}")
            if getattr(event, "tag", None) is not None:
                tag = event.tag.replace(YAML_TAG, "!!")
                raise InputError(f"{where}: tags are not allowed, found {tag[:60]!r}")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise InputError(f"{path}:{_not_yaml(error)}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(f"{path}:{line}: not a text file: character {error.character:#x} is not allowed") from None
    if node is None:
        raise InputError(f"{path}: only comments, expected a schedule's keys, such as block_M: 128")
    return node


def _not_yaml(error: yaml.MarkedYAMLError) -> str:
    """`line: not YAML: problem`, at the line that an editor would mark."""
    problem, mark = error.problem or error.context, error.problem_mark or error.context_mark
    began = error.context_mark
    if error.context == "while scanning a simple key" and began:
        # PyYAML notices a missing colon only on the line after it.
        return f"{began.line + 1}: not YAML: expected `key: value`, a colon and a space"
    if began and mark and began.line != mark.line:
        problem = f"{problem} ({error.context} that starts on line {began.line + 1})"
    return f"{mark.line + 1 if mark else 1}: not YAML: {problem}"


def _construct(node: yaml.MappingNode, path: Path, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """The keys of a mapping, and of the mappings in it, each once. `_compose` has bounded the nesting."""
    fields: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag != f"{YAML_TAG}str":
            found = shown(key.value) if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
            raise InputError(f"{path}:{line}: a key must be a word, such as block_M, found {found}")
        name = (*above, key.value)
        if key.value in lines:
            raise InputError(f"{path}:{line}: {dotted(name)}given on line {lines[key.value]} already")
        lines[key.value] = line
        nested = isinstance(value, yaml.MappingNode)
        fields[key.value] = _construct(value, path, name) if nested else _value(value, path, dotted(name))
    return fields


def _value(node: yaml.Node, path: Path, name: str) -> Any:
    for scalar in _scalars(node):
        if scalar.tag in DECIMAL:
            form, words = DECIMAL[scalar.tag]
            if not form.fullmatch(scalar.value):
                where = f"{path}:{scalar.start_mark.line + 1}"
                raise InputError(f"{where}: {name}{scalar.value[:40]!r} is not a decimal {words}")
    try:
        return yaml.SafeLoader("").construct_document(node)
    except (yaml.YAMLError, ValueError, OverflowError):
        # Scalars that only look like a date, a number or a merge key.
        found = shown(node.value) if isinstance(node, yaml.ScalarNode) else "one in this list"
        raise InputError(
            f"{path}:{node.start_mark.line + 1}: {name}a value that YAML cannot read, found {found}"
        ) from None


def _scalars(node: yaml.Node) -> list[yaml.ScalarNode]:
    """The values below a node. Recursion is safe: `_compose` has bounded the nesting."""
    if isinstance(node, yaml.MappingNode):
        return [scalar for pair in node.value for part in pair for scalar in _scalars(part)]
    if isinstance(node, yaml.SequenceNode):
        return [scalar for part in node.value for scalar in _scalars(part)]
    return [node] if isinstance(node, yaml.ScalarNode) else []


def _line(node: yaml.Node, key: tuple[str | int, ...]) -> int:
    """The line of the innermost part of `key` that the file has."""
    line = node.start_mark.line + 1
    for part in key:
        child: Any = None
        if isinstance(node, yaml.MappingNode):
            child = next((pair for pair in node.value if pair[0].value == part), None)
            line = child[0].start_mark.line + 1 if child else line
            child = child[1] if child else None
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            child = node.value[part]
            line = child.start_mark.line + 1
        if child is None:
            break
        node = child
    return line
