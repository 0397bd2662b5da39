"""Draws TFLOPS over the length of the sequence, a panel for each mask, heads and dtype, all peers beside ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pages.cells import divided, length, read, record

from pictures.panels import Key, by_panel, problem, words
from pictures.sheet import MARGIN, WIDTH, Draw, Sheet, measured
from pictures.style import COLOURS, DASHES, MARKERS, NAMES, Style
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.cell_records import CellRow

GRID = record("grid").name

# Pixels.
COLUMNS, PANEL, BETWEEN, LEFT, LEGEND, BELOW = 4, 250, 14, 60, 30, 72
ABOUT = (
    "The rate is that of the two matrix products, in TFLOPS, and does not count what a mask hides. Each mark is the median of "
    "{rounds} rounds, at {problem}. The axis does not begin at 0. FlashAttention-3's wheel has no fp16."
)


def draw(results: Path) -> Figure:
    """Draws the picture of the record in a folder."""
    return figure(read(results / GRID), GRID)


def figure(rows: Sequence[CellRow], record: str) -> Figure:
    """Draws the picture of the cells in groups that have several lengths."""
    rows = divided(rows)[0]
    panels = by_panel(rows)
    lines = math.ceil(len(panels) / COLUMNS)
    about = ABOUT.format(problem=problem(rows), rounds=len(rows[0].ours.rounds_ms))
    height = LEGEND + lines * (PANEL + BELOW)
    sheet = Sheet("Speed by length of the sequence", about, measured(rows, record), height)
    names = [name for name in NAMES if any(row.entry(name) for row in rows)]
    sheet.legend(0, [Line2D([], [], **style(name), label=NAMES[name]) for name in names])
    rates = [entry.tflops for row in rows for name in names if (entry := row.entry(name)) and entry.tflops]
    low, high = 100 * math.floor(min(rates) / 100), 100 * math.ceil(max(rates) / 100)
    width = (WIDTH - LEFT - MARGIN - (COLUMNS - 1) * BETWEEN) / COLUMNS
    for number, (key, cells) in enumerate(panels.items()):
        line, column = divmod(number, COLUMNS)
        top = LEGEND + 20 + line * (PANEL + BELOW)
        axes = sheet.axes(LEFT + column * (width + BETWEEN), top, width, PANEL)
        panel(axes, key, cells, names)
        axes.set_ylim(low, high)
        if column:
            axes.tick_params(labelleft=False)
        else:
            axes.set_ylabel("TFLOPS")
    return sheet.figure


def style(name: str) -> Style:
    """Returns the style of a name's line: our line is the thickest and lowest, so that a line on top of it is seen."""
    ours = name == OURS
    return {
        "color": COLOURS[name],
        "marker": MARKERS[name],
        "linestyle": DASHES[name],
        "linewidth": 3.0 if ours else 1.3,
        "markersize": 7.5 if ours else 4.5,
        "markeredgecolor": "#ffffff",
        "markeredgewidth": 0.5,
        "zorder": 2.0 if ours else 3.0,
    }


def panel(axes: Axes, key: Key, cells: Sequence[CellRow], names: Sequence[str]) -> None:
    """Draws one line for each name that was timed."""
    for name in names:
        timed = [(row.shape.seq_kv, entry.tflops) for row in cells if (entry := row.entry(name)) and entry.tflops]
        if timed:
            axes.plot(*zip(*timed), **style(name))
    lengths = [row.shape.seq_kv for row in cells]
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [length(seq) for seq in lengths], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_xlim(lengths[0] / 1.3, lengths[-1] * 1.3)
    axes.set_title(words(key), loc="left")
    axes.set_xlabel("queries and keys")
    axes.grid(axis="y")


PICTURES: dict[str, Draw] = {"lengths": draw}
