"""A file of plain YAML as keys and values, with the line of each: what schedule files and defaults.yaml are read by.

Plain: one document, no tags, anchors or aliases, little nesting, decimal numbers, no key twice. Each mistake is a line
of an InputError that begins with `file:line`.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from tl_attention.errors import InputError
from tl_attention.files import user_file
from tl_attention.files.yaml_words import no_colon, not_yaml
from tl_attention.schedule.key_errors import first_error
from tl_attention.schedule.key_words import KeyPath, dotted, shown

if TYPE_CHECKING:
    from pydantic import BaseModel

Checked = TypeVar("Checked", bound="BaseModel")

MAX_BYTES = 64 * 1024
MAX_NESTING = 8
YAML_TAG = "tag:yaml.org,2002:"
# What YAML 1.1 and YAML 1.2 both read as the same number: 0200, 0x80, 1_28 and 2:08 are all 128 to YAML 1.1 alone.
DECIMAL = {
    f"{YAML_TAG}int": (re.compile(r"-?(0|[1-9][0-9]*)"), "integer, expected one such as 128"),
    f"{YAML_TAG}float": (re.compile(r"[^_:]*"), "number, expected one such as 8.0"),
}


# Of a file: as long as it is the same, so is what was read.
Stamp = tuple[int, int, int, int]


def stamp(path: str | Path) -> Stamp | None:
    """The file's stamp now, or None if there is none."""
    try:
        return _stamp(os.stat(path))
    except (OSError, ValueError):
        return None


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


@dataclass(frozen=True)
class Fault:
    """A mistake in a key's text: its line, the key, and the words that name the key."""

    line: int
    key: KeyPath
    message: str


@dataclass(frozen=True)
class YamlFile:
    """The keys of one file, nested as they stand in it, the file's stamp when it was read, and the faults of its text."""

    path: Path
    fields: dict[str, Any]
    node: yaml.MappingNode
    stamp: Stamp
    faults: tuple[Fault, ...] = ()

    def line(self, key: KeyPath) -> int:
        """The line of the innermost part of `key` that the file has; the first line with a key if it has none."""
        return self._find(key)[0]

    def has(self, key: KeyPath) -> int:
        """How many parts of `key`, from the first, the file has."""
        return self._find(key)[1]

    def gives(self, key: KeyPath) -> bool:
        """Whether the file says what the key is: it has all of it, or returns what is above it to the default by a null."""
        depth = self.has(key)
        value: Any = self.fields
        for part in key[:depth]:
            value = value.get(part) if isinstance(value, dict) else True
        return depth == len(key) or (depth > 0 and not isinstance(value, dict))

    def _find(self, key: KeyPath) -> tuple[int, int]:
        node: yaml.Node = self.node
        line = node.start_mark.line + 1
        for depth, part in enumerate(key):
            child: Any = None
            if isinstance(node, yaml.MappingNode):
                child = next((pair for pair in node.value if pair[0].value == part), None)
                line = child[0].start_mark.line + 1 if child else line
                child = child[1] if child else None
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                child = node.value[part]
                line = child.start_mark.line + 1
            if child is None:
                return line, depth
            node = child
        return line, len(key)


def checked(file: YamlFile, model: type[Checked], fields: dict[str, Any], *where: str | int) -> Checked:
    """A model of the fields that stand at `where`. Raises InputError with `file:line: key: message`."""
    try:
        return model(**fields)
    except ValueError as error:
        key, message = first_error(error, model)
        raise blamed(file, (*where, *key), message) from None


def blamed(file: YamlFile, key: KeyPath, message: str) -> InputError:
    """The error at a key's line."""
    return InputError(f"{file.path}:{file.line(key)}: {dotted(key)}{message}")


def read(path: Path) -> YamlFile:
    """Read one file. Raises InputError with `file:line: message` for each mistake of its text."""
    file = read_faulty(path)
    if file.faults:
        raise InputError(*(f"{path}:{fault.line}: {fault.message}" for fault in file.faults))
    return file


def read_faulty(path: Path) -> YamlFile:
    """Read one file that may have faults, keys that cannot be read as what they should be; other mistakes raise."""
    text, as_of = _text(path)
    node = _compose(text, path)
    if not isinstance(node, yaml.MappingNode):
        where = f"{path}:{node.start_mark.line + 1}: "
        raise InputError(f"{where}expected a mapping of keys, such as block_M: 128{_instead(node)}")
    faults: list[Fault] = []
    return YamlFile(path, _construct(node, faults), node, as_of, tuple(faults))


def _instead(node: yaml.Node) -> str:
    """What a file without keys may have meant by what it has."""
    if isinstance(node, yaml.SequenceNode):
        return ", found a list: remove the dashes or the brackets around the keys"
    words = no_colon(node.value) if isinstance(node, yaml.ScalarNode) and "\n" not in node.value else ""
    return f": {words}" if words.startswith(("no ", "`=`")) and " " in node.value else ""


def _text(path: Path) -> tuple[str, Stamp]:
    data, status = user_file.read(path, MAX_BYTES, "schedule")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: not a text file: byte {data[error.start]:#04x} is not UTF-8") from None
    if not data and not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: a pipe or device with nothing in it, expected a file")
    if not text.strip():
        raise InputError(f"{path}: the file is empty, expected a schedule's keys, such as block_M: 128")
    return text, _stamp(status)


def _compose(text: str, path: Path) -> yaml.Node:
    """The node tree of plain YAML: one document, no tags, anchors or aliases, little nesting."""
    try:
        nesting = 0
        documents = 0
        # Events come from an iterative parser; composing first could exhaust the stack on a deep file.
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            assert event.start_mark is not None
            where = f"{path}:{event.start_mark.line + 1}"
            nesting += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            documents += isinstance(event, yaml.DocumentStartEvent)
            if nesting > MAX_NESTING:
                raise InputError(f"{where}: nested deeper than {MAX_NESTING} levels, which no schedule is")
            if documents > 1:
                raise InputError(f"{where}: a second document, expected one schedule per file")
            if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
                raise InputError(f"{where}: anchors and aliases are not allowed, found {event.anchor[:40]!r}")
            tag: str | None = getattr(event, "tag", None)
            if tag is not None:
                raise InputError(f"{where}: tags are not allowed, found {tag.replace(YAML_TAG, '!!')[:60]!r}")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line, words = not_yaml(error, text)
        raise InputError(f"{path}:{line}: not YAML: {words}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(f"{path}:{line}: not a text file: character {error.character:#x} is not allowed") from None
    if node is None:
        raise InputError(f"{path}: only comments, expected a schedule's keys, such as block_M: 128")
    return node


def _construct(node: yaml.MappingNode, faults: list[Fault], above: KeyPath = ()) -> dict[str, Any]:
    """The keys of a mapping, and of the mappings in it, each once. `_compose` has bounded the nesting."""
    fields: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag != f"{YAML_TAG}str":
            found = shown(key.value) if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
            faults.append(Fault(line, (*above, found), f"a key must be a word, such as block_M, found {found}"))
            continue
        name = (*above, key.value)
        if key.value in lines:
            faults.append(Fault(line, name, f"{dotted(name)}given on line {lines[key.value]} already"))
            continue
        lines[key.value] = line
        fields[key.value] = _below(value, faults, name)
    return fields


def _below(node: yaml.Node, faults: list[Fault], name: KeyPath) -> Any:
    """What a key, or an entry of a list of mappings, holds."""
    if isinstance(node, yaml.MappingNode):
        return _construct(node, faults, name)
    if isinstance(node, yaml.SequenceNode) and any(isinstance(entry, yaml.MappingNode) for entry in node.value):
        return [_below(entry, faults, (*name, number)) for number, entry in enumerate(node.value)]
    return _value(node, faults, name)


def _value(node: yaml.Node, faults: list[Fault], name: KeyPath) -> Any:
    """What the node holds; None where it has a fault."""
    for scalar in _scalars(node):
        if scalar.tag in DECIMAL:
            form, words = DECIMAL[scalar.tag]
            if not form.fullmatch(scalar.value):
                message = f"{dotted(name)}{scalar.value[:40]!r} is not a decimal {words}"
                faults.append(Fault(scalar.start_mark.line + 1, name, message))
                return None
    try:
        return yaml.SafeLoader("").construct_document(node)
    except (yaml.YAMLError, ValueError, OverflowError):
        # Scalars that only look like a date, a number or a merge key.
        found = shown(node.value) if isinstance(node, yaml.ScalarNode) else "one in this list"
        message = f"{dotted(name)}a value that YAML cannot read, found {found}"
        faults.append(Fault(node.start_mark.line + 1, name, message))
        return None


def _scalars(node: yaml.Node) -> list[yaml.ScalarNode]:
    """The values below a node. Recursion is safe: `_compose` has bounded the nesting."""
    if isinstance(node, yaml.MappingNode):
        return [scalar for pair in node.value for part in pair for scalar in _scalars(part)]
    if isinstance(node, yaml.SequenceNode):
        return [scalar for part in node.value for scalar in _scalars(part)]
    return [node] if isinstance(node, yaml.ScalarNode) else []
