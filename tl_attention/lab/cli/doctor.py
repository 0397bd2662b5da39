"""`doctor` shows what this machine has of what `run` needs."""

from __future__ import annotations

import sys

import click

from tl_attention.lab.cli.command import FAILED, command, say

WIDTH = 13


@command(examples={"doctor": "exit code 1 if `tl-attention run` would fail here"})
def doctor() -> None:
    """Show the versions, GPU, driver, compilers and caches of this machine, and how to mend what is missing.

    It compiles a small kernel, and ends with exit code 1 if `tl-attention run` would fail.
    """
    from tl_attention.lab.measure.doctor import examine

    facts = []
    for fact in examine():
        click.echo(f"{fact.name:{WIDTH}} {fact.value}")
        if fact.hint:
            click.echo(f"{'':{WIDTH}} {fact.hint}")
        facts.append(fact)
    faulty = [fact for fact in facts if fact.fault]
    if not faulty:
        click.echo("ready: tl-attention run best")
        return
    # After all facts: stderr and stdout often end in one terminal.
    sys.stdout.flush()
    for fact in faulty:
        say(f"{fact.name}: {fact.fault}")
    sys.exit(FAILED)
