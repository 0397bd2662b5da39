"""`profile`: what ncu counts of a kernel, beside what theory says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tl_attention import shipped
from tl_attention.cli.arch import card_for, of_card
from tl_attention.cli.command import command
from tl_attention.cli.errors import naming
from tl_attention.cli.measure import RUNS, stamp
from tl_attention.cli.problem import causal_option, seed_option, shape_for, shape_of_schedule
from tl_attention.cli.schedules import meant_for, resolve_all, schedules_argument, texts_of
from tl_attention.errors import InputError, printable
from tl_attention.files.named import Named
from tl_attention.hardware.card import KNOWN, Card
from tl_attention.hardware.device import visible_gpus
from tl_attention.problem.shape import DTYPE_NAMES, AttentionShape
from tl_attention.program.planned import Planned

if TYPE_CHECKING:
    from tl_attention.measure.candidate import Candidate
    from tl_attention.measure.profile_records import ProfileRow

PEERS = ("fa3", "cudnn", "flash2")


@command(
    examples={
        "profile best seed": "count what two kernels do",
        "profile best --theory": "what theory says, without a GPU",
        "profile --recorded": "the record that ships",
    }
)
@schedules_argument
@shape_of_schedule
@click.option(
    "--dtype", type=click.Choice(sorted(DTYPE_NAMES)), default="fp16", show_default=True, help="the inputs' dtype"
)
@causal_option
@click.option(
    "--sizes",
    type=click.Choice(["runtime", "fixed"]),
    default="runtime",
    show_default=True,
    help="the kernel reads the sizes at run time, or is compiled for exactly this shape",
)
@click.option("--peers", default="", help=f"profile these peers too, separated by commas: {', '.join(PEERS)}")
@seed_option
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    help="the seconds after which ncu is ended  [default: by the number of kernels]",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="the file that results are added to, as JSON lines  [default: a new file in runs/]",
)
@click.option("--theory", "is_theory", is_flag=True, help="show what theory says, and profile nothing")
@click.option("--of", "record", type=click.Path(path_type=Path), help="show this record, and profile nothing")
@click.option("--recorded", is_flag=True, help="show the record that ships, and profile nothing")
def profile(
    schedules: tuple[str, ...],
    shape: str | None,
    dtype: str,
    causal: bool,
    sizes: str,
    peers: str,
    seed: int | None,
    timeout_s: float | None,
    output: Path | None,
    is_theory: bool,
    record: Path | None,
    recorded: bool,
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
    on = card_for(None)
    names, found = _peers(peers), of_card(resolve_all(texts_of(schedules)), on)
    problem = AttentionShape.parse(shape_for(shape, found), dtype=dtype, causal=causal)
    candidates = _candidates(found, problem, sizes == "fixed", on)
    from tl_attention.measure import profile
    from tl_attention.measure.candidate import Candidate

    if is_theory:
        _show([*profile.theory([*candidates, *(Candidate(name, problem) for name in names)])], None)
        return
    if not visible_gpus():
        raise InputError(f"profile: no GPU here, expected one of compute capability {KNOWN}; --theory needs none")
    from tl_attention.measure.peers import why_not
    from tl_attention.measure.records import ResultsFile
    from tl_attention.show.console import ProgressBar

    for name in names:
        if reason := why_not(name, problem):
            click.echo(f"left out: {name}: {reason}", err=True)
        else:
            candidates.append(Candidate(name, problem))
    path = output or RUNS / f"profile-{stamp()}.jsonl"
    with ResultsFile(path) as results, ProgressBar() as progress:

        def keep(row: ProfileRow) -> None:
            results.append_json(row.to_json(), of=row.name)

        rows = profile.measure(candidates, keep, progress, seed=seed, timeout_s=timeout_s)
    _show(rows, path)


def _peers(text: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if unknown := [name for name in names if name not in PEERS]:
        raise InputError(f"--peers: {unknown[0][:40]!r} is no peer, expected some of {', '.join(PEERS)}")
    return names


def _candidates(schedules: Sequence[Named], problem: AttentionShape, is_fixed: bool, on: Card) -> list[Candidate]:
    """Those that are meant for the problem, proved safe on the card."""
    from tl_attention.lowering.preflight import refuse_unless_safe
    from tl_attention.measure.candidate import Candidate

    found = meant_for(schedules, problem.head_size)
    candidates = []
    for named in found:
        planned = Planned(named.schedule)
        with naming(named):
            refuse_unless_safe(planned, problem.head_size, on)
        candidates.append(Candidate(named.name, problem, planned, is_fixed, sms=on.sms, arch=on.arch))
    return candidates


def _of_record(path: Path, names: Sequence[str]) -> list[ProfileRow]:
    from tl_attention.measure.profile_records import read_profiles

    rows = read_profiles(path)
    if not rows:
        raise InputError(f"{path}: no rows, expected those that profile recorded")
    there = dict.fromkeys(row.name for row in rows)
    if unknown := [name for name in names if name not in there]:
        raise InputError(f"{path}: no row of {unknown[0][:40]!r}, expected some of {', '.join(there)}")
    return [row for row in rows if not names or row.name in names]


def _show(rows: Sequence[ProfileRow], path: Path | None) -> None:
    from tl_attention.show import profile
    from tl_attention.show.console import Output, counted, show_columns

    output = Output()
    for row in rows:
        headings, lines = profile.table(row)
        show_columns(profile.title(row), headings, lines, range(len(headings)))
        output.say("")
    for of_problem in profile.by_problem(rows):
        headings, lines = profile.stall_table(of_problem)
        show_columns(f"stalls, {of_problem[0].shape}", headings, lines, range(len(headings)))
        output.say("")
    output.say(*profile.below(rows))
    if path is not None:
        output.say(printable(f"{counted(len(rows), 'row')} in {path}"))
