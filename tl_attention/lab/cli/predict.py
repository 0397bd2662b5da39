"""`predict` ranks schedules by the time that a model of the SM gives them. It needs no GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tl_attention.errors import InputError
from tl_attention.lab.cli.command import Problems, command
from tl_attention.lab.cli.measure import candidates
from tl_attention.lab.cli.options import FILE, problem_options
from tl_attention.lab.cli.schedules import schedules_argument, texts_of
from tl_attention.lab.measure.device import card_of_arch
from tl_attention.schedule.files.yaml_text import stamp

if TYPE_CHECKING:
    from tl_attention.lab.model.machine import Machine

# How often a watched file is looked at.
PAUSE_S = 0.3


@command(
    examples={
        "predict best seed": "which is faster, and what limits each",
        "predict best mine.yaml --causal": "a file of yours, with a causal mask",
        "predict best --watch mine.yaml": "again whenever you save the file",
        "predict best --machine h100": "on another GPU, by its name or a file of calibrate",
    }
)
@schedules_argument
@problem_options
@click.option("--machine", default="h200", show_default=True, help="the GPU: a name, or a file of its numbers")
@click.option("--watch", type=FILE, help="predict this file too, and again whenever it is saved")
def predict(schedules: tuple[str, ...], machine: str, watch: Path | None, **problem: Any) -> None:
    """Predict how long kernels take on a GPU that need not be here, and what limits them.

    A model runs each kernel's machine code on one SM: docs/model.md says how far it can be trusted. A kernel is compiled first
    where that was not done before. Of a single schedule its resources and waits are shown too.
    """
    from tl_attention.lab.model.machine import load

    if not schedules and watch is None:
        raise InputError("predict: no schedule, expected the name or file of one, such as best")
    on = load(machine)
    if watch is None:
        _predict(texts_of(schedules), on, problem).finish()
        return
    texts = [*(texts_of(schedules) if schedules else ()), str(watch)]
    with suppress(KeyboardInterrupt):
        for _ in _saves(watch):
            with Problems().each():
                _predict(texts, on, problem)
            click.echo(f"waiting until {watch} is saved; Ctrl-C ends")


def _saves(path: Path) -> Iterator[None]:
    """Yields at once, and whenever a file was saved. Raises InputError where there is no file at first."""
    if stamp(path) is None:
        raise InputError(f"--watch: no file {path}, expected a schedule's")
    seen = None
    while True:
        found = stamp(path)
        if found not in (seen, None):
            seen = found
            yield
        time.sleep(PAUSE_S)


def _predict(texts: Sequence[str], on: Machine, problem: dict[str, Any]) -> Problems:
    """Shows the predictions of schedules, and a line for each that has none; returns how many have none."""
    from tl_attention.lab.model.prediction import check
    from tl_attention.lab.model.prediction import predict as predicted
    from tl_attention.lab.show.console import Output, ProgressBar
    from tl_attention.lab.show.predict import resources, table, waits

    problems = Problems()
    known, rows, failed = [], [], []
    # What can be told at once is told before the first kernel is compiled.
    for candidate in candidates(texts, card_of_arch(on.arch), refuse=False, **problem):
        with problems.each():
            check(candidate, on)
            known.append(candidate)
    with ProgressBar() as progress:
        for candidate in progress.each("predict", known, lambda one: one.name):
            try:
                rows.append(predicted(candidate, on))
            except InputError as error:
                failed.append(error)
    # Not beside the bar.
    for refusal in failed:
        problems.tell(refusal)
    tables = [table(rows)] if rows else []
    if len(rows) == 1:
        tables += [resources(rows[0]), waits(rows[0])]
    output = Output()
    for found in tables:
        output.fitting(found)
        output.say("")
    return problems
