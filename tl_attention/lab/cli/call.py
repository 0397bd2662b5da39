"""This module shows what attention() takes for a call without a schedule: a schedule, and the gradients' operator.

It imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from tl_attention.op.rows import Rows
from tl_attention.problem.mask import masked, parse_window
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files.backward import BackwardRule, backward_rules, case_of, masks_alike, packed_masks_alike
from tl_attention.schedule.files.conditions import Case, RuleFile
from tl_attention.schedule.files.defaults import computed_problem, defaults


def explain_call(shape: str, arch: str, invariant: bool | None, *, causal: bool, window: str, **asked: Any) -> None:
    """Prints the rules that a call of these options takes, and above each those that it passes over, and why.

    `asked` is what `AttentionShape.parse` takes beside the mask, which may hide all keys of a query.
    """
    seen = _seen(AttentionShape.parse(shape, **asked), causal, window)
    problem, invariant = computed_problem(seen, arch, invariant)
    case, found = Case.of(problem, arch), defaults()
    number = found.choose(case, invariant)
    click.echo(f"{found.rules[number].schedule}\n")
    _show(found, number, case, [rule.schedule for rule in found.rules], invariant)
    click.echo()
    if none := _without_gradient(seen):
        click.echo(f"gradients: none {none}")
        return
    rules, case = backward_rules(), case_of(seen, arch)
    number = rules.choose(case)
    click.echo(f"gradients: {_said(rules.rules[number])}\n")
    _show(rules, number, case, [rule.operator for rule in rules.rules])


def _said(rule: BackwardRule) -> str:
    """Says which operator computes the gradients of a call now, and which later."""
    if not rule.after:
        return rule.operator
    versions = f", if cuDNN is {' or '.join(rule.versions)} or passes a trial" if rule.versions else ""
    return f"flash2 now, and {rule.operator} once a process has had {rule.after} calls of the shape{versions}"


def _without_gradient(problem: AttentionShape) -> str:
    """Returns in words what of a problem has no gradient; "" if all has one."""
    if lacking := [feature for feature in problem.asked.features if feature.word != "lse" and not feature.has_gradient]:
        return f"with {lacking[0].words}"
    if problem.page_size:
        return "with keys in pages"
    if problem.packed:
        return "" if packed_masks_alike(problem.mask, problem.seq_kv) else "with this window of packed sequences"
    alike = masks_alike(problem.mask, problem.seq_q, problem.seq_kv)
    return "" if alike else "with this window and more queries than keys"


def _show(of: RuleFile[Any], number: int, case: Case, taken: Sequence[str], invariant: bool = False) -> None:
    """Shows the rule of this index and those that were passed over; `taken` has what the rules name."""
    rule = of.rules[number]
    for name, text in {
        "case": case,
        "rule": f"{of.file.path}:{of.line(number)}: {', '.join(rule.conditions) or 'every case'}",
        "why": rule.why,
        "record": rule.record,
    }.items():
        click.echo(f"{name:8}{text}")
    above = [(passed, other) for passed, other in enumerate(of.rules[:number]) if case.arch in other.archs]
    if above:
        click.echo("\npassed over, with the first condition that the case does not meet:")
    for passed, other in above:
        unmet = other.unmet(case)
        # Only an invariant case passes over rules whose conditions are all met.
        assert unmet is not None or invariant, "the first rule that serves a case is taken"
        why = other.condition(unmet) if unmet else "computes a row otherwise than the schedule of any length does"
        click.echo(f"  line {of.line(passed)}: {taken[passed]}: {why}")


def _seen(shape: AttentionShape, causal: bool, window: str) -> AttentionShape:
    """Returns the problem under the mask, without the queries that see no key."""
    mask = masked(causal, parse_window(window))
    seq_q = shape.seq_q if shape.packed else Rows.of(mask, shape.seq_q, shape.seq_kv).count
    return replace(shape, seq_q=seq_q, mask=mask)
