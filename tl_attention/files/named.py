"""Finds the schedule that a text means: the name of one that ships, a file, a configuration's notation, or a label.

A second call with the same text takes a few microseconds: the result is kept until one of its files, bases included,
changes.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tl_attention.configurations.as_schedule import schedule_of
from tl_attention.configurations.configuration import parse
from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.files import catalogue
from tl_attention.files.catalogue import SUFFIX, SUFFIXES
from tl_attention.files.schedule_file import ScheduleFile, load_file
from tl_attention.files.yaml_text import stamp
from tl_attention.problem.head_dims import DEFAULT_HEAD_DIMS, HeadSize, is_meant, named_head_dims
from tl_attention.schedule.schedule import Schedule

# The schedules that run where none is asked for, without and with a causal mask.
DEFAULT, DEFAULT_CAUSAL = "best", "best_causal"
LABEL = re.compile(r"[a-z_]+_\d+x\d+_t\d")
NOTATION = "("
MOST_KEPT = 1024


@dataclass(frozen=True)
class Named:
    """A schedule, what it is called in tables, what the user wrote for it, the head sizes that it is meant for, and the
    file; a configuration and a label have none."""

    name: str
    text: str
    schedule: Schedule
    head_dims: tuple[HeadSize, ...] = DEFAULT_HEAD_DIMS
    file: ScheduleFile | None = None

    @property
    def in_words(self) -> str:
        """The name and the file's summary, or what the file changes in its base; nothing for a label."""
        if self.file is None:
            return "" if LABEL.match(self.text) else self.text
        return f"{self.name}: {self.file.summary or self.file.changes or 'its file has no summary'}"

    @property
    def meant_for(self) -> str:
        """The head sizes in words."""
        return f"is meant for {named_head_dims(self.head_dims)}"

    def refuse_unmeant(self, size: HeadSize) -> None:
        """Raise InputError for a head size that it is not meant for."""
        if is_meant(size, self.head_dims):
            return
        words = f"it {self.meant_for}, not {size}"
        if self.file:
            raise InputError(self.file.blamed(("head_dims",), words, "refused: "))
        raise InputError(f"{self.text}: refused: {words}")

    def refused(self, refusal: ScheduleRefused) -> InputError:
        """The refusal with the file and the line to blame, or with what was written."""
        if self.file:
            return InputError(self.file.blamed(refusal.key, str(refusal), "refused: ", refusal.others))
        return InputError(f"{self.text}: refused: {refusal}")


_kept: dict[str, Named] = {}


def resolve(what: str | Path) -> Named:
    """Find the schedule with this name, in this file, of this configuration or with this label.

    A name that ships comes first, whatever the current folder holds. Text that ends in .yaml or .yml, or that is the path
    of a file, is read. Other text that begins with ( is the notation of a configuration. Raises InputError that says where
    the mistake is, or which names come closest.
    """
    text = what if isinstance(what, str) else os.fspath(what)
    kept = _kept.get(text)
    if kept is None or not _is_current(kept):
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        kept = _kept[text] = _resolved(text)
    return kept


def load(what: str | Path) -> Schedule:
    """Read a schedule, for `attention(..., schedule=...)`. It is exported as `tl_attention.load_schedule`.

    A file is read again only after it, or a file that it names as its base, has changed.

    Args:
        what: the name of a schedule that ships (`tl-attention list` shows them), the path of a file NAME.yaml or NAME.yml,
            a label as `Schedule.label` gives it, or the notation of a configuration, which begins with "(". A name that
            ships goes before a file of the same name.

    Returns: the Schedule. Its keys obey every rule between keys; whether it is safe and fits the GPU is checked when
        `attention` first uses it.
    Raises: InputError (a ValueError) with a line for each mistake, which names the file and the line, or with the names
        that come closest.
    """
    return resolve(what).schedule


def expand(text: str) -> list[str]:
    """The schedules of a folder or of a part of the catalogue, such as `experiments`, sorted; else the text itself."""
    # No text, which an unset variable of a shell gives, is not the catalogue's top.
    if text and catalogue.path_of(text) is None:
        if os.path.isdir(text):
            found = sorted(str(path) for path in Path(text).glob(f"*{SUFFIX}"))
            if not found:
                raise InputError(f"{text}: a folder without schedules, expected files *{SUFFIX} in it")
            return found
        if under := catalogue.names(text.strip("/")):
            return under
    return [text]


def _is_current(named: Named) -> bool:
    return named.file is None or all(stamp(source.path) == source.stamp for source in named.file.sources)


def _resolved(text: str) -> Named:
    path = catalogue.path_of(text)
    if path is not None:
        file = load_file(path)
        return Named(text, text, file.schedule, file.head_dims, file)
    if os.path.isdir(text) or (not text.endswith(SUFFIXES) and text and catalogue.names(text.strip("/"))):
        raise InputError(f"{text}: a folder of schedules, expected one of them, such as {expand(text)[0]}")
    if text.endswith(SUFFIXES) or os.path.exists(text):
        file = load_file(text)
        return Named(file.path.stem, text, file.schedule, file.head_dims, file)
    if text.startswith(NOTATION):
        configuration = parse(text)
        return Named(text, text, schedule_of(configuration), (configuration.head_dim,))
    if LABEL.match(text):
        return Named(text, text, Schedule.from_label(text))
    raise catalogue.unknown(text)
