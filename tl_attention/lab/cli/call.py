"""This module shows what attention() takes for a call without a schedule: a schedule, and the gradients' operator.

It imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click

from tl_attention.errors import printable
from tl_attention.op.rows import Rows
from tl_attention.problem.mask import fitted, masked, parse_window
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files.backward import BackwardRule, backward_rules, case_of, masks_alike, packed_masks_alike
from tl_attention.schedule.files.conditions import Case, RuleFile
from tl_attention.schedule.files.defaults import computed_problem, defaults


def explain_call(
    shape: str, arch: str, invariant: bool | None, *, causal: bool, window: str, backward: Sequence[str] = (),
    **asked: Any,
) -> None:  # fmt: skip
    """Prints the rules that a call of these options takes, and above each those that it passes over, and why.

    `asked` is what `AttentionShape.parse` takes beside the mask, which may hide all keys of a query. `backward` has the
    names of the pair that the call names, if it does.
    """
    whole = AttentionShape.parse(shape, **asked)
    if backward:
        from tl_attention.op.pair import pair_of

        # A mistake in it is told before anything is shown.
        pair_of(backward)
    seen = _seen(whole, causal, window)
    problem, invariant = computed_problem(seen, arch, invariant)
    case, found = Case.of(problem, arch), defaults()
    number = found.choose(case, invariant)
    click.echo(f"{found.rules[number].schedule}\n")
    # Only an invariant case passes over rules whose conditions are all met.
    otherwise = "computes a row otherwise than the schedule of any length does"
    _show(found, number, case, [rule.schedule for rule in found.rules], lambda passed: otherwise if invariant else "")
    click.echo()
    if whole.page_size:
        click.echo("gradients: none with keys in pages")
        return
    mask = seen.mask if whole.packed else fitted(seen.mask, whole.seq_q, whole.seq_kv)
    _show_gradients(seen, replace(whole, mask=mask), arch, backward)


def _show_gradients(seen: AttentionShape, whole: AttentionShape, arch: str, backward: Sequence[str]) -> None:
    """Shows what computes the gradients of a call: the pair that it names, or what the rules take."""
    without = _without_gradient(seen)

    def why_not(names: Sequence[str], strided: bool = False) -> str:
        """Returns why a pair does not serve the call, or without names why PyTorch's operators do not."""
        if not names:
            return without
        from tl_attention.op import pair

        return pair.why_not(names, whole, strided, arch)

    def choose(strided: bool) -> int | None:
        return rules.find(case, lambda rule: not why_not(rule.schedules, strided))

    if backward:
        why, names = why_not(backward), ", ".join(map(printable, backward))
        click.echo(f"gradients: none: {why}" if why else f"gradients: pair ({names}), which the call names")
        return
    rules, case = backward_rules(), case_of(seen, arch)
    number, of_strided = choose(False), choose(True)
    if number is None:
        whys = {
            rule.words: why_not(rule.schedules) for rule in rules.rules if rule.unmet(case) is None and rule.schedules
        }
        click.echo("; ".join([f"gradients: none {without}", *map(": ".join, whys.items())]))
        return
    others = "" if of_strided in (number, None) else f"; of strided tensors {_said(rules.rules[of_strided])}"
    click.echo(f"gradients: {_said(rules.rules[number])}{others}\n")
    taken = [rule.words for rule in rules.rules]
    _show(rules, number, case, taken, lambda passed: why_not(rules.rules[passed].schedules))


def _said(rule: BackwardRule) -> str:
    """Says which operator computes the gradients of a call now, and which later."""
    if not rule.after:
        return rule.words
    versions = f", if cuDNN is {' or '.join(rule.versions)} or passes a trial" if rule.versions else ""
    return f"flash2 now, and {rule.operator} once a process has had {rule.after} calls of the shape{versions}"


def _without_gradient(problem: AttentionShape) -> str:
    """Returns in words what of a problem has no gradient by PyTorch's operators, "" if all has one."""
    if lacking := [feature for feature in problem.asked.features if not feature.has_gradient]:
        return f"with {lacking[0].words}"
    if problem.packed:
        return "" if packed_masks_alike(problem.mask, problem.seq_kv) else "with this window of packed sequences"
    alike = masks_alike(problem.mask, problem.seq_q, problem.seq_kv)
    return "" if alike else "with this window and more queries than keys"


def _show(of: RuleFile[Any], number: int, case: Case, taken: Sequence[str], why_not: Callable[[int], str]) -> None:
    """Shows the rule of this index and those that were passed over; `taken` has what the rules name.

    `why_not` says why a rule was passed over whose conditions are all met, by its index.
    """
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
        why = other.condition(unmet) if unmet else why_not(passed)
        assert why, "the first rule that serves a case is taken"
        click.echo(f"  line {of.line(passed)}: {taken[passed]}: {why}")


def _seen(shape: AttentionShape, causal: bool, window: str) -> AttentionShape:
    """Returns the problem under the mask, without the queries that see no key."""
    mask = masked(causal, parse_window(window))
    seq_q = shape.seq_q if shape.packed else Rows.of(mask, shape.seq_q, shape.seq_kv).count
    return replace(shape, seq_q=seq_q, mask=mask)
