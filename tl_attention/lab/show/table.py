"""This module lays tables out as lines of text, with the columns that fit a width, and in Markdown.

It breaks no word, but a long configuration's name behind a +.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple

from rich.cells import cell_len

from tl_attention.errors import printable

GAP = "  "
HEADING_LINES = 2
# A longer cell stands in several lines; they end behind a space or a +.
LONG_CELL = 44
_PIECE = re.compile(r"[^ +]*[ +]|[^ +]+")


def number(value: float | None, digits: int = 0, scale: float = 1.0) -> str:
    """Returns a number divided by `scale` as text with so many decimals, "" for None."""
    return "" if value is None else f"{value / scale:.{digits}f}"


class Column(NamedTuple):
    """A column of a table shows one thing of each row."""

    heading: str
    cell: Callable[[Any], str]  # returns a row's cell as text
    rank: int = 0  # A narrow terminal keeps low ranks first.


@dataclass(frozen=True)
class Table:
    """A table has a title, headings, and rows whose cells are text."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    priority: tuple[int, ...]  # the columns in the order in which a narrow terminal keeps them

    @classmethod
    def of(cls, title: str, columns: Sequence[Column], rows: Iterable[Any]) -> Table:
        """Makes a table with a line for each row, in which each column's function makes a cell of the row."""
        priority = sorted(range(len(columns)), key=lambda n: columns[n].rank)
        cells = [tuple(column.cell(row) for column in columns) for row in rows]
        return cls(title, tuple(column.heading for column in columns), cells, tuple(priority))

    @classmethod
    def plain(cls, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
        """Makes a table of headings and of rows whose cells are text already.

        A narrow terminal keeps the first columns.
        """
        return cls(title, tuple(headings), [tuple(row) for row in rows], tuple(range(len(headings))))

    def picked(self, columns: Sequence[int]) -> Table:
        """Returns the table with only the columns of these indices, in this order."""
        headings = tuple(self.headings[n] for n in columns)
        return replace(self, headings=headings, rows=[tuple(row[n] for n in columns) for row in self.rows])

    def fitting(self, width: int) -> tuple[list[int], list[int]]:
        """Returns indices of the non-empty columns that fit into `width` together, by priority, and of the others.

        Both lists are in order. Columns without a value in any row are in neither; `width` is in characters. A column
        that does not fit does not keep a narrower one behind it out. The first column fits whatever its width.
        """
        full = [index for index in self.priority if any(row[index] for row in self.rows)]
        shown: list[int] = []
        for index in full:
            wanted = [*shown, index]
            widths = (_width(self.headings[n], [row[n] for row in self.rows]) for n in wanted)
            if sum(widths) + len(GAP) * len(shown) <= width or not shown:
                shown = wanted
        return sorted(shown), sorted(set(full) - set(shown))

    def lines(self) -> list[str]:
        """Returns the table as lines of text."""
        return lines(self.headings, self.rows)

    def markdown(self) -> str:
        """Returns the table in Markdown, without the title."""
        return markdown(self.headings, self.rows)

    def section(self) -> str:
        """Returns the table in Markdown, with the title above it."""
        return f"{printable(self.title)}\n\n{self.markdown()}\n"


def lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a table as lines of text, with headings in up to two lines, a rule and the rows.

    Each row has as many lines as its cells need.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [_width(heading, [row[n] for row in rows]) for n, heading in enumerate(headings)]
    wrapped = [_wrapped(heading, width) for heading, width in zip(headings, widths)]
    height = max(map(len, wrapped), default=0)
    above = zip(*([""] * (height - len(words)) + words for words in wrapped))
    rule = ["-" * width for width in widths]
    return [
        GAP.join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths)).rstrip()
        for row in [*above, rule, *(line for row in rows for line in zip_longest(*map(_cell_lines, row), fillvalue=""))]
    ]


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns headings and rows as a table in Markdown."""

    def line(cells: Sequence[str]) -> str:
        # A bar in a name would start a cell of its own.
        return "| " + " | ".join(printable(cell).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(headings), "|" + " --- |" * len(headings), *map(line, rows)])


def _cell_lines(cell: str) -> list[str]:
    found = [""]
    for piece in _PIECE.findall(cell) if cell_len(cell) > LONG_CELL else [cell]:
        if found[-1] and cell_len(found[-1] + piece) > LONG_CELL:
            found.append("")
        found[-1] += piece
    return found


def _width(heading: str, cells: Sequence[str]) -> int:
    """Returns a column's width, the larger of its longest line and what its heading needs to fit in two lines."""
    words = heading.split()
    least = max(map(len, words), default=0)
    while len(_wrapped(heading, least)) > HEADING_LINES:
        least += 1
    return max(least, *(cell_len(line) for cell in cells for line in _cell_lines(printable(cell)))) if cells else least


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False)
