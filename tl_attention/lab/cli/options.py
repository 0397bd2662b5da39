"""Commands share these options: the card, the problem, how often to time and where to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from tl_attention.errors import InputError, printable
from tl_attention.lab.cli.command import naming
from tl_attention.lab.cli.outputs import NamedFile, OutputFile
from tl_attention.lab.files.kinds import RECORD
from tl_attention.lab.measure.device import another_gpu, card_at_hand, card_of_arch
from tl_attention.problem.card import ARCHS, HOPPER, Card
from tl_attention.problem.features import FEATURES
from tl_attention.problem.head_dims import SUPPORTED, HeadSize, check_head_dim, is_meant, parse_head_size
from tl_attention.problem.mask import WINDOW_TEXT
from tl_attention.problem.shape import DTYPE_NAMES, SHAPE_TEXT
from tl_attention.schedule.files.named import Named


class ArchType(click.Choice[str]):
    """An `ArchType` is the type of a click option that takes the arch of a known card, such as sm_80 or sm_90a.

    An arch with an `a` goes by its plain name too: kernels need all of sm_90a.
    """

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = f"{value}a" if f"{value}a" in ARCHS else value
        return super().convert(text, param, ctx)


def arch_option(command: Any) -> Any:
    """Adds the option `--arch` to a command, which gets the card of that arch as `card`, or None without it.

    The card has the SMs of the GPU at hand if that is the card.
    """
    return click.option(
        "--arch",
        "card",
        type=ArchType(ARCHS),
        callback=lambda context, parameter, arch: arch and card_of_arch(arch),
        help="the card to compile and check for  [default: the GPU here, or sm_90a where there is none]",
    )(command)


def card_for(asked: Card | None, *schedules: Named) -> Card:
    """Returns `asked` unless it is None, else the card at hand or, if a schedule is not for that one, Hopper.

    A schedule is for the cards that its lowering is compiled for.
    """
    if asked is not None:
        return asked
    here = card_at_hand()
    return here if all(_runs_on(named, here) for named in schedules) else HOPPER


def of_card(schedules: Sequence[Named], card: Card) -> list[Named]:
    """Returns the schedules whose lowering is compiled for the card, and prints how many it leaves out.

    Raises InputError, with file and line, where none is for the card.
    """
    from tl_attention.kernels.preflight import check_card

    found = [named for named in schedules if _runs_on(named, card)]
    if not found:
        with naming(schedules[0]):
            check_card(schedules[0].schedule, card)
    if others := [named for named in schedules if not _runs_on(named, card)]:
        lowerings = ", ".join(sorted({named.schedule.lowering for named in others}))
        click.echo(f"left out: {len(others)} of {len(schedules)} schedules: {lowerings} is not for {card}", err=True)
    return found


def say_not_launched(card: Card) -> None:
    """Prints on stderr that nothing will be launched, if the GPU at hand is another card than this one.

    What is compiled for one card is never launched on another.
    """
    if gpu := another_gpu(card.arch):
        click.echo(f"compiled for {card}; the GPU here is {printable(gpu.name)}: nothing is launched on it", err=True)


def _runs_on(named: Named, card: Card) -> bool:
    from tl_attention.kernels.registry import lowering_of

    return card.arch in lowering_of(named.schedule).archs


class HeadSizeType(click.ParamType):
    """A `HeadSizeType` is the type of a click option that takes a supported head size, N or N/N for two.

    Raises InputError for a size that is not supported.
    """

    name = "head_dim"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "N|N/N"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> HeadSize:
        try:
            size = parse_head_size(str(value))
        except ValueError:
            self.fail(f"{str(value)[:40]!r} is no head size, expected {SUPPORTED}, or two of them: 192/128", param, ctx)
        check_head_dim(size)
        return size


HEAD_SIZE = HeadSizeType()


Decorator = Callable[[Any], Any]
FILE = NamedFile()
# More would take days, and tell no more.
MOST_ROUNDS = 10_000
DEFAULT_SIZES, DEFAULT_HEAD_SIZE = "4,64,8192", 128
DEFAULT_SHAPE = f"{DEFAULT_SIZES},{DEFAULT_HEAD_SIZE}"


def together(*options: Decorator) -> Decorator:
    """Returns one decorator that adds all of these options to a command, in the order in which the help has them."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def shape_option(without: str, **options: Any) -> Decorator:
    """Returns the decorator that adds `--shape`, the problem's sizes, to a command.

    The help says what is taken `without` it.
    """
    return click.option("--shape", help=f"the problem's sizes: {SHAPE_TEXT}  [default: {without}]", **options)


def dtype_option(help: str, several: bool = False) -> Decorator:
    """Returns the decorator that adds `--dtype` to a command, which gets it as `dtype`, or as `dtypes` if `several`."""
    kind: dict[str, Any] = {"multiple": True} if several else {"default": "fp16", "show_default": True}
    name = "dtypes" if several else "dtype"
    return click.option("--dtype", name, type=click.Choice(sorted(DTYPE_NAMES)), help=help, **kind)


def head_dim_option(help: str) -> Decorator:
    """Returns the decorator that adds `--head-dim`, a head size or None, to a command, with this help."""
    return click.option("--head-dim", type=HEAD_SIZE, help=help)


def sizes_option(*kinds: str) -> Decorator:
    """Returns the decorator that adds `--sizes`, one of these kinds and by default the first, to a command."""
    words = "the kernel reads the sizes at run time, or is compiled for exactly this shape"
    return click.option("--sizes", type=click.Choice(kinds), default=kinds[0], show_default=True, help=words)


def rounds_option(least: int, help: str, **default: Any) -> Decorator:
    """Returns the decorator that adds `--rounds` to a command, how often each entry is timed, `least` or more."""
    return click.option("--rounds", type=click.IntRange(least, MOST_ROUNDS), help=help, **default)


# The text that it gives is None where nobody has chosen: `shape_for` then takes the schedules' head size.
shape_of_schedule = shape_option(f"{DEFAULT_SIZES} and the schedule's head_dim, {DEFAULT_HEAD_SIZE} if it has several")
causal_option = click.option("--causal", is_flag=True, help="a query sees no key behind its own")
window_option = click.option("--window", default="-1,-1", help=f"a sliding window {WINDOW_TEXT}")
# The command takes each by its word.
feature_options = together(
    *(
        click.option(f.option, f.word, help=f.help, type=float, default=f.off)
        if f.is_number
        else click.option(f.option, f.word, help=f.help, is_flag=True)
        for f in FEATURES
    )
)
# The problem of a command that takes one dtype.
problem_options = together(shape_of_schedule, dtype_option("the inputs' dtype"), causal_option)
seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), help="the seed of the inputs  [default: a new one, which is recorded]"
)
output_option = click.option(
    "--output",
    type=OutputFile(RECORD),
    help="the file that results are added to, as JSON lines  [default: a new file in runs/]",
)


def some_of(option: str, text: str, known: Sequence[str], otherwise: str) -> list[str]:
    """Returns the words of an option's text, which are separated by commas. Raises InputError for one that is not known.

    The error says what such a word is `otherwise`.
    """
    found = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if unknown := [word for word in found if word not in known]:
        raise InputError(f"{option}: {unknown[0][:40]!r} is {otherwise}, expected some of {', '.join(known)}")
    return found


def shape_for(text: str | None, schedules: Sequence[Named]) -> str:
    """Returns `text` unless it is None, else the default sizes with a head size that the schedules are meant for."""
    return f"{DEFAULT_SIZES},{head_size_for(schedules)}" if text is None else text


def head_size_for(schedules: Sequence[Named]) -> HeadSize:
    """Returns 128 where any of the schedules is meant for it, else the first head size that the first schedule names."""
    if any(is_meant(DEFAULT_HEAD_SIZE, named.head_dims) for named in schedules):
        return DEFAULT_HEAD_SIZE
    return schedules[0].head_dims[0]
