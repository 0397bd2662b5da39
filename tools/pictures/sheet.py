"""A picture is drawn on a sheet, which is 900 pixels wide.

A sheet has a title, what is shown, the drawing, and where and when it was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pictures.style import NORMAL, PAPER, QUIET, SMALL, TITLE, styled
from tl_attention.lab.measure.records import Measured
from tl_attention.lab.trace.sheet import INCH, POINT, shortened, wrapped

# Pixels, of which INCH are an inch, as in SVG and CSS; a point is POINT of them.
WIDTH, MARGIN = 900, 16
# The height of a line of text, divided by the size of its letters.
LEADING = 1.35
UNDATED = {"Date": None, "Creator": None, "Format": None, "Type": None}
# Draws a picture of records, which lie in a folder.
Draw = Callable[[Path], Figure]


def drawn(draw: Draw, results: Path) -> Figure:
    """Draws a picture of the records in a folder, in the style of all pictures, whatever the machine's settings are."""
    with styled():
        return draw(results)


class Sheet:
    """A sheet counts places in pixels from the left and from the top.

    `top` is where the drawing begins, and `height` is the drawing's height.

    A sheet is made in the context of `styled`, which gives the fonts.
    """

    def __init__(self, title: str, about: str, foot: str, height: float):
        heads, tails = wrapped(about, _INSIDE, NORMAL), wrapped(foot, _INSIDE, SMALL)
        self.top = MARGIN + line_height(TITLE) + len(heads) * line_height(NORMAL) + 10
        self.height = height
        self.total = round(self.top + height + 12 + len(tails) * line_height(SMALL) + MARGIN - 6)
        self.figure = Figure(figsize=(WIDTH / INCH, self.total / INCH), dpi=INCH, facecolor=PAPER)
        self.text(MARGIN, MARGIN, title, size=TITLE, weight="bold")
        self.lines(MARGIN, MARGIN + line_height(TITLE) + 4, heads)
        self.lines(MARGIN, self.top + height + 12, tails, size=SMALL, color=QUIET)

    def axes(self, left: float, top: float, width: float, height: float, **options: Any) -> Axes:
        """Adds axes with their frame at this place; `top` counts from the top of the drawing."""
        down = self.top + top + height
        return self.figure.add_axes(
            (left / WIDTH, 1 - down / self.total, width / WIDTH, height / self.total), **options
        )

    def text(self, left: float, top: float, text: str, size: float = NORMAL, **options: Any) -> None:
        """Writes one line with its upper edge at this place; `top` counts from the top of the sheet."""
        options = {"va": "top", **options}
        self.figure.text(left / WIDTH, 1 - top / self.total, text, fontsize=size, **options)

    def lines(self, left: float, top: float, lines: Sequence[str], size: float = NORMAL, **options: Any) -> None:
        """Writes lines below each other; `top` counts from the top of the sheet."""
        for number, line in enumerate(lines):
            self.text(left, top + number * line_height(size), line, size, **options)

    def legend(self, top: float, handles: Sequence[Artist]) -> None:
        """Says what lines and marks are, in one line from the left; `top` counts from the top of the drawing."""
        at = (MARGIN / WIDTH, 1 - (self.top + top) / self.total)
        self.figure.legend(
            handles=list(handles), loc="upper left", bbox_to_anchor=at, ncols=len(handles), borderaxespad=0, borderpad=0
        )


def line_height(size: float) -> float:
    """Returns the pixels from a line of text to the next."""
    return size * POINT * LEADING


_INSIDE = WIDTH - 2 * MARGIN


def svg_of(figure: Figure) -> str:
    """Returns the text of a figure's SVG, without dates and versions: the same on each machine."""
    buffer = BytesIO()
    with styled():
        figure.savefig(buffer, format="svg", metadata=UNDATED)
    return shortened(buffer.getvalue().decode())


def measured(rows: Iterable[Measured], *records: str) -> str:
    """Says where, when and in which records, if they are named, a picture was measured: the first words of a foot."""
    found = [row for row in rows if row.device]
    devices = " and one ".join(sorted({f"{row.device}" for row in found}))
    limits = sorted({row.power_limit_w for row in found if row.power_limit_w})
    limit = f" ({' and '.join(f'{watts:.0f} W' for watts in limits)})" if limits else ""
    days = sorted({row.run[:10] for row in found})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    where = f"; {', '.join(f'results/{name}' for name in records)}" if records else ""
    return f"Measured on one {devices}{limit}, {when}{where}."
