"""`--arch`: the card that is compiled and checked for, which need not be the GPU at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from tl_attention.cli.errors import naming
from tl_attention.errors import printable
from tl_attention.files.named import Named
from tl_attention.hardware.card import ARCHS, HOPPER, Card
from tl_attention.hardware.device import another_gpu, card_at_hand, card_of_arch


class ArchType(click.Choice[str]):
    """The archs of the known cards. The one with an `a` goes by its plain name too: kernels need all of sm_90a."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = f"{value}a" if f"{value}a" in ARCHS else value
        return super().convert(text, param, ctx)


def arch_option(command: Any) -> Any:
    """Gives the command a `card`: the one asked for, with the SMs of the GPU at hand if it is that; None for none."""
    return click.option(
        "--arch",
        "card",
        type=ArchType(ARCHS),
        callback=lambda context, parameter, arch: arch and card_of_arch(arch),
        help="the card to compile and check for  [default: the GPU here, or sm_90a where there is none]",
    )(command)


def card_for(asked: Card | None, *schedules: Named) -> Card:
    """The card that is asked for; else the one at hand if the schedules' lowerings are compiled for it, or Hopper."""
    if asked is not None:
        return asked
    here = card_at_hand()
    return here if all(_runs_on(named, here) for named in schedules) else HOPPER


def of_card(schedules: Sequence[Named], card: Card) -> list[Named]:
    """Those whose lowering is compiled for the card; the others are left out with a line for all of them.

    Raises InputError, with file and line, where there is none.
    """
    from tl_attention.lowering.preflight import check_card

    found = [named for named in schedules if _runs_on(named, card)]
    if not found:
        with naming(schedules[0]):
            check_card(schedules[0].schedule, card)
    if others := [named for named in schedules if not _runs_on(named, card)]:
        lowerings = ", ".join(sorted({named.schedule.lowering for named in others}))
        click.echo(f"left out: {len(others)} of {len(schedules)} schedules: {lowerings} is not for {card}", err=True)
    return found


def say_not_launched(card: Card) -> None:
    """A line on stderr where the GPU at hand is another card: what is compiled for one is never launched on the other."""
    if gpu := another_gpu(card.arch):
        click.echo(f"compiled for {card}; the GPU here is {printable(gpu.name)}: nothing is launched on it", err=True)


def _runs_on(named: Named, card: Card) -> bool:
    from tl_attention.lowering.registry import lowering_of

    return card.arch in lowering_of(named.schedule).archs
