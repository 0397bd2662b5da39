"""A ladder's own text: its figures beside what was measured here, where units of two cards can be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pictures_of.style import NAMES
from tl_attention.errors import InputError
from tl_attention.files.ladder_file import Ladder, Step
from tl_attention.measure.records import Row

# Of each step that was timed, in the text's unit, percent, or in what percent are taken of.
Value = Callable[[Row], float | None]


@dataclass(frozen=True)
class Beside:
    """Percent by step, None where there is no figure, and what 100 % is."""

    unit: str
    ours: tuple[float | None, ...]
    text: tuple[float | None, ...]


def beside(ladder: Ladder, rows: Mapping[str, Row]) -> Beside | None:
    """The text's figures and ours. None of a text with a single one in a unit of its own card, which is compared with nothing.

    Percent of the speed of light stand beside percent of the plain product, percent of the reference beside those of the
    ladder's first peer; rates and times are taken as a part of the first step that has a figure. Raises InputError for other
    units.
    """
    if ladder.unit == "% of the speed of light":
        unit = "% of each card's plain product or theory"
        return Beside(unit, _ours(ladder.steps, rows, lambda row: row.percent_of_matmul), _text(ladder.steps))
    if ladder.unit == "% of the reference":
        peer = next(iter(ladder.peers))
        reference = rows[peer].tflops if peer in rows else None
        unit = f"% of the speed of {NAMES.get(peer, peer)}, each on its card"
        return Beside(unit, _ours(ladder.steps, rows, lambda row: _share(row.tflops, reference)), _text(ladder.steps))
    return _of_first(ladder, rows)


def _of_first(ladder: Ladder, rows: Mapping[str, Row]) -> Beside | None:
    value = _rate(ladder)
    figures = [step for step in ladder.steps if step.text]
    first = next((step for step in figures if step.name in rows), None)
    if first is None or len(figures) < 2:
        return None
    ours = rows[first.name].tflops
    text = tuple(_share(value(step.text), value(first.text)) for step in ladder.steps)
    unit = f"% of the speed of step {ladder.steps.index(first) + 1}, each on its card"
    return Beside(unit, _ours(ladder.steps, rows, lambda row: _share(row.tflops, ours)), text)


def only_figure(ladder: Ladder, rows: Mapping[str, Row]) -> str:
    """The words for a text's only figure, which `beside` leaves out."""
    figures = [step for step in ladder.steps if step.text]
    if len(figures) != 1 or ladder.unit.startswith("%"):
        return ""
    step = figures[0]
    row = rows.get(step.name)
    here = _measured(ladder, row) if row else None
    then = "not measured here" if here is None else f"here {here:.3g} {ladder.unit}"
    return f"Its one figure is {step.text:g} {ladder.unit}, of step {ladder.steps.index(step) + 1}; {then}."


def figures_of_peers(ladder: Ladder) -> str:
    """The words for the text's figures of what it compares with, where these are not what 100 % is."""
    figures = [
        f"{NAMES.get(peer, peer)} {figure:g}" for peer, figure in ladder.peers.items() if figure not in (None, 100)
    ]
    return f"Its peers there: {', '.join(figures)} {ladder.unit}." if figures else ""


def _measured(ladder: Ladder, row: Row) -> float | None:
    return row.median_ms if ladder.unit == "ms" else row.tflops


def _rate(ladder: Ladder) -> Callable[[float | None], float | None]:
    """From the text's unit to something that is larger of a faster step."""
    if ladder.unit == "TFLOPS":
        return lambda figure: figure
    if ladder.unit == "ms":
        return lambda figure: 1 / figure if figure else None
    raise InputError(f"ladder {ladder.name}: the unit {ladder.unit[:40]!r} is none that pictures can draw")


def _share(value: float | None, of: float | None) -> float | None:
    return 100 * value / of if value and of else None


def _ours(steps: Sequence[Step], rows: Mapping[str, Row], value: Value) -> tuple[float | None, ...]:
    return tuple(value(rows[step.name]) if step.name in rows else None for step in steps)


def _text(steps: Sequence[Step]) -> tuple[float | None, ...]:
    return tuple(step.text for step in steps)
