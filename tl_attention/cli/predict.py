"""`predict` ranks schedules by the time that a model of the SM gives them. It needs no GPU."""

from __future__ import annotations

import click

from tl_attention.cli.command import Problems, command
from tl_attention.cli.measure import candidates
from tl_attention.cli.options import causal_option, dtype_option, shape_of_schedule
from tl_attention.cli.schedules import schedules_argument, texts_of
from tl_attention.errors import InputError
from tl_attention.hardware.device import card_of_arch


@command(
    examples={
        "predict best seed": "which is faster, and what limits each",
        "predict best mine.yaml --causal": "a file of yours, with a causal mask",
        "predict best --machine mine-h200.yaml": "on the GPU that this file describes",
    }
)
@schedules_argument
@shape_of_schedule
@dtype_option("the inputs' dtype")
@causal_option
@click.option("--machine", default="h200", show_default=True, help="the GPU: a name or a file of its numbers")
def predict(schedules: tuple[str, ...], shape: str | None, dtype: str, causal: bool, machine: str) -> None:
    """Predict how long kernels take on a GPU that need not be here, and what limits them.

    A model runs each kernel's machine code on one SM: see docs/model.md for how far it can be trusted. A kernel is compiled
    first where that was not done before. Schedules that have no prediction are told below the table.
    """
    from tl_attention.model import machine as machines

    if not schedules:
        raise InputError("predict: no schedule, expected the name or file of one, such as best")
    found = machines.load(machine)
    on = card_of_arch(found.arch)
    asked = candidates(texts_of(schedules), on, (dtype,), refuse=False, shape=shape, sizes="runtime", causal=causal)
    from tl_attention.model.prediction import predict as predicted
    from tl_attention.show.console import Output
    from tl_attention.show.predict import table

    problems = Problems()
    rows = []
    for candidate in asked:
        with problems.each():
            rows.append(predicted(candidate, found))
    if rows:
        Output().fitting(table(rows))
    problems.finish()
