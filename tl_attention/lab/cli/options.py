"""Commands share these options: the card, the problem, how often to time and where to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
from click.core import ParameterSource

from tl_attention.errors import InputError, printable
from tl_attention.lab.cli.command import naming
from tl_attention.lab.cli.outputs import OutputFile, ReadFile
from tl_attention.lab.files.kinds import RECORD
from tl_attention.lab.measure.device import another_gpu, card_at_hand, card_of_arch
from tl_attention.problem.card import CARDS, HOPPER, Card
from tl_attention.problem.features import FEATURES
from tl_attention.problem.head_dims import SUPPORTED, HeadSize, check_head_dim, is_meant, parse_head_size
from tl_attention.problem.mask import WINDOW_TEXT
from tl_attention.problem.shape import DTYPE_NAMES, SHAPE_TEXT
from tl_attention.schedule.files.named import Named


def _spelled(name: str) -> str:
    return name.lower().replace(" ", "")


# An arch by its own name, by that without the `a`, as kernels need all of sm_90a, and by the names of its cards.
ARCH_OF = {
    _spelled(name): card.arch
    for card in CARDS.values()
    for name in (*card.name.split(","), card.arch, card.arch.removesuffix("a"))
}


class CardType(click.ParamType):
    """A `CardType` is the type of a click option that takes the name of a known card, such as h100, or its arch."""

    name = "card"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Card:
        if isinstance(value, Card):
            return value
        arch = ARCH_OF.get(_spelled(str(value)))
        if arch is None:
            self.fail(f"{str(value)[:40]!r} is no card, expected one of {', '.join(ARCH_OF)}", param, ctx)
        return card_of_arch(arch)


# The card has the SMs of the GPU at hand if that is such a card. It is None where nobody has chosen.
arch_option = click.option(
    "--arch",
    "card",
    type=CardType(),
    help="the card to compile and check for, such as a100 or sm_86  [default: the GPU here, or h100 where there is none]",
)


def card_for(asked: Card | None, *schedules: Named) -> Card:
    """Returns `asked` unless it is None, else the card at hand or, if a schedule is not for that one, Hopper.

    A schedule is for the cards that its lowering is compiled for.
    """
    if asked is not None:
        return asked
    here = card_at_hand()
    return here if all(_runs_on(named, here) for named in schedules) else HOPPER


def compiled_for_card(schedules: Sequence[Named], card: Card) -> list[Named]:
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
FILE = ReadFile()
# More would take days, and tell no more.
MOST_ROUNDS = 10_000
DEFAULT_SIZES, DEFAULT_HEAD_SIZE = "4,64,8192", 128


def combined_options(*options: Decorator) -> Decorator:
    """Returns one decorator that adds all of these options to a command, in the order in which the help has them."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def dtype_option(help: str, several: bool = False) -> Decorator:
    """Returns the decorator that adds `--dtype` to a command, which gets it as `dtype`, or as `dtypes` if `several`."""
    kind: dict[str, Any] = {"multiple": True} if several else {"default": "fp16", "show_default": True}
    name = "dtypes" if several else "dtype"
    return click.option("--dtype", name, type=click.Choice(sorted(DTYPE_NAMES)), help=help, **kind)


def head_dim_option(help: str) -> Decorator:
    """Returns the decorator that adds `--head-dim`, a head size or None, to a command, with this help."""
    return click.option("--head-dim", type=HEAD_SIZE, help=help)


def rounds_option(help: str) -> Decorator:
    """Returns the decorator that adds `--rounds` to a command, how often each entry is timed."""
    return click.option("--rounds", type=click.IntRange(2, MOST_ROUNDS), help=help)


# None where nobody has chosen: see `shape_for`.
shape_option = click.option(
    "--shape", help=f"the problem's sizes: {SHAPE_TEXT}  [default: {DEFAULT_SIZES} and the head size of --head-dim]"
)
sizes_options = combined_options(
    shape_option,
    head_dim_option(
        f"the head size  [default: the schedule's, {DEFAULT_HEAD_SIZE} if it has several or there is none]"
    ),
)
causal_option = click.option("--causal", is_flag=True, help="a query sees no key behind its own")
window_option = click.option("--window", default="-1,-1", help=f"a sliding window {WINDOW_TEXT}")
# The command takes each by its word.
feature_options = combined_options(
    *(
        click.option(f.option, f.word, help=f.help, type=float, default=f.off)
        if f.is_number
        else click.option(f.option, f.word, help=f.help, is_flag=True)
        for f in FEATURES
    )
)
# The problem of a command that takes one dtype.
problem_options = combined_options(sizes_options, dtype_option("the inputs' dtype"), causal_option)
seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), help="the seed of the inputs  [default: a new one, which is recorded]"
)
output_option = click.option(
    "-o",
    "--output",
    type=OutputFile(RECORD),
    help="the file that results are added to, as JSON lines  [default: a new file in runs/]",
)


def some_of(option: str, text: str, known: Sequence[str], otherwise: str) -> list[str]:
    """Returns the words of an option's text, which commas separate. Raises InputError for one that is not known.

    The error says what such a word is `otherwise`.
    """
    found = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if unknown := [word for word in found if word not in known]:
        raise InputError(f"{option}: {unknown[0][:40]!r} is {otherwise}, expected some of {', '.join(known)}")
    return found


def given(context: click.Context, *but: str) -> str:
    """Returns the first option or argument that the user gave, except those that the command gets as `but`, or ""."""
    for parameter in context.command.params:
        name = str(parameter.name)
        if name not in but and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            return parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.human_readable_name
    return ""


def shape_for(text: str | None, head_dim: HeadSize | None, schedules: Sequence[Named] = ()) -> str:
    """Returns `text` unless it is None, else the default sizes with `head_dim`, or one that the schedules have."""
    if text is None:
        return f"{DEFAULT_SIZES},{head_dim or head_size_for(schedules)}"
    if head_dim is not None:
        raise InputError("--head-dim: expected it without --shape, which names the head_dim too")
    return text


def head_size_for(schedules: Sequence[Named]) -> HeadSize:
    """Returns 128 if a schedule is meant for it or there is none, else the first head size of the first schedule."""
    if not schedules or any(is_meant(DEFAULT_HEAD_SIZE, named.head_dims) for named in schedules):
        return DEFAULT_HEAD_SIZE
    return schedules[0].head_dims[0]
