"""Each schedule that ships has a name: its path under schedules/ without suffix, such as `experiments/sections`."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from tl_attention import shipped
from tl_attention.errors import InputError, printable

SUFFIX = ".yaml"
SUFFIXES = (SUFFIX, ".yml")
# No part of a name is `..`: nothing outside of schedules/ has a name.
NAME = re.compile(r"[\w+-][\w.+-]*(/[\w+-][\w.+-]*)*")
MOST_SUGGESTED = 3


def names(under: str = "") -> list[str]:
    """Returns the sorted names of the schedules directly in a folder of schedules/, [] if there is no such folder."""
    folder = _root() / under
    if under and not (NAME.fullmatch(under) and os.path.isdir(folder)):
        return []
    return sorted(f"{under}/{path.stem}" if under else path.stem for path in folder.glob(f"*{SUFFIX}"))


def folders() -> list[str]:
    """Returns the sorted paths of the folders below schedules/ that hold schedules, such as `experiments`."""
    below = {path.parent.relative_to(_root()).as_posix() for path in _root().rglob(f"*{SUFFIX}")}
    return sorted(below - {"."})


def all_names() -> list[str]:
    """Returns the names of all schedules that ship, first those at the top of schedules/, then those of each folder."""
    return [name for under in ("", *folders()) for name in names(under)]


def path_of(name: str) -> Path | None:
    """Returns the path of the file of the shipped schedule of this name, or None if no such schedule ships."""
    path = _root() / f"{name}{SUFFIX}"
    return path if NAME.fullmatch(name) and os.path.isfile(path) else None


def in_a_folder(last: str) -> Path | None:
    """Returns the path of the one schedule in folders whose name ends in this part; None for none, or several."""
    matches = [name for name in all_names() if _last(name) == last]
    return path_of(matches[0]) if len(matches) == 1 else None


def unknown(text: str, folder: Path = Path()) -> InputError:
    """Returns an InputError that no schedule has this name, with the file or the names that may be meant instead.

    The file is one in `folder` that has this name but for its suffix. Without it the closest names are suggested.
    """
    message = f"no schedule is named {text[:60]!r}"
    if file := next(
        (f"{text}{suffix}" for suffix in SUFFIXES if text and os.path.isfile(folder / f"{text}{suffix}")), ""
    ):
        return InputError(f"{message}: did you mean the file {printable(file)}?")
    close = closest(text)
    if not close:
        return InputError(f"{message}, expected a name that `tl-attention list` shows, a file NAME{SUFFIX} or a label")
    every = " --all" if any("/" in name for name in close) else ""
    return InputError(f"{message}: did you mean {' or '.join(close)}? `tl-attention list{every}` shows all")


def closest(text: str) -> list[str]:
    """Returns up to 3 shipped names whose last part is the text's, else up to 3 whose last part is spelled like it."""
    last, known = _last(text), all_names()
    close = difflib.get_close_matches(last, {_last(name): None for name in known}, n=MOST_SUGGESTED, cutoff=0.7)
    parts = [last] if last in close else close
    return [name for part in parts for name in known if _last(name) == part][:MOST_SUGGESTED]


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _root() -> Path:
    return shipped.folder("schedules")
