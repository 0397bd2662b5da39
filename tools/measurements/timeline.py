"""Records a timeline as `tl-attention trace` does, of any problem and window, and has ncu count beside it.

    python tools/measure.py timeline best --softcap 30 --skip 100 --iterations 80 --output FILE
    python tools/measure.py timeline best --ncu --output FILE

`tl-attention trace --of FILE` shows it. With --skip no loads are shown in flight: roles then begin in other tiles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tl_attention.lab.cli.options import feature_options, problem_options, seed_option, window_option
from tl_attention.lab.cli.outputs import OutputFile, check_outputs
from tl_attention.lab.cli.schedules import schedule_argument
from tl_attention.lab.cli.trace import ITERATIONS, blocks_option, kinds_of, marks_option, numbers_of, to_record
from tl_attention.lab.files.kinds import TIMELINE


@click.command()
@schedule_argument
@problem_options
@window_option
@feature_options
@blocks_option
@marks_option
@click.option("--skip", type=click.IntRange(0), default=0, help="leave out each role's first iterations")
@click.option("--iterations", type=click.IntRange(1), default=ITERATIONS, help="iterations of each role to note")
@seed_option
@click.option(
    "--ncu", is_flag=True, help="have NVIDIA's ncu count the tensor pipe's work too, of the kernel with marks"
)
@click.option("-o", "--output", type=OutputFile(TIMELINE), required=True, help="the timeline's file, a new one")
def main(
    schedule: str,
    blocks: str,
    marks: str,
    skip: int,
    iterations: int,
    seed: int | None,
    ncu: bool,
    output: Path,
    **problem: Any,
) -> None:
    """Run a schedule's kernel with marks, and record what each of its roles did when."""
    check_outputs(click.get_current_context())
    kinds, numbers, candidate = kinds_of(marks), numbers_of(blocks), to_record(schedule, problem)
    from tl_attention.lab.trace import counted, recording
    from tl_attention.lab.trace.timeline import Window

    record = counted.record_and_count if ncu else recording.record
    record(candidate, kinds, Window(numbers, skip, iterations), seed).write(output)
    click.echo(f"written: {output}")
