"""The options that say which problem is meant, and the problem where they leave it open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from tl_attention.files.named import Named
from tl_attention.problem.features import FEATURES
from tl_attention.problem.head_dims import HeadSize, is_meant
from tl_attention.problem.shape import SHAPE_TEXT
from tl_attention.problem.window import WINDOW_TEXT

F = TypeVar("F", bound=Callable[..., Any])
# More would take days, and tell no more.
MOST_ROUNDS = 10_000
DEFAULT_SIZES, DEFAULT_HEAD_SIZE = "4,64,8192", 128
DEFAULT_SHAPE = f"{DEFAULT_SIZES},{DEFAULT_HEAD_SIZE}"


def shape_option(without: str, **options: Any) -> Callable[[F], F]:
    """`--shape`, whose help says what is taken `without` it."""
    return click.option("--shape", help=f"the problem's sizes: {SHAPE_TEXT}  [default: {without}]", **options)


# The text that it gives is None where nobody has chosen: `shape_for` then takes the schedules' head size.
shape_of_schedule = shape_option(f"{DEFAULT_SIZES} and the schedule's head_dim, {DEFAULT_HEAD_SIZE} if it has several")
causal_option = click.option("--causal", is_flag=True, help="a query sees no key behind its own")
window_option = click.option("--window", default="-1,-1", help=f"a sliding window {WINDOW_TEXT}")
seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), help="the seed of the inputs  [default: a new one, which is recorded]"
)


def feature_options(command: F) -> F:
    """Adds an option for each feature. The command takes each by its word."""
    for feature in reversed(FEATURES):
        kind: dict[str, Any] = {"type": float, "default": feature.off} if feature.is_number else {"is_flag": True}
        command = click.option(feature.option, feature.word, help=feature.help, **kind)(command)
    return command


def shape_for(text: str | None, schedules: Sequence[Named]) -> str:
    """The text of `--shape`; without it the default sizes, with a head size that the schedules are meant for."""
    return f"{DEFAULT_SIZES},{head_size_for(schedules)}" if text is None else text


def head_size_for(schedules: Sequence[Named]) -> HeadSize:
    """128 where any of the schedules is meant for it, else the first that the first of them names."""
    if any(is_meant(DEFAULT_HEAD_SIZE, named.head_dims) for named in schedules):
        return DEFAULT_HEAD_SIZE
    return schedules[0].head_dims[0]
