"""A picture, and the paper that it is drawn on: 900 pixels wide, a title, what is shown, the drawing, where and when it was measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from PIL import Image

from pictures.style import NORMAL, PAPER, QUIET, SMALL, TITLE, styled
from tl_attention.measure.records import Measured

# Pixels of which 96 are an inch, as in SVG and CSS: a point is 4/3 of one.
WIDTH, MARGIN, INCH, POINT = 900, 16, 96, 4 / 3
# Of a line of text, in its size.
LEADING = 1.35
# Of the PNG, to one of the SVG.
PNG_SCALE, PNG_COLOURS = 1.5, 128
UNDATED = {"Date": None, "Creator": None, "Format": None, "Type": None}
Draw = Callable[[Path], Figure]


@dataclass(frozen=True)
class Picture:
    """`records` are files in results/ without which there is no picture; `draw` takes the folder that they are in."""

    name: str
    records: tuple[str, ...]
    draw: Draw

    def missing(self, results: Path) -> list[str]:
        """The records that are not there."""
        return [name for name in self.records if not (results / name).exists()]

    def drawn(self, results: Path) -> Figure:
        """The figure, in the style of all of them whatever the machine's settings are."""
        with styled():
            return self.draw(results)


class Sheet:
    """Places are pixels from the left and from the top; `top` is where the drawing begins, `height` its own.

    Made in the context of `styled`, which gives the fonts.
    """

    def __init__(self, title: str, about: str, foot: str, height: float):
        heads, tails = wrapped(about, NORMAL, _INSIDE), wrapped(foot, SMALL, _INSIDE)
        self.top = MARGIN + line_height(TITLE) + len(heads) * line_height(NORMAL) + 10
        self.height = height
        self.total = round(self.top + height + 12 + len(tails) * line_height(SMALL) + MARGIN - 6)
        self.figure = Figure(figsize=(WIDTH / INCH, self.total / INCH), dpi=INCH, facecolor=PAPER)
        self.text(MARGIN, MARGIN, title, size=TITLE, weight="bold")
        self.lines(MARGIN, MARGIN + line_height(TITLE) + 4, heads)
        self.lines(MARGIN, self.top + height + 12, tails, size=SMALL, color=QUIET)

    def axes(self, left: float, top: float, width: float, height: float, **options: Any) -> Axes:
        """Axes whose frame is there; `top` from that of the drawing."""
        down = self.top + top + height
        return self.figure.add_axes(
            (left / WIDTH, 1 - down / self.total, width / WIDTH, height / self.total), **options
        )

    def text(self, left: float, top: float, text: str, size: float = NORMAL, **options: Any) -> None:
        """One line whose upper edge is there; `top` from that of the sheet."""
        options = {"va": "top", **options}
        self.figure.text(left / WIDTH, 1 - top / self.total, text, fontsize=size, **options)

    def lines(self, left: float, top: float, lines: Sequence[str], size: float = NORMAL, **options: Any) -> None:
        """Lines below each other."""
        for number, line in enumerate(lines):
            self.text(left, top + number * line_height(size), line, size, **options)

    def legend(self, top: float, handles: Sequence[Artist]) -> None:
        """What lines and marks are, in one line from the left; `top` from that of the drawing."""
        at = (MARGIN / WIDTH, 1 - (self.top + top) / self.total)
        self.figure.legend(
            handles=list(handles), loc="upper left", bbox_to_anchor=at, ncols=len(handles), borderaxespad=0, borderpad=0
        )


def line_height(size: float) -> float:
    """Pixels from a line of text to the next."""
    return size * POINT * LEADING


_INSIDE = WIDTH - 2 * MARGIN


def width_of(text: str, size: float, weight: str = "normal") -> float:
    """Pixels of a line of text."""
    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, False)
    return float(width) * POINT


def wrapped(text: str, size: float, width: float, weight: str = "normal") -> list[str]:
    """Lines that are no wider, as long as no word is."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and width_of(longer, size, weight) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Writes NAME.svg and NAME.png, without dates and versions, and says where."""
    svg, png = folder / f"{name}.svg", folder / f"{name}.png"
    svg.write_text(svg_of(figure))
    with styled():
        drawn = Image.open(_saved(figure, "png", dpi=INCH * PNG_SCALE)).convert("RGB")
    # By the others of Pillow's methods colours of small areas turn grey.
    drawn.quantize(PNG_COLOURS, Image.Quantize.MAXCOVERAGE).save(png, optimize=True)
    return [svg, png]


def svg_of(figure: Figure) -> str:
    """The text of an SVG, the same on each machine."""
    with styled():
        return _short(_saved(figure, "svg", metadata=UNDATED).getvalue().decode())


def _saved(figure: Figure, kind: str, **options: Any) -> BytesIO:
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, **options)
    return buffer


def _short(svg: str) -> str:
    """Places to a hundredth of a point, which no eye and no other machine's last digit tells apart; no indentation, and
    short names of letters, which are most of a picture."""
    rounded = re.sub(r"scale\([^)]*\)|-?\d+\.\d{3,}", lambda found: _rounded(found[0]), svg)
    return re.sub(r"\n\s+", "\n", rounded).replace("DejaVuSans-", "g")


def _rounded(number: str) -> str:
    return number if number.startswith("scale") else f"{float(number):.2f}".rstrip("0").rstrip(".")


def measured(rows: Iterable[Measured], *records: str) -> str:
    """Where, when and in which records, if they are named: the first words of a foot."""
    found = [row for row in rows if row.device]
    devices = " and one ".join(sorted({f"{row.device}" for row in found}))
    limits = sorted({row.power_limit_w for row in found if row.power_limit_w})
    limit = f" ({' and '.join(f'{watts:.0f} W' for watts in limits)})" if limits else ""
    days = sorted({row.run[:10] for row in found})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    where = f"; {', '.join(f'results/{name}' for name in records)}" if records else ""
    return f"Measured on one {devices}{limit}, {when}{where}."
