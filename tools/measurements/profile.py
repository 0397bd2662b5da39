"""Counts with NVIDIA's ncu what kernels do, and shows each counter beside what theory says of it.

    python tools/measure.py profile best seed --output FILE
    python tools/measure.py profile best --theory

Every kernel runs once as a warm-up and once under ncu, in one process. The clocks are not fixed, so a duration differs
from that of `tl-attention bench`. Of a peer that launches several kernels the longest one counts.
`tl-attention report FILE` shows what was recorded. The theory needs no GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tl_attention.errors import InputError
from tl_attention.lab.cli.measure import candidates, record_path, recording
from tl_attention.lab.cli.options import card_for, output_option, problem_options, seed_option, some_of
from tl_attention.lab.cli.outputs import check_outputs
from tl_attention.lab.cli.schedules import schedules_argument, texts_of
from tl_attention.lab.measure import profile
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.device import visible_gpus
from tl_attention.lab.measure.peers import why_not
from tl_attention.lab.show.console import Output, counted, show_profiles
from tl_attention.problem.card import KNOWN

PEERS = ("fa3", "cudnn", "flash2")


@click.command()
@schedules_argument
@problem_options
@click.option("--sizes", type=click.Choice(["runtime", "fixed"]), default="runtime", show_default=True)
@click.option("--peers", default="", help=f"profile these peers too, separated by commas: {', '.join(PEERS)}")
@seed_option
@output_option
@click.option("--theory", "is_theory", is_flag=True, help="show what theory says, and profile nothing")
def main(
    schedules: tuple[str, ...], peers: str, seed: int | None, output: Path | None, is_theory: bool, **problem: Any
) -> None:
    """Count what kernels do, and show each counter beside what theory says of it."""
    if not schedules:
        raise InputError("profile: no schedule, expected the name or file of one, such as best")
    check_outputs(click.get_current_context())
    names = some_of("--peers", peers, PEERS, "no peer")
    found = candidates(texts_of(schedules), card_for(None), refuse=True, **problem)
    shape = found[0].shape
    if is_theory:
        peers_of = (Candidate(name, shape) for name in names)
        show_profiles([profile.ProfileRow.from_candidate(candidate) for candidate in (*found, *peers_of)])
        return
    if not visible_gpus():
        raise InputError(f"profile: no GPU here, expected one of compute capability {KNOWN}; --theory needs none")
    for name in names:
        if reason := why_not(name, shape):
            click.echo(f"left out: {name}: {reason}", err=True)
        else:
            found.append(Candidate(name, shape))
    path = record_path(output, "profile")
    with recording(path) as (record_row, progress):
        rows = profile.measure(found, record_row, progress, seed=seed)
    show_profiles(rows)
    Output().say(f"{counted(len(rows), 'row')} in {path}")
