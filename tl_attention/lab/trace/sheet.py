"""A sheet is drawn on in pixels, of which 96 are an inch, and its bytes are the same each time; y goes down."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path

from tl_attention.lab.files.kinds import PICTURE_TITLE
from tl_attention.lab.trace.colours import COLOURS
from tl_attention.lab.trace.fonts import own_fonts_first

WIDTH, INCH, POINT = 800, 96, 4 / 3
# Of letters, in points: nothing is smaller than SMALL.
TITLE, NORMAL, SMALL = 12.0, 9.0, 8.0
INK, QUIET, GRID, PAPER = "#1a1a1a", "#57606a", "#d0d7de", "#ffffff"
# Letters are drawn as paths of matplotlib's own font, and identifiers hashed with a fixed salt.
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "text.hinting": "none",
    "text.parse_math": False,
    "hatch.linewidth": 0.7,
    "svg.fonttype": "path",
    "svg.hashsalt": "tl-attention",
    "path.simplify": False,
}
# How each format is written: no dates or versions; a PNG has a title, by which it is known, and many pixels.
FORMATS: dict[str, dict[str, Any]] = {
    "svg": {"metadata": {"Date": None, "Creator": None, "Format": None, "Type": None}},
    "png": {"metadata": {"Software": None, "Title": PICTURE_TITLE}, "dpi": 2 * INCH},
}


def styled() -> AbstractContextManager[None]:
    """Returns the context in which sheets are made and saved, whatever a machine's own settings are."""
    own_fonts_first()
    return matplotlib.style.context(["default", STYLE], after_reset=True)


def saved(figure: Figure, kind: str) -> bytes:
    """Returns a figure's bytes in one of FORMATS."""
    buffer = io.BytesIO()
    with styled():
        figure.savefig(buffer, format=kind, **FORMATS[kind])
    return shortened(buffer.getvalue().decode()).encode() if kind == "svg" else buffer.getvalue()


def shortened(svg: str) -> str:
    """Shortens an SVG: no indentation, short names of letters, and places to a hundredth of a point.

    No eye sees less, and another machine's last digit makes no difference. Letters are most of a picture.
    """
    rounded = re.sub(r"scale\([^)]*\)|-?\d+\.\d{3,}", lambda found: _rounded(found[0]), svg)
    return re.sub(r"\n\s+", "\n", rounded).replace("DejaVuSans-", "g")


def _rounded(number: str) -> str:
    return number if number.startswith("scale") else f"{float(number):.2f}".rstrip("0").rstrip(".")


class Look(NamedTuple):
    """A Look is how a box is drawn, and the text in it."""

    face: str
    edge: str
    ink: str
    hatch: str | None = None


def look(kind: str, strong: bool) -> Look:
    """Returns the Look of a box for what a role does, or for a product in flight; one that is not strong is pale.

    A wait is hatched and light in any case, so that the eye sees work.
    """
    colour = COLOURS.get("issue" if kind == "product" else kind, QUIET)
    if kind == "product":
        return Look(tint(colour, 0.5 if strong else 0.85), tint(colour, 0.0 if strong else 0.5), INK)
    if kind == "wait":
        return Look(tint(colour, 0.85 if strong else 0.94), tint(colour, 0.35 if strong else 0.65), colour, "/////")
    return Look(colour, PAPER, PAPER) if strong else Look(tint(colour, 0.6), PAPER, INK)


class Sheet:
    """A Sheet is a figure of this height."""

    def __init__(self, height: float):
        self.figure = Figure(figsize=(WIDTH / INCH, round(height) / INCH), dpi=INCH, facecolor=PAPER)
        FigureCanvasAgg(self.figure)
        self.axes = self.figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(round(height), 0))
        self.axes.axis("off")

    def text(self, x: float, y: float, text: str, size: float = SMALL, **style: Any) -> None:
        """Writes a line of text, whose middle is at this height."""
        style = {"ha": "center", "va": "center", "color": INK, "zorder": 3, **style}
        self.axes.text(x, y, text, fontsize=size, **style)

    def box(self, x: float, y: float, width: float, height: float, look: Look) -> None:
        """Draws a box with this upper left corner."""
        style: Any = {
            "facecolor": look.face,
            "edgecolor": look.edge,
            "hatch": look.hatch,
            "linewidth": 0.6,
            "zorder": 2,
        }
        self.axes.add_patch(Rectangle((x, y), width, height, **style))

    def text_in_box(self, x: float, y: float, text: str, look: Look) -> None:
        """Writes a line of text into a box, and keeps a hatch away from it."""
        paper = {"facecolor": look.face, "edgecolor": "none", "pad": 0.5} if look.hatch else None
        self.text(x, y, text, color=look.ink, bbox=paper)

    def line(self, points: Sequence[tuple[float, float]], color: str, width: float, **style: Any) -> None:
        """Draws a line through these points."""
        style = {"solid_joinstyle": "miter", "solid_capstyle": "butt", "zorder": 1, **style}
        self.axes.plot(*zip(*points), color=color, linewidth=width, **style)


def width_of(text: str, size: float = SMALL, weight: str = "normal") -> float:
    """Returns the width of a line of text."""
    own_fonts_first()
    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, False)
    return float(width) * POINT


def wrapped(text: str, width: float, size: float = SMALL) -> list[str]:
    """Wraps a text into lines that are no wider than this, unless a single word is; no-break spaces stay."""
    lines: list[str] = []
    for word in re.findall("[^ \n]+", text):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and width_of(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def tint(colour: str, white: float) -> str:
    """Returns a colour mixed with so much white, 0 to 1."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in parts)
