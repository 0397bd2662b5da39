"""Schedules as YAML files: loading with file, line and key in every error, and the JSON Schema for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tl_attention.errors import InputError
from tl_attention.schedule import Schedule, first_error

MAX_BYTES = 64 * 1024
MAX_NESTING = 8
SCHEMA_NAME = "schedule.schema.json"


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
        key, message = first_error(error)
        raise InputError(f"{path}:{_line(node, key)}: {_dotted(key)}{message}") from None


def json_schema() -> str:
    """The JSON Schema of a schedule file, as committed beside the schedules."""
    return json.dumps(Schedule.model_json_schema(), indent=2) + "\n"


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
                raise InputError(f"{where}: tags are not allowed, found {event.tag[:60]!r}")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{path}:{line}: not YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(f"{path}:{line}: not a text file: character {error.character:#x} is not allowed") from None
    if node is None:
        raise InputError(f"{path}: only comments, expected a schedule's keys, such as block_M: 128")
    return node


def _construct(node: yaml.MappingNode, path: Path) -> dict[str, Any]:
    fields = {}
    for key, value in node.value:
        try:
            fields[key.value] = yaml.SafeLoader("").construct_document(value)
        except (yaml.YAMLError, ValueError, OverflowError):
            # Scalars that only look like a date, a number or a merge key.
            raise InputError(f"{path}:{value.start_mark.line + 1}: {key.value}: a value that YAML cannot read") from None
    return fields


def _no_repeated_keys(node: yaml.MappingNode, path: Path) -> None:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
            raise InputError(f"{path}:{line}: a key must be a word, such as block_M")
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
