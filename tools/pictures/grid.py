"""Draws our speed as a part of each peer's, cell by cell, as heat maps around 1.00."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle
from pages.cells import CARDS, divided, length, read, record

from pictures.panels import Key, by_panel, problem, words
from pictures.sheet import MARGIN, WIDTH, Draw, Sheet, measured
from pictures.style import NAMES, NORMAL, PAPER, SMALL, TEXT, ink_on
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.cell_records import CellRow

FASTEST = "the fastest peer"
# Speeds between the classes of colours: orange is slower, blue faster, and further from 1 is darker.
BOUNDS = (0.90, 0.95, 0.98, 0.995, 1.005, 1.02, 1.05, 1.10, 1.20, 1.50)
COLOURS = (
    "#8c3a04", "#c8641b", "#eb9c58", "#f8d3ae", "#f5f5f5", "#d9e6f2", "#aecbe4", "#7aa9d0", "#4580b4", "#205c92", "#0b2f57",
)  # fmt: skip
# Pixels.
CELL, NAMED, LEGEND, BETWEEN, LABELS = 24, 40, 48, 26, 172
ABOUT = (
    "Each value is the speed of tl-attention divided by that of a peer: above 1 tl-attention is faster. It is the median ratio "
    "of {rounds} paired rounds, at {problem}; a column is a number of queries and keys. Above each map are the geometric mean, "
    "the lowest and the highest value. A black corner marks a value below 1. FlashAttention-3's wheel has no fp16."
)


def draw(name: str, results: Path) -> Figure:
    """Draws the picture of a card's record, which lies in a folder."""
    return figure(read(results / name), name)


def figure(rows: Sequence[CellRow], record: str) -> Figure:
    """Draws the picture of some cells: a map for the fastest peer, and one for each peer."""
    rows = divided(rows)[0]
    series = by_panel(rows)
    lengths = sorted({row.shape.seq_kv for row in rows})
    peers = [name for name in NAMES if name != OURS and any(row.entry(name) for row in rows)]
    maps = [FASTEST, *peers]
    high = NAMED + len(series) * CELL + 22
    about = ABOUT.format(problem=problem(rows), rounds=len(rows[0].ours.rounds_ms))
    total = LEGEND + math.ceil(len(maps) / 2) * high
    sheet = Sheet("Speed of tl-attention beside its peers", about, measured(rows, record), total)
    legend(sheet)
    width = (WIDTH - 2 * MARGIN - LABELS - BETWEEN) / 2
    for number, name in enumerate(maps):
        line, column = divmod(number, 2)
        left = MARGIN + LABELS + column * (width + BETWEEN)
        axes = sheet.axes(left, LEGEND + line * high + NAMED, width, len(series) * CELL)
        found = {key: [speed(row, name) for row in _by_length(cells, lengths)] for key, cells in series.items()}
        heat_map(axes, found, lengths, labelled=column == 0)
        axes.set_title(
            heading(name, [value for values in found.values() for value in values if value]), loc="left", pad=20
        )
    return sheet.figure


def _by_length(cells: Sequence[CellRow], lengths: Sequence[int]) -> list[CellRow | None]:
    by_length = {row.shape.seq_kv: row for row in cells}
    return [by_length.get(seq) for seq in lengths]


def speed(row: CellRow | None, peer: str) -> float | None:
    """Returns our speed in one cell, against one peer or the fastest peer that was timed there."""
    if row is None:
        return None
    peers = [name for name in NAMES if name != OURS] if peer == FASTEST else [peer]
    return min((found.ratio for name in peers if (found := row.speed(OURS, name))), default=None)


def heading(name: str, speeds: Sequence[float]) -> str:
    """Says which peer a map is of, with the mean, the lowest and the highest speed."""
    mean, low, high = geometric_mean(speeds), min(speeds), max(speeds)
    return f"{NAMES.get(name, name)}: mean {mean:.3f}, {low:.3f} to {high:.3f}"


def colour_of(ratio: float) -> str:
    """Returns the colour of a ratio's class."""
    return COLOURS[bisect_right(BOUNDS, ratio)]


def heat_map(axes: Axes, found: dict[Key, list[float | None]], lengths: Sequence[int], labelled: bool) -> None:
    """Draws a line for each series, with each value written on its colour, and "-" where there is none."""
    for line, values in enumerate(found.values()):
        for column, ratio in enumerate(values):
            if ratio is None:
                axes.text(column + 0.5, line + 0.5, "-", ha="center", va="center", fontsize=SMALL)
                continue
            colour = colour_of(ratio)
            axes.add_patch(Rectangle((column, line), 1, 1, facecolor=colour, edgecolor=PAPER, linewidth=1))
            axes.text(
                column + 0.5, line + 0.5, f"{ratio:.3f}", ha="center", va="center", fontsize=SMALL, color=ink_on(colour)
            )
            if f"{ratio:.3f}" < "1.000":
                axes.add_patch(_corner(column, line))
    axes.set_xlim(0, len(lengths))
    axes.set_ylim(len(found), 0)
    axes.set_xticks([column + 0.5 for column in range(len(lengths))], [length(seq) for seq in lengths])
    axes.xaxis.tick_top()
    axes.set_yticks(
        [line + 0.5 for line in range(len(found))], list(map(words, found)) if labelled else [""] * len(found)
    )
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _corner(column: float, line: float, across: float = 0.13, down: float = 0.3) -> Polygon:
    return Polygon([(column, line), (column + across, line), (column, line + down)], facecolor="#000000", linewidth=0)


def legend(sheet: Sheet) -> None:
    """Draws the classes from slower to faster, with their bounds below."""
    box = 46
    axes = sheet.axes(MARGIN + LABELS, 0, len(COLOURS) * box, 14)
    for number, colour in enumerate(COLOURS):
        axes.add_patch(Rectangle((number, 0), 1, 1, facecolor=colour, edgecolor=PAPER, linewidth=1))
        if number < bisect_right(BOUNDS, 0.99) + 1 and BOUNDS[number] < 1:
            axes.add_patch(_corner(number, 0, 0.16, 0.55))
    axes.set_xlim(0, len(COLOURS))
    axes.set_ylim(1, 0)
    axes.set_xticks(range(1, len(COLOURS)), [f"{bound:g}" for bound in BOUNDS])
    axes.set_yticks([])
    axes.tick_params(length=3)
    axes.spines[:].set_visible(False)
    sheet.text(MARGIN, sheet.top - 1, "slower (orange)", size=NORMAL, color=TEXT)
    sheet.text(MARGIN + LABELS + len(COLOURS) * box + 12, sheet.top - 1, "faster (blue)", size=NORMAL, color=TEXT)


PICTURES: dict[str, Draw] = {f"grid-{card}": partial(draw, record("grid", card).name) for card in CARDS}
