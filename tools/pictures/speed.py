"""Draws speed beside FlashAttention-3 as an SVG: one group of bars for each head_dim, a bar for each mask."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import geometric_mean

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pages.cells import SHORT, speeds

from pictures.sheet import MARGIN, WIDTH, Sheet, measured
from pictures.style import NAMES, TEXT
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.records import grouped
from tl_attention.problem.mask import CAUSAL, FULL

# Pixels: the axes, what is left of them and below, and the legend above.
HEIGHT, LEFT, LEGEND, BELOW = 240, 84, 30, 36
# Of the room of a group.
BAR = 0.36
MASKS = {"no mask": "#4878a8", "causal mask": "#e09040"}
ABOUT = (
    "A bar above 1.0 means that tl-attention is faster than {peer}: at 1.1 it is 1.1 times as fast. A bar is the geometric "
    "mean over problems of {lengths} keys, and as many queries; the line goes from the slowest problem to the fastest. Each "
    "problem's speed is the median of {rounds} ratios of times that were measured beside each other in one process, in {dtype}."
)


def drawn(rows: Sequence[CellRow], peer: str = "fa3") -> Figure:
    """Draws the picture of the card with the most head sizes, of whole problems without a softcap; bars begin at 1."""
    of_cards = grouped([row for row in rows if row.speed(OURS, peer) and is_plain(row)], lambda row: row.device)
    rows = max(of_cards.values(), key=lambda rows: len({row.shape.head_dim for row in rows}))
    lengths = sorted({row.shape.seq_kv for row in rows})
    about = ABOUT.format(
        peer=NAMES[peer],
        lengths=f"{lengths[0]:,} to {lengths[-1]:,}",
        rounds=_all(len(row.ours.rounds_ms) for row in rows),
        dtype=_all(SHORT[row.shape.dtype] for row in rows),
    )
    sheet = Sheet(f"Speed of tl-attention vs. {NAMES[peer]}", about, measured(rows), LEGEND + HEIGHT + BELOW)
    sheet.legend(0, [Patch(color=colour, label=name) for name, colour in MASKS.items()])
    axes = sheet.axes(LEFT, LEGEND, WIDTH - LEFT - MARGIN, HEIGHT)
    groups = dict(sorted(grouped(rows, lambda row: row.shape.head_dim).items()))
    for at, found in enumerate(groups.values()):
        for side, (mask, colour) in zip((-0.5, 0.5), zip((FULL, CAUSAL), MASKS.values())):
            ratios = speeds([row for row in found if row.shape.mask == mask], peer)
            x, mean = at + side * BAR, geometric_mean(ratios)
            axes.bar(x, mean - 1, BAR, 1, color=colour)
            axes.plot([x, x], [min(ratios), max(ratios)], color=TEXT, linewidth=1)
            axes.text(x, max(ratios) + 0.006, f"{mean:.2f}", ha="center", va="bottom")
    every = speeds(rows, peer)
    axes.axhline(1, color=TEXT, linewidth=1.4)
    axes.set_ylim(min(0.9, math.floor(20 * min(every)) / 20), max(1.1, math.ceil(20 * max(every)) / 20))
    sizes = [" and ".join(sorted({str(row.shape.head_size) for row in found})) for found in groups.values()]
    names = [f"head_dim {size}\n{len(speeds(of, peer))} problems" for size, of in zip(sizes, groups.values())]
    axes.set_xticks(range(len(groups)), names)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(f"speed / speed of {NAMES[peer]}")
    axes.grid(axis="y")
    return sheet.figure


def is_plain(row: CellRow) -> bool:
    """Says whether a row is of as many queries as keys under one of the MASKS, without a softcap."""
    shape = row.shape
    return shape.seq_q == shape.seq_kv and shape.mask in (FULL, CAUSAL) and not shape.asked["softcap"]


def _all(found: Iterable[object]) -> str:
    return " or ".join(sorted({str(one) for one in found}))
