"""Measures and records what no command of tl-attention measures.

    python tools/measure.py MEASUREMENT --output FILE

`--help` names the measurements. `cards` needs no GPU, the others need an H100 or H200. `tools/make.py` makes the pages
of the records.
"""

from __future__ import annotations

from importlib import import_module

import click

from tl_attention.lab.cli.command import OneLineErrors

MEASUREMENTS = "backward calibrate cards cudnn_inputs generate host llama new_shapes operator pair probes profile timeline training"


@click.group(cls=OneLineErrors)
def main() -> None:
    """Measure and record what no command of tl-attention measures."""


for name in MEASUREMENTS.split():
    main.add_command(import_module(f"measurements.{name}").main, name.replace("_", "-"))

if __name__ == "__main__":
    main()
