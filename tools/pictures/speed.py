"""Draws speed beside FlashAttention-3 as an SVG: bars in groups by card and kind of problem, a pair for each length."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pages.cells import SHORT, heads_of, length, speeds

from pictures.sheet import MARGIN, WIDTH, Sheet, measured
from pictures.style import NAMES, SMALL, TEXT
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.records import grouped
from tl_attention.problem.mask import CAUSAL

# Pixels: the axes, what is left of them and below, and the lines of words there.
HEIGHT, LEFT, LEGEND, BELOW, LINE = 260, 84, 30, 90, 16
# Of the room of a length: a bar, what is between groups, and how much more is between cards.
BAR, GAP, APART = 0.42, 0.5, 0.6
MASKS = {"no mask": "#4878a8", "causal mask": "#e09040"}
ABOUT = (
    "A bar above 1.0 means that tl-attention is faster than {peer}: at 1.1 it is 1.1 times as fast. Each bar is the median of "
    "{rounds} ratios of times that were measured beside each other in one process, in {dtype}. The batch is {tokens} / length."
)


def drawn(rows: Sequence[CellRow], peer: str = "fa3") -> Figure:
    """Draws the picture; bars begin at 1, which is the peer's speed."""
    rows = [row for row in rows if row.speed(OURS, peer)]
    about = ABOUT.format(
        peer=NAMES[peer],
        rounds=_all(len(row.ours.rounds_ms) for row in rows),
        dtype=_all(SHORT[row.shape.dtype] for row in rows),
        tokens=_all(row.shape.batch * row.shape.seq_kv for row in rows),
    )
    sheet = Sheet(f"Speed of tl-attention beside {NAMES[peer]}", about, measured(rows), LEGEND + HEIGHT + BELOW)
    sheet.legend(0, [Patch(color=colour, label=name) for name, colour in MASKS.items()])
    axes = sheet.axes(LEFT, LEGEND, WIDTH - LEFT - MARGIN, HEIGHT)
    for line, words in enumerate(("length", "head_dim", "heads", "", "card")):
        sheet.text(MARGIN, sheet.top + LEGEND + HEIGHT + 4 + line * LINE, words, SMALL)
    left = GAP / 2
    for device in dict.fromkeys(row.device for row in rows):
        if left > GAP:
            axes.axvline(left + (APART - GAP) / 2, color=TEXT, linewidth=0.8)
            left += APART
        left = of_card(axes, left, [row for row in rows if row.device == device], peer)
    ratios = speeds(rows, peer)
    axes.axhline(1, color=TEXT, linewidth=1.4)
    axes.set_xlim(0, left - GAP / 2)
    axes.set_ylim(min(0.9, math.floor(10 * min(ratios)) / 10), max(1.1, math.ceil(10 * max(ratios)) / 10))
    axes.set_xticks([])
    axes.set_ylabel(f"speed / speed of {NAMES[peer]}")
    axes.grid(axis="y")
    return sheet.figure


def of_card(axes: Axes, left: float, rows: Sequence[CellRow], peer: str) -> float:
    """Draws the groups of one card and its name below them, and says where the next card may begin."""

    def kind(row: CellRow) -> tuple[object, ...]:
        shape = row.shape
        return shape.head_size, shape.heads, shape.heads_kv, shape.asked["softcap"], shape.seq_q == shape.seq_kv

    right = left
    for cells in grouped(rows, kind).values():
        right = group(axes, right, cells, peer) + GAP
    _below(axes, (left + right - GAP) / 2, 4, str(rows[0].device))
    return right


def group(axes: Axes, left: float, cells: Sequence[CellRow], peer: str) -> float:
    """Draws the bars of one group and the words below them, and returns where the group ends."""
    lengths = sorted({row.shape.seq_kv for row in cells})
    for row in cells:
        causal = row.shape.mask == CAUSAL
        at = left + lengths.index(row.shape.seq_kv) + 0.5 + (causal - 0.5) * BAR
        if found := row.speed(OURS, peer):
            axes.bar(at, found.ratio - 1, BAR, 1, color=list(MASKS.values())[causal])
    shape = cells[0].shape
    also = (
        f"softcap {shape.asked['softcap']:g}"
        if shape.asked["softcap"]
        else f"{shape.seq_q} queries" * (shape.seq_q != shape.seq_kv)
    )
    for at, seq in enumerate(lengths):
        _below(axes, left + at + 0.5, 0, length(seq))
    for line, words in enumerate((str(shape.head_size), heads_of(shape), also), 1):
        _below(axes, left + len(lengths) / 2, line, words)
    return left + len(lengths)


def _below(axes: Axes, x: float, line: int, words: str) -> None:
    axes.annotate(
        words, (x, 0), xycoords=axes.get_xaxis_transform(), xytext=(0, -3 - 0.75 * line * LINE), textcoords="offset points",
        ha="center", va="top", fontsize=SMALL,
    )  # fmt: skip


def _all(found: Iterable[object]) -> str:
    return " or ".join(sorted({str(one) for one in found}))
