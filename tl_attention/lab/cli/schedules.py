"""This module has the commands about schedules, and makes schedules of all commands' arguments.

It imports nothing heavy.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tl_attention.errors import InputError, printable
from tl_attention.lab.cli.command import ErrorCount, command, naming
from tl_attention.lab.cli.options import arch_option, card_for, compiled_for_card, given, head_dim_option
from tl_attention.problem.card import HOPPER, Card
from tl_attention.problem.head_dims import HeadSize, is_meant, named_head_dims
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.program.planned import Planned
from tl_attention.schedule.files import catalogue
from tl_attention.schedule.files.named import Named, expand, resolve
from tl_attention.schedule.loop.loops import FORWARD

if TYPE_CHECKING:
    from tl_attention.lab.measure.records import Row

schedule_argument = click.argument("schedule")
schedules_argument = click.argument("schedules", nargs=-1)
all_option = click.option("--all", "every", is_flag=True, help="take the schedules in folders too, such as experiments")


def texts_of(arguments: Sequence[str], every: bool = False) -> list[str]:
    """Returns the names and files of the schedules that the arguments name, or of shipped ones without arguments.

    Each comes once. A folder stands for the schedules in it. Without arguments these are the schedules at the top of
    those that ship. `every` puts all that ship in front.
    """
    shipped = catalogue.all_names() if every else catalogue.names() if not arguments else []
    return list(dict.fromkeys([*shipped, *(text for argument in arguments for text in expand(argument))]))


def resolve_all(texts: Sequence[str], loop: str | None = FORWARD) -> list[Named]:
    """Loads the schedule that each text names, or prints all mistakes and exits with code 2 if there is one.

    Schedules must order this loop, or any if it is None. Those of the same name get other names: see
    `with_unique_names`.
    """
    problems = ErrorCount()
    found = _resolved(texts, problems, loop)
    problems.finish()
    return found


def _resolved(texts: Sequence[str], problems: ErrorCount, loop: str | None = None) -> list[Named]:
    """Loads the schedule that each text names, but those that `problems` then has an error of."""
    found: list[Named] = []
    for text in texts:
        with problems.each():
            named = resolve(text)
            named.refuse_other_loop(loop or named.schedule.loop)
            found.append(named)
    return with_unique_names(found)


def with_unique_names(schedules: Sequence[Named]) -> list[Named]:
    """Returns the schedules, and renames each that shares its name with another to the text that the user gave for it.

    So files of the same name in two folders keep their folders, and their rows can be told apart.
    """
    times = Counter(named.name for named in schedules)
    return [named if times[named.name] == 1 else replace(named, name=named.text) for named in schedules]


def meant_for(schedules: Sequence[Named], size: HeadSize, shape: str | None = None) -> list[Named]:
    """Returns the schedules that are meant for this head size, and prints a line for each that is not.

    Raises InputError where no schedule is meant for it. The error has the option to give in place of `shape`, the text
    of --shape, or of --head-dim.
    """
    meant = [named for named in schedules if is_meant(size, named.head_dims)]
    if not meant:
        text, sizes = schedules[0].text, schedules[0].head_dims
        instead = f"--shape {shape.rpartition(',')[0]},{sizes[0]}" if shape else f"--head-dim {sizes[0]}"
        raise InputError(f"{text} is for {named_head_dims(sizes)}, not {size}: expected {instead}")
    for named in schedules:
        if named not in meant:
            click.echo(f"left out: {printable(named.text)} {named.meant_for}, not {size}", err=True)
    return meant


@command(
    examples={
        "check mine.yaml": "at the head sizes that the file is meant for",
        "check best --head-dim 256": "at another head size",
        "check --all": "every schedule that ships",
        "check --schema": "the JSON Schema of schedule files, for editors",
    }
)
@schedules_argument
@all_option
@head_dim_option("the head size  [default: each size that a schedule is meant for]")
@arch_option
@click.option(
    "--schema", is_flag=True, help="print the JSON Schema by which editors complete and check files, and check nothing"
)
@click.pass_context
def check(
    context: click.Context,
    /,
    schedules: tuple[str, ...],
    every: bool,
    head_dim: HeadSize | None,
    card: Card | None,
    schema: bool,
) -> None:
    """Prove that schedules are safe, or say which dependence or limit each of them breaks.

    It compiles nothing and needs no GPU. Without a SCHEDULE it checks those at the top of schedules/.
    """
    if schema:
        if stray := given(context, "schema"):
            raise InputError(f"--schema checks nothing: expected no {stray} beside it")
        from tl_attention.lab.files.schema import json_schema

        click.echo(json_schema(), nl=False)
        return
    problems, texts = ErrorCount(), texts_of(schedules, every)
    if card is not None and not schedules:
        texts = [named.text for named in compiled_for_card(resolve_all(texts, None), card)]
    for text in texts:
        with problems.each():
            named = resolve(text)
            head_dims, on = named.head_dims if head_dim is None else (head_dim,), card_for(card, named)
            prove(named, head_dims, on)
            proved = "proved safe" if named.schedule.has_program else "fits; no Program to prove"
            where = "" if on.arch == HOPPER.arch else f" on {on}"
            click.echo(f"{printable(text)}: {proved} at {named_head_dims(head_dims)}{where}")
    problems.finish()


def prove(named: Named, head_dims: Sequence[HeadSize], card: Card) -> None:
    """Raises InputError, with file and line, unless the schedule is safe at these head sizes, on the card.

    Only the limits of the SM depend on the head size: the dependences are proved once.
    """
    from tl_attention.kernels.preflight import check_limits, refuse_unless_safe

    with naming(named):
        planned = Planned(named.schedule)
        refuse_unless_safe(planned, head_dims[0], card)
        for head_dim in head_dims[1:]:
            check_limits(planned, head_dim, card)


WIDTH = 80
# A longer name has a line of its own.
LONGEST_NAME = 36
LEAST_SUMMARY = 24


@command(
    "list",
    examples={
        "list": "the schedules at the top of schedules/",
        "list --all": "the experiments and ladders too",
        "list best mine.yaml": "these two",
    },
    gone={"--labels": "is gone: `explain NAME` shows a schedule's label"},
)
@schedules_argument
@all_option
def list_command(schedules: tuple[str, ...], every: bool) -> None:
    """Show the schedules that ship, with what each is for and its recorded times.

    Without a SCHEDULE it shows those at the top of schedules/. Times of one table were recorded in one run.
    """
    problems = ErrorCount()
    found = _resolved(texts_of(schedules, every), problems)
    for line in _listing(found):
        click.echo(line)
    problems.finish()


def _listing(schedules: Sequence[Named]) -> list[str]:
    """Returns the lines that `list` shows, a table of schedules and times for each folder of the catalogue."""
    # A table's times are of one run: times of two runs are not compared.
    parts: dict[str, list[Named]] = {}
    for named in schedules:
        parts.setdefault(named.name.rpartition("/")[0] if named.name == named.text else "", []).append(named)
    return "\n\n".join("\n".join(_part(part)) for part in parts.values()).splitlines()


def _part(schedules: Sequence[Named]) -> list[str]:
    from tl_attention.lab.measure.records import run_of

    labels = {named.schedule.label for named in schedules}
    columns = [column for causal in (False, True) if (column := run_of(labels, causal))]
    names = [printable(named.name) for named in schedules]
    width = min(max(map(len, names)), LONGEST_NAME)
    heads = [f"{'causal' if column[0].shape.mask == CAUSAL else 'ms':>6}" for column in columns]
    lines = _heading(columns) + ["  ".join([f"{'':{width}}", *heads]).rstrip()] * bool(columns)
    for named, name in zip(schedules, names):
        times = [_time(named, column) for column in columns]
        summary = printable(named.summary)
        if len(name) > width:
            lines.append(name)
            name = ""
        start = "  ".join([f"{name:{width}}", *times, ""])
        wrapped = textwrap.wrap(summary, max(WIDTH - len(start), LEAST_SUMMARY)) or [""]
        lines += [f"{start}{wrapped[0]}".rstrip(), *(f"{'':{len(start)}}{line}" for line in wrapped[1:])]
    return lines


def _heading(columns: Sequence[Sequence[Row]]) -> list[str]:
    if not columns:
        return []
    first, *others = (column[0] for column in columns)
    problems = str(first.shape)
    for other in others:
        masked = replace(other.shape, mask=FULL) == first.shape
        problems += ", and with a causal mask" if masked else f"; causal: {other.shape}"
    devices = " and ".join(dict.fromkeys(row.device or "an unknown device" for row in (first, *others)))
    return textwrap.wrap(f"ms recorded on {devices}: {problems}", WIDTH)


def _time(named: Named, column: Sequence[Row]) -> str:
    """Returns the schedule's recorded time as 6 characters, blanks where no row of the column is for it."""
    # Another file may have the same schedule for another head size.
    mine = (
        row for row in column if row.label == named.schedule.label and is_meant(row.shape.head_size, named.head_dims)
    )
    times = [row.median_ms for row in mine if row.median_ms is not None]
    return f"{times[0]:6.3f}" if times else " " * 6
