"""`profile` shows what ncu counts of a kernel, beside what theory says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tl_attention import shipped
from tl_attention.errors import InputError, printable
from tl_attention.lab.cli.command import command
from tl_attention.lab.cli.measure import candidates, record_path, recording
from tl_attention.lab.cli.options import (
    FILE,
    card_for,
    output_option,
    problem_options,
    seed_option,
    sizes_option,
    some_of,
)
from tl_attention.lab.cli.schedules import schedules_argument, texts_of
from tl_attention.lab.measure.device import visible_gpus
from tl_attention.problem.card import KNOWN

if TYPE_CHECKING:
    from tl_attention.lab.measure.profile import ProfileRow

PEERS = ("fa3", "cudnn", "flash2")


@command(
    examples={
        "profile best seed": "count what two kernels do",
        "profile best --theory": "what theory says, without a GPU",
        "profile --recorded": "the record that ships",
    }
)
@schedules_argument
@problem_options
@sizes_option("runtime", "fixed")
@click.option("--peers", default="", help=f"profile these peers too, separated by commas: {', '.join(PEERS)}")
@seed_option
@output_option
@click.option("--theory", "is_theory", is_flag=True, help="show what theory says, and profile nothing")
@click.option("--of", "record", type=FILE, help="show this record, and profile nothing")
@click.option("--recorded", is_flag=True, help="show the record that ships, and profile nothing")
def profile(
    schedules: tuple[str, ...],
    peers: str,
    seed: int | None,
    output: Path | None,
    is_theory: bool,
    record: Path | None,
    recorded: bool,
    **problem: Any,
) -> None:
    """Count with NVIDIA's ncu what kernels do, and show each counter beside what theory says of it.

    Every kernel runs once as a warm-up and once under ncu, in one process. The clocks are not fixed, so a duration differs
    from that of `bench`. Of a peer that launches several kernels the longest one counts. --of and --recorded show the rows
    of the named schedules, or all rows.
    """
    if sum([is_theory, bool(record), recorded]) > 1:
        raise InputError("--theory, --of and --recorded: expected one of them")
    if record or recorded:
        path = record or shipped.folder("results") / "profile-h200.jsonl"
        _show(_of_record(path, schedules), path)
        return
    if not schedules:
        raise InputError("profile: no schedule, expected the name or file of one, such as best")
    names = some_of("--peers", peers, PEERS, "no peer")
    found = candidates(texts_of(schedules), card_for(None), refuse=True, **problem)
    shape = found[0].shape
    from tl_attention.lab.measure import profile
    from tl_attention.lab.measure.candidate import Candidate

    if is_theory:
        peers_of = (Candidate(name, shape) for name in names)
        _show([profile.ProfileRow.of_candidate(candidate) for candidate in (*found, *peers_of)], None)
        return
    if not visible_gpus():
        raise InputError(f"profile: no GPU here, expected one of compute capability {KNOWN}; --theory needs none")
    from tl_attention.lab.measure.peers import why_not

    for name in names:
        if reason := why_not(name, shape):
            click.echo(f"left out: {name}: {reason}", err=True)
        else:
            found.append(Candidate(name, shape))
    path = record_path(output, "profile")
    with recording(path) as (record_row, progress):
        rows = profile.measure(found, record_row, progress, seed=seed)
    _show(rows, path)


def _of_record(path: Path, names: Sequence[str]) -> list[ProfileRow]:
    from tl_attention.lab.measure.profile import ProfileRow
    from tl_attention.lab.measure.records import read_all

    rows = read_all(ProfileRow, path)
    if not rows:
        raise InputError(f"{path}: no rows, expected those that profile recorded")
    there = dict.fromkeys(row.name for row in rows)
    if unknown := [name for name in names if name not in there]:
        raise InputError(f"{path}: no row of {unknown[0][:40]!r}, expected some of {', '.join(there)}")
    return [row for row in rows if not names or row.name in names]


def _show(rows: Sequence[ProfileRow], path: Path | None) -> None:
    from tl_attention.lab.show import profile
    from tl_attention.lab.show.console import Output, counted

    output = Output()
    kernels = [profile.table(row) for row in rows]
    for table in [*kernels, *(profile.stall_table(of_problem) for of_problem in profile.by_problem(rows))]:
        output.fitting(table)
        output.say("")
    output.say(*profile.below(rows))
    if path is not None:
        output.say(printable(f"{counted(len(rows), 'row')} in {path}"))
