"""A schedule's YAML file is whole, or has `base: best` and only the keys that differ from that base.

Mappings merge with the base's key by key; lists and plain values replace the base's. An explicit null returns an
optional key to its default, with a base or without. Every error names the file, the line and the key, also where a base
has the key.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import PydanticCustomError

from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.problem.head_dims import DEFAULT_HEAD_DIMS, HeadSize, TileSize, is_meant, named_head_dims
from tl_attention.schedule.files import catalogue, yaml_text
from tl_attention.schedule.files.mistakes import all_mistakes, blamed
from tl_attention.schedule.files.yaml_text import Stamp, YamlFile
from tl_attention.schedule.key_errors import model_of
from tl_attention.schedule.key_words import KeyPath, line_of, shown
from tl_attention.schedule.loop.loops import FORWARD
from tl_attention.schedule.schedule import Schedule

MOST_BASES = 4
LABEL = re.compile(r"[a-z_]+_\d+x\d+_t\d")
T = TypeVar("T")


def one_line(text: str) -> str:
    """Returns a text that is one line that a terminal can show. Raises PydanticCustomError for any other."""
    if not text.isprintable():
        raise PydanticCustomError("one_line", "expected one line of printable text")
    return text


OneLine = Annotated[str, AfterValidator(one_line)]


def each_once(values: tuple[T, ...]) -> tuple[T, ...]:
    """Checks that no value is there twice, and returns the values. Raises PydanticCustomError where one is."""
    if len(set(values)) < len(values):
        raise PydanticCustomError("each_once", "expected each once")
    return values


class ScheduleKeys(Schedule):
    """One attention schedule, whole, or what it changes in its `base`."""

    base: Annotated[
        str,
        Field(
            min_length=1,
            description=(
                "the schedule whose keys hold where this file has none: a name that `tl-attention list` shows, or a file's "
                "path relative to this one; mappings merge key by key, lists replace, null is the key's default"
            ),
        ),
    ] = ""
    summary: Annotated[str, Field(max_length=100, description="what it is, in one line"), AfterValidator(one_line)] = ""
    head_dims: Annotated[
        tuple[TileSize, ...],
        Field(
            min_length=1,
            description="the head sizes that it is meant for, those of its tiles; 64 and 128 by default",
            json_schema_extra={"uniqueItems": True},
        ),
        AfterValidator(each_once),
    ] = DEFAULT_HEAD_DIMS


# Keys about the file, not the schedule: they are no part of its label, and a base's are not taken over.
FILE_KEYS = tuple(name for name in ScheduleKeys.model_fields if name not in Schedule.model_fields)


@dataclass(frozen=True)
class Named:
    """A Named is a schedule with its name in tables, the user's text for it, and the head sizes it is meant for."""

    name: str
    text: str
    schedule: Schedule
    head_dims: tuple[HeadSize, ...] = DEFAULT_HEAD_DIMS
    summary: str = ""
    sources: tuple[YamlFile, ...] = ()  # the files that it was read from, its bases last; () for a label or notation

    @property
    def in_words(self) -> str:
        """Returns one line on what the schedule is, such as its file's name and summary; "" for a label.

        A file without a summary has its name with what it changes in its base. A configuration is its notation.
        """
        if self.sources:
            return f"{self.name}: {self.summary or self._changes or 'its file has no summary'}"
        return "" if LABEL.match(self.text) else self.text

    @property
    def _changes(self) -> str:
        """Returns the base's name and the keys that the file changes in it, in words; "" for a file without a base."""
        fields = self.sources[0].fields
        keys = " and ".join(", ".join(key for key in fields if key not in FILE_KEYS).rsplit(", ", 1))
        return f"{fields['base']} {f'with another {keys}' if keys else 'unchanged'}" if "base" in fields else ""

    @property
    def meant_for(self) -> str:
        """Returns `is meant for` with the schedule's head sizes, as text for a message."""
        return f"is meant for {named_head_dims(self.head_dims)}"

    def refuse_unmeant(self, size: HeadSize) -> None:
        """Raises InputError for a head size that the schedule is not meant for."""
        if not is_meant(size, self.head_dims):
            raise self._refused(f"it {self.meant_for}, not {size}", ("head_dims",))

    def refuse_other_loop(self, loop: str = FORWARD) -> None:
        """Raises InputError unless the schedule orders this loop, that of the forward by default."""
        if self.schedule.loop != loop:
            raise self._refused(f"it orders loop {self.schedule.loop}, expected a schedule of loop {loop}", ("loop",))

    def refused(self, refusal: ScheduleRefused) -> InputError:
        """Returns a refusal as an InputError with the file and line to blame or, without a file, the user's text."""
        return self._refused(str(refusal), refusal.key, *refusal.others)

    def _refused(self, message: str, key: KeyPath, *others: KeyPath) -> InputError:
        """Returns an InputError with file and line of the first of the keys in the outermost file with any of them."""
        if not self.sources:
            return InputError(f"{self.text}: refused: {message}")
        written = (path for source in self.sources for path in (key, *others) if source.depth_of(path) == len(path))
        found = next(written, key) if key else key
        return InputError(blamed(self.sources, found, message + self._unmeant(found), "refused: ")[1])

    def _unmeant(self, key: KeyPath) -> str:
        """Returns a hint that the base is meant for other head sizes; "" if the file gives the key or head sizes."""
        outermost, *bases = self.sources
        meant = next((base.fields["head_dims"] for base in bases if "head_dims" in base.fields), None)
        if outermost.gives(key) or outermost.gives(("head_dims",)) or not meant:
            return ""
        return f"; base {outermost.fields['base']} is meant for other head sizes, write `{line_of(('head_dims',), meant)}` too"


def load(path: str | Path) -> Schedule:
    """Reads the Schedule of a YAML file and its bases. Raises InputError with `file:line: key: message`."""
    return load_file(path).schedule


def load_file(path: str | Path) -> Named:
    """Reads a YAML file and its bases as a Named, a Schedule with its name, summary and head sizes.

    Raises InputError with `file:line: key: message` for each mistake.
    """
    sources = _with_bases(yaml_text.read_faulty(Path(path)))
    about = {key: value for key, value in sources[0].fields.items() if key in FILE_KEYS and value is not None}
    fields = _merged(sources) | about
    if sources[0].faults:
        raise all_mistakes(sources, fields, ScheduleKeys)
    try:
        keys = ScheduleKeys(**fields)
    except ValueError:
        raise all_mistakes(sources, fields, ScheduleKeys) from None
    schedule = Schedule(**{name: getattr(keys, name) for name in Schedule.model_fields})
    return Named(sources[0].path.stem, str(path), schedule, keys.head_dims, keys.summary, sources)


def _with_bases(file: YamlFile) -> tuple[YamlFile, ...]:
    """Returns the file, its base, the base of that base, and so on, or raises InputError for a base that cannot be."""
    sources = [file]
    while "base" in sources[-1].fields:
        last = sources[-1]
        where = f"{last.path}:{last.line(('base',))}: base: "
        path = _base_path(last, where)
        if path.resolve() in [source.path.resolve() for source in sources]:
            chain = " -> ".join(str(source.path) for source in sources)
            raise InputError(f"{where}a file cannot be its own base: {chain} -> {path}")
        if len(sources) > MOST_BASES:
            raise InputError(f"{where}more than {MOST_BASES} bases, one behind the other, which no schedule needs")
        sources.append(_read(path, yaml_text.stamp(path)))
    return tuple(sources)


# The same few files are the base of many.
@functools.lru_cache(maxsize=32)
def _read(path: Path, as_of: Stamp | None) -> YamlFile:
    return yaml_text.read(path)


def _base_path(file: YamlFile, where: str) -> Path:
    text = file.fields["base"]
    if not isinstance(text, str) or not text:
        has_none = ": base has no default, remove the line where there is none" if text is None else ""
        raise InputError(f"{where}expected a schedule's name or a file, such as best, found {shown(text)}{has_none}")
    if not text.endswith(catalogue.SUFFIXES):
        path = catalogue.path_of(text) or catalogue.in_a_folder(text)
        if path is None:
            raise InputError(f"{where}{catalogue.unknown(text, file.path.parent)}")
        return path
    path = file.path.parent / text
    if not os.path.isfile(path):
        name = os.path.splitext(os.path.basename(text))[0]
        guess = f": did you mean `base: {name}`?" if catalogue.path_of(name) else ""
        raise InputError(f"{where}{path} is no file, expected one relative to {file.path}, or a schedule's name{guess}")
    return path


def _merged(sources: tuple[YamlFile, ...]) -> dict[str, Any]:
    """Returns the keys of the last base, changed by each file before it, without keys about a file like `summary`."""
    keys = [{k: v for k, v in source.fields.items() if k not in FILE_KEYS} for source in sources]
    return functools.reduce(lambda base, own: _merge(base, own, Schedule), reversed(keys), {})


def _merge(base: dict[str, Any], changes: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        field = model.model_fields.get(key)
        if value is None and field is not None and not field.is_required():
            merged.pop(key, None)
        elif isinstance(value, dict) and field is not None and (inner := model_of(field.annotation)) is not None:
            below = merged.get(key)
            merged[key] = _merge(below if isinstance(below, dict) else {}, value, inner)
        else:
            merged[key] = value
    return merged
