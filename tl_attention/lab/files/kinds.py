"""A Kind is what a command writes to a file. Only a file of the same kind, known by how it begins, gives way to it."""

from __future__ import annotations

import re
from dataclasses import dataclass

# So many bytes of a file tell its kind.
HEAD = 64 * 1024


@dataclass(frozen=True)
class Kind:
    """A Kind is a kind of file that commands write."""

    name: str  # with its article
    done: str  # to a file that is there already: "replace", "add to" or "", which is nothing
    begins: re.Pattern[bytes]

    def instead(self) -> str:
        """Returns words for the files that a command may be given to write."""
        return f"a new file{f', or {self.name} to {self.done}' if self.done else ''}"


# A record's line says its problem, or its submission. A killed process may have cut one off, also the only one.
RECORD = Kind(
    "a record",
    "add to",
    re.compile(
        rb'\s*(\{"[^\n]*\n)*?\{[^\n]*("problem": (\{"|"\()|"submission": "[^"\n]*", "sha256")'
        rb'|\{"(name|cell|problem|attention)": ["{][^\n]*[^}\s]\Z'
    ),
)
# It took a GPU to record.
TIMELINE = Kind("a timeline", "", re.compile(rb'\{"form":"tl-attention timeline '))
CHROME = Kind(
    "a Chrome trace of `trace`", "replace", re.compile(rb'\{"traceEvents":\[\{"ph":"M","pid":\d+,"name":"proc')
)
PAGE = Kind(
    "a page of timelines",
    "replace",
    re.compile(
        rb'<!doctype html>\s*<html lang="en">\s*<meta charset="utf-8">\s*<title>Timelines of attention kernels<'
    ),
)
SEARCH_PAGE = Kind(
    "a page of a search", "replace", re.compile(rb"(?s)<!doctype html>.{,200}<title>Search over attention schedules<")
)
FOUND_SCHEDULE = Kind("a schedule that a search has found", "replace", re.compile(rb"# tl-attention search, "))
PICTURE_TITLE = "tl-attention timelines"
# The SVG is matplotlib's, without its indentation.
PICTURE = Kind(
    "a picture of timelines",
    "replace",
    re.compile(
        rb'(?s)<\?xml [^>]*>\s*<!DOCTYPE svg .*?\n<g id="figure_1">|\x89PNG\r\n\x1a\n.{,200}' + PICTURE_TITLE.encode()
    ),
)
SUBMISSION = Kind(
    "a packed submission",
    "replace",
    re.compile(rb"#!POPCORN [^\n]*\n#!POPCORN [^\n]*\n#\n# Made by `tl-attention submit "),
)
MACHINE = Kind("a machine's file", "replace", re.compile(rb"# The numbers of an? [^\n]* for `tl-attention predict`"))
