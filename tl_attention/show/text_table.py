"""Tables as lines of text, of the columns that fit a width, and in Markdown. No word is ever broken, but a configuration
behind a +, where its name is long."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.cells import cell_len

from tl_attention.errors import printable

GAP = "  "
HEADING_LINES = 2
# A longer cell stands in several lines; they end behind a space or a +.
LONG_CELL = 44
_PIECE = re.compile(r"[^ +]*[ +]|[^ +]+")


def fitting(
    headings: Sequence[str], rows: Sequence[Sequence[str]], priority: Sequence[int], width: int
) -> tuple[list[int], list[int]]:
    """(columns that fit into `width` characters, columns that say something and do not), as indices in order.

    Columns without a value in any row are in neither. The others are taken by `priority`, and one that does not fit
    does not keep a narrower one behind it out. The first fits whatever its width.
    """
    full = [index for index in priority if any(row[index] for row in rows)]
    shown: list[int] = []
    for index in full:
        wanted = [*shown, index]
        taken = sum(_width(headings[n], [row[n] for row in rows]) for n in wanted) + len(GAP) * len(shown)
        if taken <= width or not shown:
            shown = wanted
    return sorted(shown), sorted(set(full) - set(shown))


def lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The table: headings in up to two lines or more, a rule, the rows, each in as many lines as its cells need."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [_width(heading, [row[n] for row in rows]) for n, heading in enumerate(headings)]
    wrapped = [_wrapped(heading, width) for heading, width in zip(headings, widths)]
    height = max(map(len, wrapped), default=0)
    above = zip(*([""] * (height - len(words)) + words for words in wrapped))
    rule = ["-" * width for width in widths]
    return [
        GAP.join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths)).rstrip()
        for row in [*above, rule, *(line for row in rows for line in _row_lines(row))]
    ]


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table in Markdown."""
    return "\n".join([_markdown_line(headings), "|" + " --- |" * len(headings), *map(_markdown_line, rows)])


def _markdown_line(cells: Sequence[str]) -> str:
    # A bar in a name would start a cell of its own.
    return "| " + " | ".join(printable(cell).replace("|", "\\|") for cell in cells) + " |"


def _row_lines(row: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return zip_longest(*map(_cell_lines, row), fillvalue="")


def _cell_lines(cell: str) -> list[str]:
    found = [""]
    for piece in _PIECE.findall(cell) if cell_len(cell) > LONG_CELL else [cell]:
        if found[-1] and cell_len(found[-1] + piece) > LONG_CELL:
            found.append("")
        found[-1] += piece
    return found


def _width(heading: str, cells: Sequence[str]) -> int:
    """Of a column: that of its longest line, or what its heading needs to stand in two lines."""
    words = heading.split()
    least = max(map(len, words), default=0)
    while len(_wrapped(heading, least)) > HEADING_LINES:
        least += 1
    return max(least, *(cell_len(line) for cell in cells for line in _cell_lines(printable(cell)))) if cells else least


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False)
