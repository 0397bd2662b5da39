"""Schedules as YAML files: loading with file, line and key in every error, and the JSON Schema for editors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic.json_schema import GenerateJsonSchema

from tl_attention.errors import InputError
from tl_attention.schedule import Schedule
from tl_attention.schedule_errors import first_error, shown
from tl_attention.schedule_rules import KEYS_OF_ORDER

MAX_BYTES = 64 * 1024
MAX_NESTING = 8
SCHEMA_NAME = "schedule.schema.json"
KEYS = tuple(Schedule.model_fields)
YAML_TAG = "tag:yaml.org,2002:"
DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)")


def load(path: str | Path) -> Schedule:
    """Read one schedule. Raises InputError with `file:line: key: message`."""
    path = Path(path)
    text = _read(path)
    node = _compose(text, path)
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"{path}:{node.start_mark.line + 1}: expected a mapping of keys, such as block_M: 128")
    _no_repeated_keys(node, path)
    fields = _construct(node, path)
    try:
        return Schedule(**fields)
    except ValueError as error:
        key, message = first_error(error, KEYS)
        raise InputError(f"{path}:{_line(node, key)}: {_dotted(key)}{message}") from None


def json_schema() -> str:
    """The JSON Schema of a schedule file, as committed beside the schedules."""
    schema = Schedule.model_json_schema(schema_generator=_UntitledKeys)
    for key in KEYS_OF_ORDER:
        schema["properties"][key]["maxItems"] = schema["properties"]["order"]["items"]["maximum"] + 1
    schema["properties"]["group"]["items"] |= {"minItems": 1, "uniqueItems": True}
    # The rules between keys that JSON Schema can say: see schedule_rules.py.
    schema["allOf"] = [
        {
            "if": {"properties": {"lowering": {"const": "inferred"}}, "required": ["lowering"]},
            "then": {"properties": {key: {"maxItems": 0} for key in KEYS_OF_ORDER}},
            "else": {
                "properties": {key: {"minItems": 1} for key in KEYS_OF_ORDER},
                "required": list(KEYS_OF_ORDER),
            },
        },
        {
            "if": {"properties": {"lowering": {"const": "warp_specialized"}}, "required": ["lowering"]},
            "then": {"properties": {"kv_order": {"const": "descending"}}, "required": ["kv_order"]},
        },
        *(
            {
                "if": {"properties": {"block_M": {"const": rows}}, "required": ["block_M"]},
                "then": {"properties": {"threads": {"const": 2 * rows}}},
            }
            for rows in (64, 128, 192, 256)
        ),
    ]
    return json.dumps({"$schema": GenerateJsonSchema.schema_dialect} | schema, indent=2) + "\n"


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


def _construct(node: yaml.MappingNode, path: Path) -> dict[str, Any]:
    fields = {}
    for key, value in node.value:
        for scalar in _scalars(value):
            if scalar.tag == f"{YAML_TAG}int" and not DECIMAL.fullmatch(scalar.value):
                # 0200, 0x80, 1_28 and 2:08 are all 128 to YAML 1.1, and something else to YAML 1.2.
                raise InputError(
                    f"{path}:{scalar.start_mark.line + 1}: {key.value}: {scalar.value[:40]!r} is not a decimal "
                    "integer, expected one such as 128"
                )
        try:
            fields[key.value] = yaml.SafeLoader("").construct_document(value)
        except (yaml.YAMLError, ValueError, OverflowError):
            # Scalars that only look like a date, a number or a merge key.
            found = shown(value.value) if isinstance(value, yaml.ScalarNode) else "one in this list"
            line = value.start_mark.line + 1
            raise InputError(f"{path}:{line}: {key.value}: a value that YAML cannot read, found {found}") from None
    return fields


def _scalars(node: yaml.Node) -> list[yaml.ScalarNode]:
    """The values below a node. Recursion is safe: `_compose` has bounded the nesting."""
    if isinstance(node, yaml.MappingNode):
        return [scalar for pair in node.value for part in pair for scalar in _scalars(part)]
    if isinstance(node, yaml.SequenceNode):
        return [scalar for part in node.value for scalar in _scalars(part)]
    return [node] if isinstance(node, yaml.ScalarNode) else []


def _no_repeated_keys(node: yaml.MappingNode, path: Path) -> None:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
            found = shown(key.value) if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
            raise InputError(f"{path}:{line}: a key must be a word, such as block_M, found {found}")
        if key.value in seen:
            raise InputError(f"{path}:{line}: {key.value}: given on line {seen[key.value]} already")
        seen[key.value] = line


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


def _dotted(key: tuple[str | int, ...]) -> str:
    """("order", 2) -> `order[2]: `."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return f"{text.removeprefix('.')}: " if text else ""
