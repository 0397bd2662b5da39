"""Draws each verified output's error as a part of its budget, by dtype, mask and head size: ours and the peers'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pages.cells import SHORT

from pictures.sheet import WIDTH, Draw, Sheet, measured
from pictures.style import COLOURS, LINE, MARKERS, NAMES, PAPER, SMALL, TEXT, Style
from tl_attention.lab.measure.cell import OTHERS, OURS, UNMASKED
from tl_attention.lab.measure.cell_records import AGAIN, CellRow, is_cell
from tl_attention.lab.measure.records import Measured, Row, parse_line, parse_object, read_lines
from tl_attention.problem.head_dims import HeadSize
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape

MASKS = ("unmasked", "causal", "window")
# Pixels.
LANE, GAP, LABELS, LEGEND, BELOW, AFTER = 11, 9, 190, 54, 44, 112
# A pixel of the axes is so much of a budget, or a little less.
PIXEL = 0.002
ABOUT = (
    "Each mark is a verified output, and what lies right of the line at 1 is refused. An output may have twice the largest error "
    "that PyTorch's attention has in the same precision, against fp64. Gradients may be twice as far from fp64 as those of "
    "FlashAttention-2, in norm, at the worst of four tensors."
)
# Errors of outputs and of gradients have an axis each, which says what they are parts of.
AXES = {False: "largest error of the output / the allowed error", True: "error of the gradients / their allowed error"}
# A verified row has these keys; a peer's row has this word as its `sizes`.
ROW_KEYS, PEER = ("error_max_abs", "error_max_abs_budget"), "peer"
# This record has errors of gradients too.
BACKWARD = "backward-h200.jsonl"


# --- what records say ------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """Errors of one kind share a lane: whether gradients are part of the output, dtype, mask in words, head size."""

    gradients: bool
    dtype: str
    mask: str
    head_size: HeadSize


@dataclass(frozen=True)
class Share:
    """A share is one verified output: whose output it is, and its largest error as a part of its budget."""

    of: str
    kind: Kind
    value: float
    line: Measured


def shares(record: Path) -> list[Share]:
    """Reads the shares of a record; other kinds of lines have none. Raises InputError for a line that is no row."""
    gradients = record.name == BACKWARD
    return [share for where, line in read_lines(record) for share in _of_line(line, where, gradients)]


def _of_line(line: bytes, where: str, gradients: bool) -> Iterator[Share]:
    values = parse_object(line, where)
    if is_cell(values):
        yield from _of_cell(parse_line(CellRow, line, where), gradients)
    elif all(key in values for key in ROW_KEYS):
        yield from _of_row(parse_line(Row, line, where))


def _of_cell(row: CellRow, gradients: bool) -> Iterator[Share]:
    for entry in row.entries:
        # The same kernel is entered twice to see what repeats: its error is the same.
        if entry.error is not None and not entry.name.endswith(AGAIN):
            shape = replace(row.shape, mask=FULL) if entry.name == UNMASKED else row.shape
            yield Share(entry.name if entry.name in OTHERS else OURS, kind_of(shape, gradients), entry.error, row)


def _of_row(row: Row) -> Iterator[Share]:
    if row.error_max_abs is not None and row.error_max_abs_budget:
        share = row.error_max_abs / row.error_max_abs_budget
        yield Share(row.name if row.sizes == PEER else OURS, kind_of(row.shape), share, row)


def kind_of(shape: AttentionShape, gradients: bool = False) -> Kind:
    """Returns the kind of a problem."""
    mask = {FULL: "unmasked", CAUSAL: "causal"}.get(shape.mask, "window")
    return Kind(gradients, shape.dtype, mask, shape.head_size)


# --- the picture -----------------------------------------------------------------------------------------------


def draw(results: Path) -> Figure:
    """Draws the picture of all records in a folder that have errors and their budgets."""
    by_record = {path.name: shares(path) for path in sorted(results.glob("*.jsonl"))}
    found = [share for of in by_record.values() for share in of]
    return figure(found, [name for name, of in by_record.items() if of])


def figure(found: Sequence[Share], records: Sequence[str]) -> Figure:
    """Draws the picture of some shares."""
    kinds = sorted({share.kind for share in found}, key=_place)
    lanes = {kind: [name for name in NAMES if any((s.of, s.kind) == (name, kind) for s in found)] for kind in kinds}
    heights = {axis: sum(_height(lanes[kind]) for kind in kinds if kind.gradients == axis) for axis in AXES}
    foot = f"{measured([share.line for share in found], *records)} These are {len(found)} verified outputs."
    sheet = Sheet(
        "Errors and what is allowed", ABOUT, foot, LEGEND + sum(height + BELOW for height in heights.values())
    )
    names = [name for name in NAMES if any(share.of == name for share in found)]
    sheet.legend(2, [Line2D([], [], **style(name), label=NAMES[name]) for name in names])
    sheet.text(LABELS - 6, sheet.top + LEGEND - 20, "dtype, mask, head_dim", ha="right")
    sheet.text(WIDTH - AFTER + 2, sheet.top + LEGEND - 20, "ours: largest (n)")
    top = LEGEND
    for axis, height in heights.items():
        if height:
            axes = sheet.axes(LABELS, top, WIDTH - LABELS - AFTER, height)
            panel(axes, {kind: lanes[kind] for kind in kinds if kind.gradients == axis}, found)
            axes.set_xlabel(AXES[axis])
        top += height + BELOW
    return sheet.figure


def _height(names: Sequence[str]) -> int:
    return len(names) * LANE + GAP


def panel(axes: Axes, lanes: Mapping[Kind, Sequence[str]], found: Sequence[Share]) -> None:
    """Draws the lanes of kinds that share an axis: their errors are parts of the same budget."""
    most = max(1.0, *(share.value for share in found))
    top = 0.0
    centres = []
    for kind, names in lanes.items():
        for number, name in enumerate(names):
            values = sorted(share.value for share in found if (share.of, share.kind) == (name, kind))
            lane(axes, top + GAP / 2 + (number + 0.5) * LANE, name, values)
        centres.append(top + _height(names) / 2)
        ours = [share.value for share in found if (share.of, share.kind) == (OURS, kind)]
        label(axes, most, centres[-1], ours)
        top += _height(names)
        axes.axhline(top, color=LINE, linewidth=0.5)
    axes.axvline(1, color=TEXT, linewidth=1.6)
    axes.set_xlim(0, 1.03 * most)
    axes.set_ylim(top, 0)
    axes.set_yticks(centres, list(map(words, lanes)))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


def _place(kind: Kind) -> tuple[object, ...]:
    """Returns where a kind stands: gradients last, bf16 first, then by mask and size."""
    size = str(kind.head_size)
    return kind.gradients, kind.dtype, MASKS.index(kind.mask), int(size.partition("/")[0]), size


def words(kind: Kind) -> str:
    """Names a kind, as in `bf16, causal, 192/128`."""
    return f"{SHORT[kind.dtype]}, {kind.mask}, {kind.head_size}"


def lane(axes: Axes, place: float, name: str, values: Sequence[float]) -> None:
    """Draws the marks of one name, on a line through them; one mark for all within the width of a pixel."""
    axes.plot([values[0], values[-1]], [place, place], color=COLOURS[name], linewidth=1.2, zorder=2)
    seen = list({round(value / PIXEL): value for value in values}.values())
    axes.plot(seen, [place] * len(seen), **style(name))


def style(name: str) -> Style:
    """Returns the style of a name's marks."""
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
    """Writes the largest of our errors, and their number, right of the axes."""
    if ours:
        axes.text(1.04 * most, place, f"{max(ours):.2f} ({len(ours)})", va="center", fontsize=SMALL)


PICTURES: dict[str, Draw] = {"errors": draw}
