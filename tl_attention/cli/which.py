"""`which`: the schedule that runs a call that names none, the rule that says so, and those passed over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from tl_attention.cli.arch import arch_option, card_for
from tl_attention.cli.command import command
from tl_attention.cli.problem import DEFAULT_SHAPE, causal_option, feature_options, shape_option, window_option
from tl_attention.files.default_rule import Case
from tl_attention.files.defaults import defaults
from tl_attention.hardware.card import Card
from tl_attention.op.rows import Rows
from tl_attention.problem.shape import DTYPE_NAMES, AttentionShape
from tl_attention.problem.window import masked, parse_window


@command(
    examples={
        "which --causal": "the default problem with a causal mask",
        "which --shape 1,32/8,4096,64 --dtype bf16": "grouped heads, head_dim 64",
        "which --arch sm_86": "on an RTX 3090",
    }
)
@shape_option(DEFAULT_SHAPE, default=DEFAULT_SHAPE)
@click.option(
    "--dtype", default="fp16", show_default=True, type=click.Choice(sorted(DTYPE_NAMES)), help="the inputs' dtype"
)
@causal_option
@window_option
@feature_options
@arch_option
def which(shape: str, dtype: str, causal: bool, window: str, card: Card | None, **asked: Any) -> None:
    """Show which schedule attention() takes for a call that names none, and why.

    Below it are the rules above that one, each with the first condition that the call does not meet.
    """
    problem = _computed(AttentionShape.parse(shape, dtype=dtype, **asked), causal, window)
    case = Case.of(problem, card_for(card).arch)
    found = defaults()
    number = found.number(case)
    rule = found.rules[number]
    click.echo(f"{rule.schedule}\n")
    for name, text in {
        "case": case,
        "rule": f"{found.file.path}:{found.line(number)}: {', '.join(rule.conditions) or 'every case'}",
        "why": rule.why,
        "record": rule.record,
    }.items():
        click.echo(f"{name:8}{text}")
    above = [(passed, other) for passed, other in enumerate(found.rules[:number]) if case.arch in other.archs]
    if above:
        click.echo("\npassed over, with the first condition that the case does not meet:")
    for passed, other in above:
        unmet = other.unmet(case)
        assert unmet is not None, "the first rule that serves a case is taken"
        click.echo(f"  line {found.line(passed)}: {other.schedule}: {other.condition(unmet)}")


def _computed(shape: AttentionShape, causal: bool, window: str) -> AttentionShape:
    """The problem whose kernel runs: queries that see no key are none of it, nor is a side that hides nothing."""
    rows, mask = Rows.seen(masked(causal, parse_window(window)), shape.seq_q, shape.seq_kv)
    return replace(shape, seq_q=rows.count, mask=mask)
