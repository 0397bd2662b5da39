"""Draws a ladder as a staircase: each step's TFLOPS and gain, and the peers; below are the text's own figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pictures.sheet import MARGIN, WIDTH, Draw, Sheet, line_height, measured
from pictures.style import COLOURS, DASHES, NAMES, NORMAL, PAPER, SMALL, TEXT, Style
from tl_attention.errors import InputError
from tl_attention.lab.files.ladder_file import Ladder, LadderStep, ladder_names, load_ladder, record_name
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.records import PRODUCTS, Row, read_rows
from tl_attention.lab.show.ladder import by_name
from tl_attention.lab.trace.sheet import width_of, wrapped

# Pixels: the stairs, the panel of the text's figures, what is left and right of them, above, below.
STAIRS, PANEL, LEFT, RIGHT, LEGEND, BELOW = 300, 170, 58, 58, 28, 46
INSIDE = WIDTH - LEFT - RIGHT
# So many steps are listed in one column, and names of so many lines stand below the axis.
ONE_COLUMN, NAME_LINES = 7, 2
# The two series of the panel.
SERIES: dict[str, dict[str, Any]] = {
    "measured here": {"color": COLOURS[OURS], "marker": "o", "markersize": 6, "linewidth": 2},
    "the text, on its own card": {
        "color": "#c2410c", "marker": "s", "markersize": 6, "markerfacecolor": PAPER, "markeredgewidth": 1.4,
        "linewidth": 1.4, "linestyle": (0, (4, 2)),
    },
}  # fmt: skip
FILL = "#dbe4ee"
# If the slowest step has this part of the fastest's rate or more, the axis does not begin at 0: all would look alike.
ALIKE = 0.7
ABOUT = (
    "Problem {shape}, {sizes}. A step is as high as its rate, the median TFLOPS of its two matrix products. The number above "
    "is its gain over the step before, or over the step whose number stands there, as the median of paired ratios. On the right "
    "axis 100 % is the rate of a {product} in the same run, {rate:.0f} TFLOPS."
)
NOT_FROM_0 = " The axes do not begin at 0."


def draw(name: str, results: Path) -> Figure:
    """Draws the picture of the newest run in a folder's record."""
    ladder, record = load_ladder(name), record_name(name)
    return figure(ladder, by_name(read_rows(results / record), ladder), record)


def figure(ladder: Ladder, rows: Mapping[str, Row], record: str) -> Figure:
    """Draws the picture of a run's rows, by name. A step without a kernel, or without a time, is a gap with a word."""
    rates = [row.tflops for row in rows.values() if row.tflops]
    if not rates:
        raise InputError(f"{record}: no step of the ladder {ladder.name} was timed on its problem, {ladder.shape}")
    product = max(row.matmul_tflops or 0.0 for row in rows.values())
    compared, listed = beside(ladder, rows), columns(ladder.steps)
    low, high = limits(rates)
    about = ABOUT.format(
        shape=ladder.shape,
        sizes="compiled for exactly this problem" if ladder.fixed else "sizes read at run time",
        product=PRODUCTS[ladder.product],
        rate=product,
    )
    text = f"The text is {ladder.source}; it measured on {ladder.method}."
    foot = " ".join([measured(rows.values(), record), text, only_figure(ladder, rows), figures_of_peers(ladder)])
    title = f"Ladder {ladder.name}: {ladder.title}"
    drawn = LEGEND + STAIRS + BELOW + (LEGEND + PANEL + BELOW if compared else 0)
    height = drawn + line_height(NORMAL) * max(map(len, listed))
    sheet = Sheet(title, about + NOT_FROM_0 * (low > 0), foot, height)
    sheet.legend(0, peer_lines(rows))
    axes = sheet.axes(LEFT, LEGEND, INSIDE, STAIRS)
    stairs(axes, ladder, rows, low)
    axes.set_ylim(low, high)
    share_of_product(axes, product, PRODUCTS[ladder.product])
    number(axes, ladder.steps)
    if compared:
        sheet.legend(LEGEND + STAIRS + BELOW, series_lines())
        panel(sheet, LEGEND + STAIRS + BELOW + LEGEND, ladder.steps, compared)
    for at, lines in enumerate(listed):
        left = MARGIN + at * (WIDTH - 2 * MARGIN) / len(listed)
        sheet.lines(left, sheet.top + drawn, lines)
    return sheet.figure


# --- the stairs ------------------------------------------------------------------------------------------------


def limits(rates: Sequence[float]) -> tuple[float, float]:
    """Returns the ends of the axis, with room for the words above and below a step."""
    lowest, highest = min(rates), max(rates)
    if lowest < ALIKE * highest:
        return 0.0, 1.18 * highest
    room = highest - lowest
    return max(0.0, lowest - 0.25 * room), highest + 0.3 * room


def stairs(axes: Axes, ladder: Ladder, rows: Mapping[str, Row], low: float) -> None:
    """Draws treads and risers, the rate below each tread and the gain above it, and the peers as lines through all."""
    before: float | None = None
    for at, step in enumerate(ladder.steps):
        row = rows.get(step.name)
        if row is None or row.tflops is None:
            axes.text(at + 0.5, 0.03, _why_not(step, row), transform=axes.get_xaxis_transform(), **_words("bottom"))
            before = None
            continue
        if not low:
            axes.fill_between([at, at + 1], row.tflops, color=FILL, linewidth=0, zorder=1)
        if before is not None:
            axes.plot([at, at], [before, row.tflops], color=COLOURS[OURS], linewidth=1.2, zorder=3)
        axes.plot(
            [at, at + 1], [row.tflops, row.tflops], color=COLOURS[OURS], linewidth=3, zorder=3, solid_capstyle="butt"
        )
        _write(axes, at, row.tflops, f"{row.tflops:.0f}", above=False, paper=PAPER if low else FILL)
        if words := "\n".join(gain(step, row, ladder)):
            _write(axes, at, row.tflops, words, above=True, paper=PAPER)
        before = row.tflops
    for name, line in peer_styles(rows):
        axes.axhline(rows[name].tflops or 0.0, **line, zorder=2)
    axes.set_ylabel("TFLOPS")


def _write(axes: Axes, at: int, rate: float, words: str, above: bool, paper: str) -> None:
    box = {"facecolor": paper, "edgecolor": "none", "pad": 0.6}
    offset = (0, 4) if above else (0, -4)
    axes.annotate(
        words, (at + 0.5, rate), xytext=offset, textcoords="offset points", bbox=box, zorder=4, linespacing=1.25,
        **_words("bottom" if above else "top"),
    )  # fmt: skip


def _words(va: str) -> Style:
    return {"ha": "center", "va": va, "fontsize": SMALL, "color": TEXT}


def gain(step: LadderStep, row: Row, ladder: Ladder) -> Iterator[str]:
    """Says what a step gained, and over which step if not over the one before."""
    if row.against is None or step.against is None:
        return
    percent = round(100 / row.against.ratio - 100, 1)
    yield f"{percent:+.1f} %".replace("-", "\N{MINUS SIGN}") if percent else "0.0 %"
    measured_steps = [found.name for found in ladder.measured]
    if measured_steps.index(step.name) != measured_steps.index(step.against) + 1:
        yield f"over {[found.name for found in ladder.steps].index(step.against) + 1}"


def _why_not(step: LadderStep, row: Row | None) -> str:
    if step.schedule is None:
        return "no\nkernel"
    return "not\ntimed" if row is None else row.status


def peer_styles(rows: Mapping[str, Row]) -> Iterator[tuple[str, Style]]:
    """Yields the peers that were timed, and the styles of their lines."""
    for name in NAMES:
        if name in rows and rows[name].tflops:
            yield name, {"color": COLOURS[name], "linestyle": DASHES[name], "linewidth": 1.8}


def peer_lines(rows: Mapping[str, Row]) -> list[Artist]:
    """Makes the stairs' legend, with the peers' rates."""
    steps = Line2D([], [], color=COLOURS[OURS], linewidth=3, label="a step, measured here")
    peers = [
        Line2D([], [], **line, label=f"{NAMES[name]}, {rows[name].tflops:.0f} TFLOPS")
        for name, line in peer_styles(rows)
    ]
    return [steps, *peers]


def share_of_product(axes: Axes, product: float, words: str) -> None:
    """Draws the axis on the right: percent of the plain product's rate."""

    def share(rate: Any) -> Any:
        return 100 * rate / product

    def rate(share: Any) -> Any:
        return share * product / 100

    if product:
        axes.secondary_yaxis("right", functions=(share, rate)).set_ylabel(f"% of the {words}")


# --- the text's figures ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Beside:
    """Our figures and the text's stand beside each other in percent, one for each step."""

    unit: str  # what 100 % is
    ours: tuple[float | None, ...]  # None where a step has no figure
    text: tuple[float | None, ...]


def beside(ladder: Ladder, rows: Mapping[str, Row]) -> Beside | None:
    """Returns the text's figures and ours, both in percent of the speed of one thing, each on its own card.

    100 % is the ladder's first peer where the text has a figure for it, else the first step that has one. A text with
    less than two figures gives None; `only_figure` has the words for a single one. Raises InputError for a unit that
    pictures cannot draw.
    """
    speed, figures = _speed(ladder), [step for step in ladder.steps if step.text]
    if len(figures) < 2:
        return None
    name, of = next(iter(ladder.peers.items()), ("", None))
    words = NAMES.get(name, name)
    if not of or name not in rows:
        first = next((step for step in figures if step.name in rows), figures[0])
        name, of, words = first.name, first.text, f"step {ladder.steps.index(first) + 1}"
    hundred = rows[name].tflops if name in rows else None
    return Beside(
        f"Speed in percent of {words}, each on its own card",
        tuple(_share(rows[step.name].tflops, hundred) if step.name in rows else None for step in ladder.steps),
        tuple(_share(speed(step.text), speed(of)) if step.text and of else None for step in ladder.steps),
    )


def only_figure(ladder: Ladder, rows: Mapping[str, Row]) -> str:
    """Returns the words for a text's only figure, which `beside` leaves out."""
    figures = [step for step in ladder.steps if step.text]
    if len(figures) != 1:
        return ""
    step = figures[0]
    row = rows.get(step.name)
    here = _measured(ladder, row) if row else None
    then = "that step was not measured here" if here is None else f"here that step has {here:.3g} {ladder.unit}"
    return f"The text has one figure, {step.text:g} {ladder.unit} for step {ladder.steps.index(step) + 1}; {then}."


def figures_of_peers(ladder: Ladder) -> str:
    """Returns the words for the text's figures of its peers, but for a peer that is the text's 100 %."""
    figures = [
        f"{NAMES.get(peer, peer)} at {figure:g}" for peer, figure in ladder.peers.items() if figure not in (None, 100)
    ]
    return f"The text has {' and '.join(figures)} {ladder.unit}." if figures else ""


def _measured(ladder: Ladder, row: Row) -> float | None:
    return row.median_ms if ladder.unit == "ms" else row.tflops


def _speed(ladder: Ladder) -> Callable[[float], float]:
    """Returns a function that turns a figure of the text into a number that is larger for a faster step."""
    if ladder.unit == "ms":
        return lambda figure: 1 / figure
    if ladder.unit == "TFLOPS" or ladder.unit.startswith("% of the "):
        return lambda figure: figure
    raise InputError(f"ladder {ladder.name}: the unit {ladder.unit[:40]!r} is none that pictures can draw")


def _share(value: float | None, of: float | None) -> float | None:
    return 100 * value / of if value and of else None


def panel(sheet: Sheet, top: float, steps: Sequence[LadderStep], compared: Beside) -> None:
    """Draws two series in percent, which differ by marker, fill and line."""
    axes = sheet.axes(LEFT, top, INSIDE, PANEL)
    series = (compared.ours, compared.text)
    for values, style in zip(series, SERIES.values()):
        # A value that is no number is a gap: lines join only neighbours.
        axes.plot(
            [at + 0.5 for at in range(len(steps))], [math.nan if value is None else value for value in values], **style
        )
    for at, pair in enumerate(zip(*series)):
        found = sorted(value for value in pair if value is not None)
        for place, value in enumerate(found):
            below = len(found) == 2 and place == 0
            axes.annotate(
                f"{value:.1f}", (at + 0.5, value), xytext=(0, -6 if below else 6), textcoords="offset points",
                **_words("top" if below else "bottom"),
            )  # fmt: skip
    drawn = [value for of in series for value in of if value is not None]
    room = max(drawn) - min(drawn) or 1.0
    axes.set_ylim(min(drawn) - 0.3 * room, max(drawn) + 0.3 * room)
    axes.set_title(compared.unit, loc="right", fontsize=NORMAL)
    axes.grid(axis="y")
    number(axes, steps)


def series_lines() -> list[Artist]:
    """Makes the panel's legend: what was measured here, and what the text has."""
    return [Line2D([], [], **style, label=name) for name, style in SERIES.items()]


# --- both ------------------------------------------------------------------------------------------------------


def number(axes: Axes, steps: Sequence[LadderStep]) -> None:
    """Writes the steps' numbers below the axis, with their names where names have room."""
    names = [wrapped(step.name, INSIDE / len(steps) - 8, SMALL) for step in steps]
    fits = max(map(len, names)) <= NAME_LINES and len(steps) <= ONE_COLUMN
    labels = ["\n".join([str(at), *name] if fits else [str(at)]) for at, name in enumerate(names, 1)]
    axes.set_xlim(0, len(steps))
    axes.set_xticks([at + 0.5 for at in range(len(steps))], labels)
    axes.tick_params(axis="x", length=0)


def columns(steps: Sequence[LadderStep]) -> list[list[str]]:
    """Lists number, name and idea of each step, in one column or two."""
    count = 1 if len(steps) <= ONE_COLUMN else 2
    entries = [_entry(at, step, (WIDTH - 2 * MARGIN) / count - 8) for at, step in enumerate(steps, 1)]
    each = math.ceil(len(entries) / count)
    return [[line for entry in entries[at : at + each] for line in entry] for at in range(0, len(entries), each)]


def _entry(at: int, step: LadderStep, width: float) -> list[str]:
    text, indent = f"{at}. {step.name}: {step.idea}", "     "
    if width_of(text, NORMAL) <= width:
        return [text]
    first, *others = wrapped(text, width - width_of(indent, NORMAL), NORMAL)
    return [first, *(indent + line for line in others)]


PICTURES: dict[str, Draw] = {f"ladder-{name}": partial(draw, name) for name in ladder_names()}
