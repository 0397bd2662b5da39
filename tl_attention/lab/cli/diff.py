"""`diff` sets two schedules beside each other: their keys, their Programs and their code."""

from __future__ import annotations

import click

from tl_attention.errors import InputError, printable
from tl_attention.lab.cli.command import ErrorCount, command, naming
from tl_attention.lab.cli.options import arch_option, card_for, causal_option, head_dim_option
from tl_attention.lab.cli.schedules import prove
from tl_attention.problem.card import Card
from tl_attention.problem.head_dims import HeadSize, sizes_of
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files.named import Named, resolve


@command(
    examples={
        "diff best mine.yaml": "two schedules",
        "diff best mine.yaml --no-code": "without compiling them",
        "diff best best_causal --causal": "with the code of a causal mask",
    },
    gone={"--dtype": "is gone: the code is of fp16", "--window": "is gone: the code has a causal mask or none"},
)
@click.argument("a")
@click.argument("b")
@click.option(
    "--code/--no-code",
    "with_code",
    default=True,
    show_default=True,
    help="compile both schedules, and compare registers, spills, and the instructions and waits of the loop",
)
@head_dim_option("the head size  [default: each size that a schedule is meant for; the code has the largest of both]")
@causal_option
@arch_option
def diff(a: str, b: str, with_code: bool, head_dim: HeadSize | None, causal: bool, card: Card | None) -> None:
    """Show what differs between two schedules: their keys, their order of operations and their machine code.

    Both are proved safe as well, or refused. Without --no-code both are compiled, which takes half a minute.
    """
    from tl_attention.lab.show import diff

    first, second = resolve(a), resolve(b)
    of_code = (head_dim or _shared_head_dim(first, second)) if with_code else None
    schedules, names = (first.schedule, second.schedule), (a, b)
    programs = []
    for named in (first, second):
        with naming(named):
            programs.append(diff.program_text(named.schedule))
    before, after = programs
    _print([f"a: {a}", f"b: {b}", *diff.keys(*schedules), *diff.program(before, after, names)])
    problems, on = ErrorCount(), card_for(card, first, second)
    for named in (first, second):
        with problems.each():
            prove(named, named.head_dims if head_dim is None else (head_dim,), on)
    problems.finish()
    if of_code is not None:
        # Sizes are read at run time, so any will do.
        shape = AttentionShape.parse(f"1,1,128,{of_code}", causal=causal)
        _print(diff.code(*schedules, names, shape, on))


def _shared_head_dim(a: Named, b: Named) -> HeadSize:
    """Returns the largest head size that both schedules are meant for, or raises InputError."""
    shared = set(a.head_dims) & set(b.head_dims)
    if not shared:
        meant = ", ".join(f"{named.text} {named.meant_for}" for named in (a, b))
        raise InputError(f"{meant}: no code to compare, expected --head-dim or --no-code")
    return max(shared, key=sizes_of)


def _print(lines: list[str]) -> None:
    for line in lines:
        click.echo(printable(line))
