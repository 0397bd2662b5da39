"""`predict` ranks schedules by the time that a model of the SM gives them. It needs no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from tl_attention.errors import InputError
from tl_attention.lab.cli.command import ErrorCount, command
from tl_attention.lab.cli.measure import candidates
from tl_attention.lab.cli.options import problem_options
from tl_attention.lab.cli.schedules import schedules_argument, texts_of
from tl_attention.lab.measure.device import card_of_arch

if TYPE_CHECKING:
    from tl_attention.lab.model.machine import Machine


@command(
    examples={
        "predict best seed": "which is faster, and what limits each",
        "predict best mine.yaml --causal": "a file of yours, with a causal mask",
        "predict best --machine h100": "on another GPU, by its name or a file of its numbers",
    },
    gone={"--watch": "is gone: run it again when the file is saved"},
)
@schedules_argument
@problem_options
@click.option("--machine", default="h200", show_default=True, help="the GPU: a name, or a file of its numbers")
def predict(schedules: tuple[str, ...], machine: str, **problem: Any) -> None:
    """Predict how long kernels take on a GPU that need not be here, and what limits them.

    A model runs each kernel's machine code on one SM: docs/model.md says how far it can be trusted. A kernel is
    compiled first where that was not done before. Of a single schedule its resources and waits are shown too.
    """
    from tl_attention.lab.model.machine import load

    if not schedules:
        raise InputError("predict: no schedule, expected the name or file of one, such as best")
    _predict(texts_of(schedules), load(machine), problem)


def _predict(texts: Sequence[str], on: Machine, problem: dict[str, Any]) -> None:
    """Shows the predictions of schedules and a line for each that has none; exits with 2 if there is one."""
    from tl_attention.lab.model.prediction import check
    from tl_attention.lab.model.prediction import predict as predicted
    from tl_attention.lab.show.console import Output, ProgressBar
    from tl_attention.lab.show.predict import resources, table, waits

    problems = ErrorCount()
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
    problems.finish()
