"""A ladder's own text: its figures beside what was measured here, in percent of the same thing on both cards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pictures_of.style import NAMES
from tl_attention.errors import InputError
from tl_attention.files.ladder_file import Ladder
from tl_attention.measure.records import Row


@dataclass(frozen=True)
class Beside:
    """Percent by step, None where there is no figure, and what 100 % is."""

    unit: str
    ours: tuple[float | None, ...]
    text: tuple[float | None, ...]


def beside(ladder: Ladder, rows: Mapping[str, Row]) -> Beside | None:
    """The text's figures and ours, both in percent of the speed of one thing, each on its own card.

    That is the ladder's first peer where the text has a figure for it, else the first step that has one. None of a text with
    a single figure, for which `only_figure` has the words. Raises InputError for a unit that pictures cannot draw.
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
    """The words for a text's only figure, which `beside` leaves out."""
    figures = [step for step in ladder.steps if step.text]
    if len(figures) != 1:
        return ""
    step = figures[0]
    row = rows.get(step.name)
    here = _measured(ladder, row) if row else None
    then = "that step was not measured here" if here is None else f"here that step has {here:.3g} {ladder.unit}"
    return f"The text has one figure, {step.text:g} {ladder.unit} for step {ladder.steps.index(step) + 1}; {then}."


def figures_of_peers(ladder: Ladder) -> str:
    """The words for the text's figures of its peers, but for a peer that is the text's 100 %."""
    figures = [
        f"{NAMES.get(peer, peer)} at {figure:g}" for peer, figure in ladder.peers.items() if figure not in (None, 100)
    ]
    return f"The text has {' and '.join(figures)} {ladder.unit}." if figures else ""


def _measured(ladder: Ladder, row: Row) -> float | None:
    return row.median_ms if ladder.unit == "ms" else row.tflops


def _speed(ladder: Ladder) -> Callable[[float], float]:
    """From the text's unit to something that is larger of a faster step."""
    if ladder.unit == "ms":
        return lambda figure: 1 / figure
    if ladder.unit == "TFLOPS" or ladder.unit.startswith("% of the "):
        return lambda figure: figure
    raise InputError(f"ladder {ladder.name}: the unit {ladder.unit[:40]!r} is none that pictures can draw")


def _share(value: float | None, of: float | None) -> float | None:
    return 100 * value / of if value and of else None
