"""`list`: which schedules there are, what each is, and the times recorded of them, in at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tl_attention.cli.command import command
from tl_attention.cli.errors import Problems
from tl_attention.cli.schedules import all_option, schedules_argument, texts_of, told_apart
from tl_attention.errors import printable
from tl_attention.files.named import Named, resolve
from tl_attention.problem.head_dims import is_meant
from tl_attention.problem.mask import CAUSAL, FULL

if TYPE_CHECKING:
    from tl_attention.measure.records import Row

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
)
@schedules_argument
@all_option
@click.option("--labels", is_flag=True, help="show each name with its label, and nothing else")
def list_command(schedules: tuple[str, ...], every: bool, labels: bool) -> None:
    """Show the schedules that ship, with what each is for and its recorded times.

    Without a SCHEDULE it shows those at the top of schedules/. Times of one table were recorded in one run.
    """
    problems = Problems()
    found: list[Named] = []
    for text in texts_of(schedules, every):
        with problems.each():
            found.append(resolve(text))
    found = told_apart(found)
    for line in _labels(found) if labels else _listing(found):
        click.echo(line)
    problems.finish()


def _labels(schedules: Sequence[Named]) -> list[str]:
    width = max((len(printable(named.name)) for named in schedules), default=0)
    return [f"{printable(named.name):{width}}  {named.schedule.label}" for named in schedules]


def _listing(schedules: Sequence[Named]) -> list[str]:
    """A table for each part of the catalogue: its times are of one run, those of two are not compared."""
    parts: dict[str, list[Named]] = {}
    for named in schedules:
        parts.setdefault(named.name.rpartition("/")[0] if named.name == named.text else "", []).append(named)
    return "\n\n".join("\n".join(_part(part)) for part in parts.values()).splitlines()


def _part(schedules: Sequence[Named]) -> list[str]:
    from tl_attention.measure.recorded import run_of

    labels = {named.schedule.label for named in schedules}
    columns = [column for causal in (False, True) if (column := run_of(labels, causal))]
    names = [printable(named.name) for named in schedules]
    width = min(max(map(len, names)), LONGEST_NAME)
    heads = [f"{'causal' if column[0].shape.mask == CAUSAL else 'ms':>6}" for column in columns]
    lines = _heading(columns) + ["  ".join([f"{'':{width}}", *heads]).rstrip()] * bool(columns)
    for named, name in zip(schedules, names):
        times = [_time(named, column) for column in columns]
        summary = printable(named.file.summary) if named.file else ""
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
    """Its time where it is meant for that head size: another file may have the same schedule for another."""
    mine = (
        row for row in column if row.label == named.schedule.label and is_meant(row.shape.head_size, named.head_dims)
    )
    times = [row.median_ms for row in mine if row.median_ms is not None]
    return f"{times[0]:6.3f}" if times else " " * 6
