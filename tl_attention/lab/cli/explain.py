"""`explain` shows what a schedule does, or with --call which schedule attention() takes for a call."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from tl_attention.errors import InputError, printable
from tl_attention.lab.cli.call import explain_call
from tl_attention.lab.cli.command import command, naming
from tl_attention.lab.cli.options import (
    DEFAULT_SIZES,
    arch_option,
    card_for,
    feature_options,
    given,
    problem_options,
    shape_for,
    window_option,
)
from tl_attention.lab.cli.schedules import schedules_argument
from tl_attention.problem.card import Card
from tl_attention.problem.head_dims import HeadSize, sizes_of
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import Named, resolve

if TYPE_CHECKING:
    from tl_attention.lab.show.explain import Costs
    from tl_attention.program.program import Operation, Program


@command(
    examples={
        "explain best": "one that ships",
        "explain mine.yaml --head-dim 64": "a file of yours, with a narrower head",
        "explain best --cycles": "with what each wait costs, which a model of the SM predicts",
        "explain --call --causal": "the schedule and the gradients of a call that names none",
        "explain dq dkdv --call --shape 1,8,4096,64": "the same, of a call whose gradients two schedules compute",
        "explain --call --shape 1,32/8,4096,64 --arch rtx3090": "grouped heads, head_dim 64, on another card",
    },
    gone={"--model": "is gone: a schedule is shown as its lowering runs it"},
)
@schedules_argument
@click.option("--call", is_flag=True, help="show which schedule attention() takes for a call of these options")
@problem_options
@window_option
@feature_options
@click.option(
    "--invariant/--not-invariant", default=None, help="a row has the same bits whatever the lengths, or need not"
)
@click.option(
    "--cycles", is_flag=True, help="compile the kernel, and predict what each wait and issue of an iteration costs"
)
@arch_option
@click.pass_context
def explain(
    context: click.Context,
    /,
    schedules: tuple[str, ...],
    call: bool,
    shape: str | None,
    head_dim: HeadSize | None,
    invariant: bool | None,
    cycles: bool,
    card: Card | None,
    **asked: Any,
) -> None:
    """Show what a schedule does: what it takes of an SM, its options, and who waits for whom in an iteration.

    The last lines say what is proved of it. With --call it shows which schedule attention() takes for a call that names
    none, what computes its gradients, and why: below each stand the rules above its own, each with the first
    condition that the call does not meet. The options of problems are those of the call. With --call two SCHEDULES are
    the pair that the call names for its gradients.
    """
    if call:
        if len(schedules) not in (0, 2) or cycles:
            raise InputError(
                "explain: --call is about a call, expected neither a SCHEDULE, but the two of a pair for gradients, nor "
                "--cycles beside it"
            )
        explain_call(shape_for(shape, head_dim), card_for(card).arch, invariant, backward=schedules, **asked)
    elif len(schedules) != 1:
        raise InputError("explain: expected a SCHEDULE, or --call for what attention() takes for a call")
    elif stray := given(context, "schedules", "head_dim", "cycles", "card"):
        raise InputError(f"{stray} is of a call: expected --call, and no SCHEDULE")
    else:
        _explain(schedules[0], head_dim, cycles, card)


def _explain(schedule: str, head_dim: HeadSize | None, cycles: bool, card: Card | None) -> None:
    from tl_attention.kernels.preflight import check_card, verdicts
    from tl_attention.lab.show.explain import explain as text

    named = resolve(schedule)
    head_dims, on = named.head_dims if head_dim is None else (head_dim,), card_for(card, named)
    with naming(named):
        check_card(named.schedule, on)
        planned = Planned(named.schedule)
        head_size = max(head_dims, key=sizes_of)
        costs, opening = None, printable(named.in_words)
        if cycles:
            costs, of_iteration = _costs(named, planned, head_size, on)
            opening = f"{opening}\n{of_iteration}"
        click.echo(text(planned, head_size, on, opening, costs))
        for verdict in verdicts(planned, head_dims, on):
            click.echo(verdict)


def _costs(named: Named, planned: Planned, head_size: HeadSize, card: Card) -> tuple[Costs, str]:
    """Returns what gives the predicted cycles of a wait or issue, and a line on the iteration and the problem."""
    from tl_attention.lab.measure.candidate import Candidate
    from tl_attention.lab.model.machine import load
    from tl_attention.lab.model.prediction import predict
    from tl_attention.lab.model.timeline import shown_as

    machine, shape = load(), AttentionShape.parse(f"{DEFAULT_SIZES},{head_size}")
    found = predict(Candidate(named.name, shape, planned, sms=machine.sms, arch=card.arch), machine)
    # What has no Program is not predicted.
    assert planned.program is not None
    steady = planned.program.phases.steady.operations
    alike = Counter(shown_as(planned.program, op) for op in steady)

    def costs(program: Program, op: Operation) -> float | None:
        act = shown_as(program, op)
        cycles = found.waits.get(" ".join(act)) if act else None
        # Of waits that have one name the mean is known.
        return cycles / found.blocks / alike[act] if cycles else None

    return costs, (
        f"predicted for {found.shape} on {machine.device}: {found.iteration:,.0f} cycles an iteration, "
        f"{found.ms:.3f} ms a launch"
    )
