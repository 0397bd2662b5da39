"""Measures and records what no command of tl-attention measures.

    python tools/measure.py MEASUREMENT --output FILE

`--help` names the measurements. `cards` needs no GPU, the others need an H100 or H200. `tools/make.py` makes the pages of
the records.
"""

from __future__ import annotations

import click
from measurements import (
    backward,
    calibrate,
    cards,
    cudnn_inputs,
    generate,
    host,
    llama,
    new_shapes,
    operator,
    probes,
    profile,
    timeline,
    training,
)

from tl_attention.lab.cli.command import OneLineErrors


@click.group(cls=OneLineErrors)
def main() -> None:
    """Measure and record what no command of tl-attention measures."""


MEASUREMENTS = (backward, calibrate, cards, cudnn_inputs, generate, host, llama, new_shapes, operator)
for measurement in (*MEASUREMENTS, probes, profile, timeline, training):
    main.add_command(measurement.main, measurement.__name__.rpartition(".")[2].replace("_", "-"))

if __name__ == "__main__":
    main()
