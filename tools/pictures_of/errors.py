"""The error of each verified output as a part of its budget, by dtype, mask and head size: ours, and the peers'."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pictures_of.budget import Kind, Share, shares
from pictures_of.picture import Picture, measured
from pictures_of.sheet import WIDTH, Sheet
from pictures_of.style import COLOURS, LINE, MARKERS, NAMES, PAPER, SHORT, SMALL, TEXT, Style
from tl_attention.measure.cell import OURS

MASKS = ("unmasked", "causal", "window")
# Pixels.
LANE, GAP, LABELS, LEGEND, BELOW, AFTER = 11, 9, 190, 54, 44, 112
ABOUT = (
    "The largest error of an element against fp64, as a part of what it may be: twice that of PyTorch's attention in the same "
    "precision (of forward and backward: the norm of the worst of four errors, and FlashAttention-2's). A mark for each verified "
    "output, a line from the least to the largest of them; what lies right of 1 is refused."
)


def draw(results: Path) -> Figure:
    """The picture of all records in a folder that have errors and their budgets."""
    by_record = {path.name: shares(path) for path in sorted(results.glob("*.jsonl"))}
    found = [share for of in by_record.values() for share in of]
    return of_shares(found, [name for name, of in by_record.items() if of])


def of_shares(found: Sequence[Share], records: Sequence[str]) -> Figure:
    """That of some of them."""
    kinds = sorted({share.kind for share in found}, key=_place)
    lanes = {kind: [name for name in NAMES if any((s.of, s.kind) == (name, kind) for s in found)] for kind in kinds}
    height = sum(len(names) * LANE + GAP for names in lanes.values())
    foot = f"{measured([share.line for share in found], *records)} {len(found)} verified outputs."
    sheet = Sheet("Error against its budget", ABOUT, foot, LEGEND + height + BELOW)
    names = [name for name in NAMES if any(share.of == name for share in found)]
    sheet.legend(2, [Line2D([], [], **style(name), label=NAMES[name]) for name in names])
    axes = sheet.axes(LABELS, LEGEND, WIDTH - LABELS - AFTER, height)
    sheet.text(LABELS - 6, sheet.top + LEGEND - 20, "dtype, mask, head_dim", ha="right")
    sheet.text(WIDTH - AFTER + 2, sheet.top + LEGEND - 20, "ours: most (n)")
    most = max(1.0, max((share.value for share in found), default=0.0))
    top = 0.0
    centres = []
    for kind, names in lanes.items():
        for number, name in enumerate(names):
            values = sorted(share.value for share in found if (share.of, share.kind) == (name, kind))
            lane(axes, top + GAP / 2 + (number + 0.5) * LANE, name, values)
        centres.append(top + (GAP + len(names) * LANE) / 2)
        ours = [share.value for share in found if (share.of, share.kind) == (OURS, kind)]
        label(axes, most, centres[-1], ours)
        top += len(names) * LANE + GAP
        axes.axhline(top, color=LINE, linewidth=0.5)
    axes.axvline(1, color=TEXT, linewidth=1.6)
    axes.set_xlim(0, 1.03 * most)
    axes.set_ylim(height, 0)
    axes.set_yticks(centres, [words(kind) for kind in kinds])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("largest error / budget; the line at 1 is the budget")
    axes.grid(axis="x")
    return sheet.figure


def _place(kind: Kind) -> tuple[object, ...]:
    """Gradients last, bf16 first, then by mask and size."""
    size = str(kind.head_size)
    return kind.gradients, kind.dtype, MASKS.index(kind.mask), int(size.partition("/")[0]), size


def words(kind: Kind) -> str:
    """`bf16, causal, 192/128`."""
    return f"{'gradients, ' * kind.gradients}{SHORT[kind.dtype]}, {kind.mask}, {kind.head_size}"


def lane(axes: Axes, place: float, name: str, values: Sequence[float]) -> None:
    """The marks of one name, on a line through them."""
    axes.plot([values[0], values[-1]], [place, place], color=COLOURS[name], linewidth=1.2, zorder=2)
    axes.plot(values, [place] * len(values), **style(name))


def style(name: str) -> Style:
    """Of the marks of a name."""
    return {
        "linestyle": "none",
        "marker": MARKERS[name],
        "color": COLOURS[name],
        "markersize": 4.5,
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.4,
        "zorder": 3.0,
    }


def label(axes: Axes, most: float, place: float, ours: Sequence[float]) -> None:
    """The largest of ours, right of the axes."""
    if ours:
        axes.text(1.04 * most, place, f"{max(ours):.2f} ({len(ours)})", va="center", fontsize=SMALL)


PICTURE = Picture("errors", (), draw)
