"""Measures what an SM of the GPU here does with microbenchmarks, and writes a machine's file for `predict`.

    python tools/measure.py calibrate --output mine.yaml
    python tools/measure.py calibrate --machine h100 --output mine.yaml

It takes half a minute. How many cycles instructions, products and barriers take is measured, each in a loop of its own.
Numbers that only whole kernels show are those of another machine; the file says of each where it is from.
"""

from __future__ import annotations

import datetime
from pathlib import Path

import click

from tl_attention.errors import InputError, printable
from tl_attention.lab.cli.outputs import OutputFile, check_outputs
from tl_attention.lab.files import user_file
from tl_attention.lab.files.kinds import MACHINE
from tl_attention.lab.measure.device import card_at_hand, visible_gpus
from tl_attention.lab.measure.machine import gpu
from tl_attention.lab.model import machine as machines


@click.command()
@click.option("--machine", default="h200", show_default=True, help="where the numbers are from that are not measured")
@click.option("-o", "--output", type=OutputFile(MACHINE), required=True, help="the file to write")
def main(machine: str, output: Path) -> None:
    """Measure what an SM of the GPU here does, for `tl-attention predict --machine FILE`."""
    base = machines.load(machine)
    check_outputs(click.get_current_context())
    card = card_at_hand()
    if not visible_gpus() or card.arch != base.arch:
        raise InputError(f"calibrate: no GPU of {base.arch} here, expected one: what is measured needs it")
    from measurements import probes
    from measurements.calibration import calibrated, text

    today, known = datetime.datetime.now(datetime.UTC).date().isoformat(), gpu()
    device, driver = (known.name, known.driver) if known else ("unknown", "unknown")
    found = calibrated(probes.measure(), base, device, driver, today, card.sms)
    user_file.write(output, text(found), MACHINE)
    click.echo(f"wrote {printable(str(output))}: {printable(found.title)}")
