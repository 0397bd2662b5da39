"""Commands about schedules, and how the arguments of all commands become schedules. Nothing heavy is imported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import click

from tl_attention.cli.arch import arch_option, card_for, of_card
from tl_attention.cli.command import command
from tl_attention.cli.errors import Problems, naming
from tl_attention.cli.head_dim import HEAD_SIZE
from tl_attention.errors import printable
from tl_attention.files import catalogue, user_file
from tl_attention.files.named import Named, expand, resolve
from tl_attention.hardware.card import HOPPER, Card
from tl_attention.problem.head_dims import HeadSize, is_meant, named_head_dims, sizes_of
from tl_attention.program.planned import Planned
from tl_attention.schedule.dialect import Model

schedule_argument = click.argument("schedule")
schedules_argument = click.argument("schedules", nargs=-1)
all_option = click.option("--all", "every", is_flag=True, help="take the schedules in folders too, such as experiments")


def texts_of(arguments: Sequence[str], every: bool = False) -> list[str]:
    """What the arguments name, folders as the schedules in them, each once; without any, the schedules that ship."""
    shipped = catalogue.all_names() if every else catalogue.names() if not arguments else []
    return list(dict.fromkeys([*shipped, *(text for argument in arguments for text in expand(argument))]))


def resolve_all(texts: Sequence[str]) -> list[Named]:
    """Every schedule, names told apart; a mistake in any of them ends the command."""
    problems = Problems()
    found: list[Named] = []
    for text in texts:
        with problems.each():
            found.append(resolve(text))
    problems.finish()
    return told_apart(found)


def told_apart(schedules: Sequence[Named]) -> list[Named]:
    """Files of the same name in two folders keep their folders, or their rows could not be told apart."""
    times = Counter(named.name for named in schedules)
    return [named if times[named.name] == 1 else replace(named, name=named.text) for named in schedules]


def meant_for(schedules: Sequence[Named], size: HeadSize) -> list[Named]:
    """Those that are meant for this head size; of several, the others are left out with a line each."""
    meant = [named for named in schedules if is_meant(size, named.head_dims)]
    if not meant:
        schedules[0].refuse_unmeant(size)
    for named in schedules:
        if named not in meant:
            click.echo(f"left out: {printable(named.text)} {named.meant_for}, not {size}", err=True)
    return meant


@command(
    examples={
        "check mine.yaml": "at the head sizes that the file is meant for",
        "check best --head-dim 256": "at another head size",
        "check --all": "every schedule that ships",
    }
)
@schedules_argument
@all_option
@click.option("--head-dim", type=HEAD_SIZE, help="the head size  [default: each size that a schedule is meant for]")
@arch_option
def check(schedules: tuple[str, ...], every: bool, head_dim: HeadSize | None, card: Card | None) -> None:
    """Prove that schedules are safe, or say which dependence or limit each of them breaks.

    It compiles nothing and needs no GPU. Without a SCHEDULE it checks those at the top of schedules/.
    """
    problems, texts = Problems(), texts_of(schedules, every)
    if card is not None and not schedules:
        texts = [named.text for named in of_card(resolve_all(texts), card)]
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
    """Raise InputError, with file and line, unless the schedule is safe at these head sizes, on the card.

    Only the limits of the SM depend on the head size: the dependences are proved once.
    """
    from tl_attention.lowering.preflight import check_limits, refuse_unless_safe

    with naming(named):
        planned = Planned(named.schedule)
        refuse_unless_safe(planned, head_dims[0], card)
        for head_dim in head_dims[1:]:
            check_limits(planned, head_dim, card)


@command(
    examples={
        "explain best": "one that ships",
        "explain mine.yaml --head-dim 64": "a file of yours, with a narrower head",
        "explain seed --model asynchronous": "the same order with work in flight",
    }
)
@schedule_argument
@click.option(
    "--model",
    type=click.Choice(get_args(Model)),
    help="synchronous waits for every product at once; asynchronous keeps products and loads in flight  [default: as "
    "the schedule's lowering runs it]",
)
@click.option("--head-dim", type=HEAD_SIZE, help="the head size  [default: the largest that the schedule is meant for]")
@arch_option
def explain(schedule: str, model: Model | None, head_dim: HeadSize | None, card: Card | None) -> None:
    """Show what a schedule does: what it takes of an SM, its options, and who waits for whom in an iteration.

    The last lines say what is proved of it.
    """
    from tl_attention.lowering.preflight import check_card, verdicts
    from tl_attention.show.explain import explain as text

    named = resolve(schedule)
    head_dims, on = named.head_dims if head_dim is None else (head_dim,), card_for(card, named)
    with naming(named):
        check_card(named.schedule, on)
        planned = Planned(named.schedule)
        click.echo(text(planned, model, max(head_dims, key=sizes_of), on, printable(named.in_words)))
        for verdict in verdicts(planned, model, head_dims, on):
            click.echo(verdict)


@command(examples={"schema": "to stdout", "schema --output schedule.schema.json": "to a file"})
@click.option("-o", "--output", type=click.Path(path_type=Path), help="the file to write  [default: stdout]")
def schema(output: Path | None) -> None:
    """Print the JSON Schema with which editors complete and check schedule files.

    The first line of a schedule file names it: see any file of schedules/.
    """
    from tl_attention.files.schema import json_schema

    if output is None:
        click.echo(json_schema(), nl=False)
        return
    user_file.write(output, json_schema())
    click.echo(f"wrote {printable(str(output))}")
