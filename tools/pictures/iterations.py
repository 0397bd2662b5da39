"""Draws two iterations of a schedule's steady state, in a picture that comes from the Program alone.

Lengths are in pixels, y goes down.
"""

from __future__ import annotations

import io
import textwrap
from itertools import accumulate
from typing import Any

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pictures.steady_state import Iterations, Row
from tl_attention.lab.show.explain import SHOWN_AS, words
from tl_attention.lab.trace.fonts import own_fonts_first
from tl_attention.program.derivation import derive
from tl_attention.program.program import Program, offset
from tl_attention.schedule.files.named import resolve

DRAWN = ("seed", "best")

# Of the picture and its columns; of the rows' lines, what is around them, the head and the foot.
WIDTH, MARGIN, ITERATION, BUFFER, LANE, GAP = 800, 8, 26, 56, 80, 12
LINE, PADDING, HEAD, FOOT = 16, 8, 66, 42
PIXELS_PER_INCH, POINTS_PER_INCH = 96, 72
TEXT, SMALL, LETTERS = 12, 11, 44
# Neighbouring blocks differ in grey too.
SHADES = ("#f9ebb5", "#9cc3e0", "#f7d3c9", "#8fae8b")
INK, FAINT, HATCH = "#1b1b1b", "#6a6a6a", "///"
RINGS = {"load_k": "K", "load_v": "V"}
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "tl-attention",
    "svg.fonttype": "path",
    "hatch.linewidth": 0.5,
    "hatch.color": FAINT,
    "font.family": "DejaVu Sans",
}


class Picture:
    """The picture has two iterations: buffers on the left, the threads' operations, and products on the right."""

    def __init__(self, program: Program) -> None:
        self.program, self.shown = program, Iterations(program)
        self.lines = [_lines(program, row) for row in self.shown.rows]
        self.tops = list(accumulate((LINE * len(lines) + PADDING for lines in self.lines), initial=HEAD))
        x, self.buffers = MARGIN + ITERATION, dict[tuple[str, int], int]()
        for load, count in program.buffers.items():
            self.buffers |= {(load, slot): x + slot * BUFFER for slot in range(count)}
            x += count * BUFFER + GAP
        products = program.table.products
        self.lanes = {name: WIDTH - MARGIN - (len(products) - n) * LANE for n, name in enumerate(products)}
        self.left, self.right = x, min(self.lanes.values()) - GAP
        self.figure = self._figure()

    def _figure(self) -> Figure:
        height = self.tops[-1] + FOOT
        figure = Figure(figsize=(WIDTH / PIXELS_PER_INCH, height / PIXELS_PER_INCH), dpi=PIXELS_PER_INCH)
        FigureCanvasAgg(figure)
        # One unit is one pixel.
        self.axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
        self.axes.axis("off")
        self._heads()
        for number, row in enumerate(self.shown.rows):
            self._row(number, row)
        self._buffers()
        self._products()
        self._foot()
        return figure

    def _heads(self) -> None:
        loader = "filled by a producer warp" if self.program.loads else "filled by the same threads"
        columns = [
            (min(self.buffers.values()), self.left - GAP, "shared memory", loader),
            (self.left, self.right, "the threads that compute", "their operations, in order"),
            (min(self.lanes.values()), WIDTH - MARGIN, "tensor cores", "products in flight"),
        ]
        for left, right, name, what in columns:
            self._text((left + right) / 2, 14, name, weight="bold")
            self._text((left + right) / 2, 32, what, SMALL, color=FAINT)
        for (load, slot), x in self.buffers.items():
            self._text(x + BUFFER / 2, 53, f"{RINGS[load]} {slot}", SMALL)
        for product, x in self.lanes.items():
            self._text(x + LANE / 2, 53, product.upper(), SMALL)

    def _row(self, number: int, row: Row) -> None:
        """Draws what the threads do in a row, and faint lines to the buffer or the product that the row concerns."""
        top, bottom = self.tops[number : number + 2]
        if not number or self.shown.rows[number - 1].iteration != row.iteration:
            self._iteration(row.iteration, top)
        if row.block is not None and row.kind == "run":
            self._box(self.left, top + 1, self.right - self.left, bottom - top - 2, SHADES[row.block % len(SHADES)])
        for n, line in enumerate(self.lines[number]):
            y = top + PADDING / 2 + LINE * (n + 0.5)
            self._text(self.left + 6, y, line, SMALL, family="DejaVu Sans Mono", ha="left")
        statement = row.operations[0].statement
        if row.block is not None and statement in RINGS:
            slot = row.block % self.program.buffers[statement]
            self._link(self.buffers[statement, slot] + BUFFER, self.left, number)
        elif statement in self.lanes:
            self._link(self.right, self.lanes[statement], number)

    def _iteration(self, t: int, top: float) -> None:
        bottom = self.tops[sum(row.iteration <= t for row in self.shown.rows)]
        for y in (top, bottom):
            self.axes.plot((MARGIN, WIDTH - MARGIN), (y, y), color=INK, linewidth=1, zorder=3)
        self._text(MARGIN + 8, (top + bottom) / 2, f"iteration {offset(t)}", rotation=90, weight="bold")

    def _buffers(self) -> None:
        for filled in self.shown.filled:
            x, name = self.buffers[filled.load, filled.slot] + 3, f"{RINGS[filled.load]}({offset(filled.block)})"
            shade = SHADES[filled.block % len(SHADES)]
            for start, end, style in (
                (filled.start, filled.ready, {"color": "white", "hatch": HATCH}),
                (filled.ready, filled.end, {"color": shade}),
            ):
                self._named_box(x, BUFFER - 6, start, end, name, **style)

    def _products(self) -> None:
        for product in self.shown.in_flight:
            x, name = self.lanes[product.product] + 3, f"{product.product.upper()}({offset(product.block)})"
            shade = SHADES[product.block % len(SHADES)]
            self._named_box(x, LANE - 6, product.start, product.end, name, color=shade)

    def _foot(self) -> None:
        """Says what the boxes of the buffers mean."""
        y, keys = self.tops[-1] + 15, (("white", "a KV block is loading"), (SHADES[1], "loaded, until it is released"))
        for n, (color, what) in enumerate(keys):
            x = self.left + n * 150
            self._box(x, y, 22, 14, color, hatch="" if n else HATCH)
            self._text(x + 28, y + 7, what, SMALL, ha="left")
        self._text(MARGIN, y + 7, "Time runs down, not to scale.", SMALL, ha="left", color=FAINT)

    def _named_box(self, x: float, width: float, start: int, end: int, name: str, **style: Any) -> None:
        """Draws a box from the middle of one row to that of another, as far as shown, with a name where it fits."""
        top, bottom = self._y(start), self._y(end)
        if bottom <= top:
            return
        self._box(x, top, width, bottom - top, **style)
        if bottom - top >= LINE:
            paper = {"facecolor": "white", "edgecolor": "none", "pad": 1} if "hatch" in style else None
            self._text(x + width / 2, (top + bottom) / 2, name, SMALL, bbox=paper)

    def _y(self, row: int) -> float:
        """Returns the middle of a row, or the edge behind which the row lies."""
        if not 0 <= row < len(self.shown.rows):
            return self.tops[0] if row < 0 else self.tops[-1]
        return (self.tops[row] + self.tops[row + 1]) / 2

    def _link(self, left: float, right: float, row: int) -> None:
        y = self._y(row)
        self.axes.plot((left, right), (y, y), color=FAINT, linewidth=0.8, linestyle=(0, (2, 2)), zorder=0.5)

    def _box(self, x: float, y: float, width: float, height: float, color: str, hatch: str = "") -> None:
        box = Rectangle((x, y), width, height, facecolor=color, edgecolor=FAINT, linewidth=0.8, hatch=hatch or None)
        self.axes.add_patch(box)

    def _text(self, x: float, y: float, text: str, pixels: float = TEXT, **style: Any) -> None:
        size = pixels * POINTS_PER_INCH / PIXELS_PER_INCH
        self.axes.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": size, "color": INK, **style})


def picture(name: str) -> Picture:
    """Draws the picture of a schedule."""
    return Picture(derive(resolve(name).schedule))


def svg(name: str) -> str:
    """Returns the text of a schedule's SVG, the same each time."""
    file = io.StringIO()
    own_fonts_first()
    with matplotlib.style.context(["default", STYLE]):
        picture(name).figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _lines(program: Program, row: Row) -> list[str]:
    """Returns a row's words, as `explain` shows them, in lines."""
    kind = SHOWN_AS.get(row.kind, row.kind)
    text = f"{kind:8}" + ", ".join(words(program, op) for op in row.operations)
    return textwrap.wrap(text, LETTERS, subsequent_indent=" " * 8)
