"""This module finds the schedule that a text means: a name that ships, a file, a configuration's notation, or a label.

A second call with the same text takes a few microseconds: the result is kept until one of its files, bases included,
changes.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from tl_attention.errors import InputError
from tl_attention.schedule.configuration import parse, schedule_of
from tl_attention.schedule.files import catalogue
from tl_attention.schedule.files.catalogue import SUFFIX, SUFFIXES
from tl_attention.schedule.files.schedule_file import LABEL, load_file
from tl_attention.schedule.files.schedule_file import Named as Named
from tl_attention.schedule.files.yaml_text import stamp
from tl_attention.schedule.schedule import Schedule

NOTATION = "("
MOST_KEPT = 1024


_kept: dict[str, Named] = {}


def resolve(what: str | Path) -> Named:
    """Returns the Named schedule that a text gives by a shipped name, a file, a configuration's notation or a label.

    A name that ships comes first, whatever the current folder holds. Text that ends in .yaml or .yml, or that is the
    path of a file, is read. Other text that begins with ( is the notation of a configuration. The last part of a name
    in a folder of the catalogue is enough if no other name has it. Raises InputError that says where the mistake is,
    or which names come closest.
    """
    text = what if isinstance(what, str) else os.fspath(what)
    kept = _kept.get(text)
    if kept is None or any(stamp(source.path) != source.stamp for source in kept.sources):
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        kept = _kept[text] = _resolved(text)
    return kept


def resolve_forward(what: str | Path) -> Named:
    """Returns the Named schedule of the forward that a text gives, as `resolve` does; InputError for another loop's."""
    named = resolve(what)
    named.refuse_other_loop()
    return named


def load(what: str | Path) -> Schedule:
    """Reads the schedule of a name, a file, a label or a notation, for `attention(..., schedule=...)`.

    It is exported as `tl_attention.load_schedule`.

    A file is read again only after it, or a file that it names as its base, has changed.

    Args:
        what: the name of a schedule that ships (`tl-attention list` shows them), the path of a file NAME.yaml or
            NAME.yml, a label as `Schedule.label` gives it, or the notation of a configuration, which begins with "(".
            A name that ships goes before a file of the same name.

    Returns: the Schedule. Its keys obey every rule between keys; whether it is safe and fits the GPU is checked when
        `attention` first uses it.
    Raises: InputError (a ValueError) with a line for each mistake, which names the file and the line, or with the names
        that come closest.
    """
    return resolve(what).schedule


def expand(text: str) -> list[str]:
    """Returns the sorted files of a folder, or names in a folder of the catalogue, and for any other text [text].

    A shipped name goes before a folder of the same name. Raises InputError for a folder without schedules.
    """
    # No text, which an unset variable of a shell gives, is not the catalogue's top.
    if text and catalogue.path_of(text) is None:
        if os.path.isdir(text):
            files = sorted(str(path) for path in Path(text).glob(f"*{SUFFIX}"))
            if not files:
                raise InputError(f"{text}: a folder without schedules, expected files *{SUFFIX} in it")
            return files
        if under := catalogue.names(text.strip("/")):
            return under
    return [text]


def _resolved(text: str) -> Named:
    path = catalogue.path_of(text)
    if path is not None:
        return replace(load_file(path), name=text, text=text)
    if os.path.isdir(text) or (not text.endswith(SUFFIXES) and text and catalogue.names(text.strip("/"))):
        raise InputError(f"{text}: a folder of schedules, expected one of them, such as {expand(text)[0]}")
    if text.endswith(SUFFIXES) or os.path.exists(text):
        name = text.rpartition(".")[0]
        if catalogue.path_of(name) and not os.path.lexists(text):
            raise InputError(f"no file {text} is here: did you mean {name}, which ships?")
        return load_file(text)
    if text.startswith(NOTATION):
        configuration = parse(text)
        return Named(text, text, schedule_of(configuration), (configuration.head_dim,))
    if LABEL.match(text):
        return Named(text, text, Schedule.from_label(text))
    path = catalogue.in_a_folder(text)
    if path is None:
        raise catalogue.unknown(text)
    return replace(load_file(path), name=text, text=text)
