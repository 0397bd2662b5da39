"""This module reads plain YAML, of schedule files, ladders and defaults.yaml, as keys and values with their lines.

Plain YAML is one document with no tags, anchors or aliases, little nesting, decimal numbers, and no key twice. Each
mistake is a line of an InputError that begins with `file:line`.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from tl_attention.errors import InputError, printable
from tl_attention.schedule.files import reading
from tl_attention.schedule.key_errors import first_error
from tl_attention.schedule.key_words import KeyPath, dotted, short, shown
from tl_attention.schedule.options import OPTION_KEYS

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
# libyaml is 20 times as fast as PyYAML's own parser. Both read alike what libyaml takes of a text of these characters
# alone; with others, such as tabs and `?`, it takes more.
FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
READ_ALIKE = re.compile(r"[\n ->@-~]*")


# As long as the stamp of a file is the same, so is what was read from it.
Stamp = tuple[int, int, int, int]


def stamp(path: str | Path) -> Stamp | None:
    """Returns the file's time of change, size, inode and device as a tuple; None if there is no file."""
    try:
        return _stamp(os.stat(path))
    except (OSError, ValueError):
        return None


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


@dataclass(frozen=True)
class Fault:
    """A Fault is one mistake in a YAML text, with its line, the path of its key, and a message that names the key."""

    line: int
    key: KeyPath
    message: str


@dataclass(frozen=True)
class YamlFile:
    """A YamlFile holds the nested keys of one file, the file's stamp when it was read, and the faults of its text."""

    path: Path
    fields: dict[str, Any]
    lines: dict[KeyPath, int]  # by path, the line of each key and list entry; that of () is the first with a key
    stamp: Stamp
    faults: tuple[Fault, ...] = ()

    def line(self, key: KeyPath) -> int:
        """Returns the line number of a key or, if the file lacks it, of the innermost key above it that the file has.

        That is the first line with a key if the file has none of these.
        """
        return self.lines[key[: self.depth_of(key)]]

    def depth_of(self, key: KeyPath) -> int:
        """Returns how many parts of a key's path, from the first on, the file has; 0 if it lacks the first."""
        return next(depth for depth in range(len(key), -1, -1) if key[:depth] in self.lines)

    def gives(self, key: KeyPath) -> bool:
        """Says whether the file itself sets the key, or a key above it to a plain value such as null.

        A null returns what is above the key, and so the key, to the default.
        """
        depth = self.depth_of(key)
        value: Any = self.fields
        for part in key[:depth]:
            value = value.get(part) if isinstance(value, dict) else True
        return depth == len(key) or (depth > 0 and not isinstance(value, dict))

    def placed(self, key: KeyPath, message: str, kind: str = "", at: KeyPath | None = None) -> str:
        """Returns the message with file, line, kind and key in front, the line being that of the key `at` or of `key`.

        It is `file:line: kind: key: message`.
        """
        name = "" if message.startswith(dotted(key)) else dotted(key)
        return f"{self.path}:{self.line(key if at is None else at)}: {kind}{name}{message}"


def checked(file: YamlFile, model: type[Checked], fields: dict[str, Any], *where: str | int) -> Checked:
    """Makes a pydantic model of some fields of a file. Raises InputError with file, line and key if it refuses one.

    `where` is the path of the fields in the file.
    """
    try:
        return model(**fields)
    except ValueError as error:
        key, message = first_error(error, model)
        raise blamed(file, (*where, *key), message) from None


def blamed(file: YamlFile, key: KeyPath, message: str) -> InputError:
    """Returns an InputError of the message with the file, the key's line and the key in front."""
    return InputError(printable(file.placed(key, message)))


def read(path: Path) -> YamlFile:
    """Reads a YAML file of keys as a YamlFile. Raises InputError with a line for each mistake of its text."""
    file = read_faulty(path)
    if file.faults:
        raise InputError(*(printable(f"{path}:{fault.line}: {fault.message}") for fault in file.faults))
    return file


def read_faulty(path: Path) -> YamlFile:
    """Reads a YAML file of keys as a YamlFile, which lists keys that are repeated or cannot be read as `faults`.

    Other mistakes raise InputError.
    """
    text, as_of = _text(path)
    node = _compose(text, path)
    if not isinstance(node, yaml.MappingNode):
        where = f"{path}:{node.start_mark.line + 1}: "
        raise InputError(f"{where}expected a mapping of keys, such as block_M: 128{_instead(node)}")
    lines: dict[KeyPath, int] = {(): node.start_mark.line + 1}
    faults: list[Fault] = []
    return YamlFile(path, _construct(node, lines, faults), lines, as_of, tuple(faults))


def _instead(node: yaml.Node) -> str:
    """Returns advice for a YAML text that is a list or one value instead of keys, to end a message; "" if none."""
    if isinstance(node, yaml.SequenceNode):
        return ", found a list: remove the dashes or the brackets around the keys"
    words = _no_colon(node.value) if isinstance(node, yaml.ScalarNode) and "\n" not in node.value else ""
    return f": {words}" if words.startswith(("no ", "`=`")) and " " in node.value else ""


def _text(path: Path) -> tuple[str, Stamp]:
    data, status = reading.read(path, MAX_BYTES, "schedule")
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
    """Returns the root node of a YAML text, or raises InputError unless the text is plain YAML."""
    if READ_ALIKE.fullmatch(text):
        # Only PyYAML's own parser has the words for what is wrong.
        with suppress(InputError, yaml.YAMLError):
            return _plain(text, path, FAST)
    try:
        return _plain(text, path, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line, words = _not_yaml(error, text)
        raise InputError(f"{path}:{line}: not YAML: {words}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(f"{path}:{line}: not a text file: character {error.character:#x} is not allowed") from None


def _plain(text: str, path: Path, loader: Any) -> yaml.Node:
    """Returns the root node of a text that is one document without tags, anchors, aliases and much nesting."""
    nesting = documents = 0
    # Events come from an iterative parser; composing first could exhaust the stack on a deep file.
    for event in yaml.parse(text, Loader=loader):
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
        if tag := getattr(event, "tag", None):
            raise InputError(f"{where}: tags are not allowed, found {tag.replace(YAML_TAG, '!!')[:60]!r}")
    node = yaml.compose(text, Loader=loader)
    if node is None:
        raise InputError(f"{path}: only comments, expected a schedule's keys, such as block_M: 128")
    return node


def _construct(node: yaml.Node, lines: dict[KeyPath, int], faults: list[Fault], at: KeyPath = ()) -> Any:
    """Returns a YAML node as dicts, lists and values, and adds to `lines` and `faults`; a faulty value is None."""
    if isinstance(node, yaml.SequenceNode):
        lines.update({(*at, number): entry.start_mark.line + 1 for number, entry in enumerate(node.value)})
        return [_construct(entry, lines, faults, (*at, number)) for number, entry in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return _value(node, faults, at)
    fields: dict[str, Any] = {}
    for key, value in node.value:
        line, name = key.start_mark.line + 1, (*at, key.value)
        if not isinstance(key, yaml.ScalarNode) or key.tag != f"{YAML_TAG}str":
            found = shown(key.value) if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
            faults.append(Fault(line, (*at, found), f"a key must be a word, such as block_M, found {found}"))
        elif name in lines:
            faults.append(Fault(line, name, f"{dotted(name)}given on line {lines[name]} already"))
        else:
            lines[name] = line
            fields[key.value] = _construct(value, lines, faults, name)
    return fields


def _value(node: yaml.Node, faults: list[Fault], at: KeyPath) -> Any:
    """Returns the Python value of a YAML scalar, or None after adding a Fault if it cannot be read."""
    name = at
    while isinstance(name[-1], int):
        name = name[:-1]
    form, words = DECIMAL.get(node.tag, (None, ""))
    if form and not form.fullmatch(node.value):
        message = f"{dotted(name)}{node.value[:40]!r} is not a decimal {words}"
    else:
        try:
            return yaml.constructor.SafeConstructor().construct_document(node)
        except (yaml.YAMLError, ValueError, OverflowError):
            # Scalars that only look like a date, a number or a merge key.
            found = "one in this list" if name != at else shown(node.value)
            message = f"{dotted(name)}a value that YAML cannot read, found {found}"
    faults.append(Fault(node.start_mark.line + 1, name, message))
    return None


# --- what is wrong with text that is no YAML, in the words of its author: a tab, a missing colon, an open bracket -----
#
# PyYAML says what its parser met. The line of the text says what the author left out.

# A key with its colon at the start of a line; what stands behind it.
KEY = re.compile(r"(?P<indent> *)(?:- +)?(?P<key>[\w.]+) *:(?:\s+(?P<value>.*))?$")
OPEN = re.compile(r"expected ',' or '(?P<close>[\]}])', but got '(?P<got>[^']*)'")
NOT_ENDED = (":", "<stream end>", "<document start>", "<document end>", "?")
OPENING = {"]": "[", "}": "{"}


def _not_yaml(error: yaml.MarkedYAMLError, text: str) -> tuple[int, str]:
    """Returns (line to blame, counted from 1, message) for a text that PyYAML refused with this error."""
    # PyYAML ends lines at all of these.
    lines = re.split(r"\r\n|[\r\n\x85\u2028\u2029]", text.removeprefix("\ufeff"))
    problem, mark = error.problem or error.context or "", error.problem_mark or error.context_mark
    began = error.context_mark
    at = mark.line if mark else 0
    line = lines[at] if at < len(lines) else ""
    column = mark.column if mark else 0
    if error.context == "while scanning a simple key" and began:
        # PyYAML notices a missing colon only on the line after it.
        return began.line + 1, _no_colon(lines[began.line])
    if opened := OPEN.search(problem):
        is_key = opened["got"] == "<scalar>" and KEY.match(line) is not None
        return _not_closed(opened, began.line if began else at, at, is_key)
    if "quoted scalar" in (error.context or "") and began:
        return began.line + 1, f"the quote {lines[began.line][began.column : began.column + 1]} is not closed"
    if problem == "mapping values are not allowed here":
        return _second_colon(lines, at, column)
    if "cannot start any token" in problem or problem.startswith("expected alphabetic or numeric character"):
        if line[column : column + 1] == "\t":
            return at + 1, "a tab ('\\t'), where YAML takes spaces alone: replace it by spaces"
        began_at = began.column if began and began.line == at else column
        return at + 1, f"a text cannot begin with {line[began_at : began_at + 1]}: put the whole text in quotes"
    if problem.startswith("expected <block end>"):
        return at + 1, _no_level(line, column)
    if began and began.line != at:
        problem = f"{problem} ({error.context} that starts on line {began.line + 1})"
    return at + 1, problem


def _no_colon(line: str) -> str:
    """Returns words for what a line lacks to be a key with a value, such as the colon or the space behind it."""
    text = re.split(r"\s#", line)[0].strip().removeprefix("- ").strip()
    if match := re.fullmatch(r"([\w.]+):(\S.*)", text):
        return f"no space behind the colon of {short(match[1])}, expected `{short(f'{match[1]}: {match[2]}')}`"
    if match := re.fullmatch(r"([\w.]+) *= *(.*)", text):
        return f"`=` behind {short(match[1])}, expected a colon and a space, `{short(f'{match[1]}: {match[2]}')}`"
    if match := re.fullmatch(r"([\w.]+)\s+(\S.*)", text):
        return f"no colon behind {short(match[1])}, expected `{short(f'{match[1]}: {match[2]}')}`"
    if re.fullmatch(r"[\w.]+", text):
        return f"no colon behind {short(text)}, expected `{short(text)}:`"
    return "expected `key: value`, a colon and a space"


def _not_closed(opened: re.Match[str], began: int, at: int, is_key: bool) -> tuple[int, str]:
    close, got = opened["close"], opened["got"]
    if at != began and (is_key or got in NOT_ENDED):
        return began + 1, f"the bracket {OPENING[close]} is not closed, expected {close} at the end of the list or keys"
    return at + 1, f"a comma or a closing {close} is missing in what {OPENING[close]} opens on line {began + 1}"


def _second_colon(lines: list[str], at: int, column: int) -> tuple[int, str]:
    """Explains a colon that the YAML parser refused where no key can stand, and returns (line to blame, message)."""
    line = lines[at]
    key = KEY.match(line)
    if key and column > key.end("key") + 1 and key["value"]:
        name, inside = key["key"], key["value"]
        if name in OPTION_KEYS:
            return (
                at + 1,
                f"two keys on one line, expected braces around the second, `{short(f'{name}: {{{inside}}}')}`",
            )
        if re.search(r"[,;]\s*[\w.]+$", line[:column]):
            return at + 1, "two keys on one line, expected each key on a line of its own"
        text = inside.replace("'", "''")
        return at + 1, f"a text with a colon inside needs quotes, expected `{name}: '{short(text)}'`"
    above = next((n for n in range(at - 1, -1, -1) if lines[n].strip() and not lines[n].lstrip().startswith("#")), None)
    if above is None or key is None:
        return at + 1, "a colon where no key can stand: a text with a colon inside needs quotes"
    if not (KEY.match(lines[above]) or lines[above].lstrip().startswith("-")):
        return above + 1, _no_colon(lines[above])
    return at + 1, (
        f"{short(key['key'])} is indented, but the key on line {above + 1} has a value already: remove the spaces before "
        f"{short(key['key'])}, or indent it as the keys beside it are"
    )


def _no_level(line: str, column: int) -> str:
    before = line[:column].strip()
    if not before or before == "-":
        return "the indentation is that of no line above, expected the keys of one level to begin in the same column"
    return f"text behind {short(before)!r}: a text that begins with a bracket or a quote needs quotes around all of it"
