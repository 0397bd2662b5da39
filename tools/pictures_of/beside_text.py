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
    """The text's figures and ours, in percent of the same: of the ladder's first peer on each card, where the text has a
    figure for it, else of the first step that has one. None of a text with a single figure, which is compared with nothing.

    Raises InputError for a unit that pictures cannot draw.
    """
    speed = _speed(ladder)
    peer, figure = next(iter(ladder.peers.items()), ("", None))
    if figure and peer in rows and rows[peer].tflops:
        of, words, text = rows[peer].tflops, NAMES.get(peer, peer), figure
    else:
        first = next((step for step in ladder.steps if step.text and step.name in rows), None)
        if first is None or first.text is None or sum(step.text is not None for step in ladder.steps) < 2:
            return None
        of, words, text = rows[first.name].tflops, f"step {ladder.steps.index(first) + 1}", first.text
    return Beside(
        f"Speed in percent of {words}, each on its own card",
        tuple(_share(rows[step.name].tflops, of) if step.name in rows else None for step in ladder.steps),
        tuple(_share(speed(step.text), speed(text)) if step.text else None for step in ladder.steps),
    )


def only_figure(ladder: Ladder, rows: Mapping[str, Row]) -> str:
    """The words for a text's only figure, which `beside` leaves out."""
    figures = [step for step in ladder.steps if step.text]
    if len(figures) != 1 or ladder.unit.startswith("%"):
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
