"""Compares the proof of the roles' events with the simulator of tests/, on many event programs with random faults.

    python tools/trial_of_races.py [--programs 10000] [--seed 10]

A program that the proof accepts, in any of its own orders, may not fail in any order that is tried: all orders of small
programs, 200 random and biased orders of the others. A program that the proof refuses is counted by the rule that it
breaks first, and by whether some order fails; each rule shows an example for which no order fails. The exit code is 1
if the proof is wrong anywhere. 10,000 programs take about ten minutes of a core.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import click

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from race_trial import Trial, mutants, trial

from tl_attention.proof.mbarrier import Rule
from tl_attention.show.table import lines

HEADINGS = ("rule", "refused", "some order fails", "no order fails", "no order of 200 fails")


def outcome(found: Trial) -> str:
    """Returns the heading of the column that a trial counts in."""
    if found.fault:
        return HEADINGS[2]
    return HEADINGS[3] if found.all_orders else HEADINGS[4]


def table(trials: Iterable[Trial]) -> list[str]:
    counts = Counter((found.rule, outcome(found)) for found in trials)
    rows = []
    for rule in (*Rule, None):
        columns = [counts[rule, heading] for heading in HEADINGS[2:]]
        rows.append([rule or "(accepted)", *(f"{count:,}" for count in (sum(columns), *columns))])
    return lines(HEADINGS, rows)


def examples(trials: Iterable[Trial]) -> list[str]:
    """Shows for each rule the shortest refused program that fails in no order, and prefers one with all orders tried."""
    by_rule: dict[Rule, Trial] = {}
    for found in sorted(trials, key=lambda found: (not found.all_orders, found.program.size, len(found.program.name))):
        if found.rule and not found.fault:
            by_rule.setdefault(found.rule, found)
    return [
        f"{rule}: {by_rule[rule].program.name}\n    {by_rule[rule].refusals[0]}" for rule in Rule if rule in by_rule
    ]


@click.command()
@click.option("--programs", type=click.IntRange(1), default=10_000, show_default=True)
@click.option("--seed", type=int, default=10, show_default=True)
def main(programs: int, seed: int) -> None:
    """Try the proof of the roles' events on faulty programs."""
    trials = []
    wrong = 0
    for number, program in enumerate(mutants(programs, seed)):
        trials.append(trial(program, number))
        if trials[-1].wrong:
            wrong += 1
            click.echo(f"WRONG: {program.name}\n    {trials[-1].wrong}")
        if sys.stderr.isatty() or (number + 1) % 1000 == 0:
            click.echo(f"\r{number + 1:,} programs", err=True, nl=(number + 1) % 1000 == 0)
    click.echo("\n".join([*table(trials), "", *examples(trials), ""]))
    click.echo(f"{programs:,} programs, {wrong:,} WRONG")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
