"""`bench` compiles, verifies and times several schedules, or the steps of a ladder, and ranks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tl_attention.errors import InputError
from tl_attention.lab.cli.command import command
from tl_attention.lab.cli.ladder import climb, ladder_option
from tl_attention.lab.cli.measure import measure
from tl_attention.lab.cli.options import causal_option, dtype_option, given, output_option, rounds_option, sizes_options
from tl_attention.lab.cli.schedules import schedules_argument, texts_of
from tl_attention.lab.measure import device

# The schedules that are taken where nothing can be timed: each compilation takes 7 s of a core.
WITHOUT_GPU = ("seed", "fa3_overlap", "best", "best_causal")
OF_RUN = "is gone: `run NAME` has it"


@command(
    examples={
        "bench": "the schedules at the top of schedules/",
        "bench best mine.yaml --causal": "these two, with a causal mask",
        "bench experiments": "a folder",
        "bench --ladder worklog": "the steps of a ladder, and what each changed",
    },
    gone={
        "--every": "is gone: `bench schedules` takes every file of the folder",
        "--peers": "is gone: peers are always measured, and `run` measures none",
        "--no-peers": "is gone: `run` measures no peers",
        "--seed": OF_RUN,
        "--arch": OF_RUN,
        "--window": f"{OF_RUN}, and cells of `compare`",
        "--softcap": f"{OF_RUN}, and cells of `compare`",
        "--sinks": f"{OF_RUN}, and cells of `compare`",
        "--lse": f"{OF_RUN}, and cells of `compare`",
    },
)
@schedules_argument
@ladder_option("measure the steps of this ladder, on its problem, in place of schedules")
@sizes_options
@dtype_option("the inputs' dtype; may be given twice  [default: fp16 and bf16]", several=True)
@causal_option
@click.option(
    "--sizes",
    type=click.Choice(["runtime", "fixed", "both"]),
    default="runtime",
    show_default=True,
    help="the kernel reads the sizes at run time, or is compiled for exactly this shape",
)
@rounds_option("how often every kernel is timed, in turn  [default: 5, a ladder's 9]")
@output_option
@click.pass_context
def bench(
    context: click.Context,
    /,
    schedules: tuple[str, ...],
    ladder: str | None,
    dtypes: tuple[str, ...],
    rounds: int | None,
    output: Path | None,
    **problem: Any,
) -> None:
    """Compile, verify and time several schedules, and rank them beside cuDNN and FlashAttention.

    Without a SCHEDULE it takes those at the top of schedules/. Without a GPU it compiles them and checks their numbers
    on the CPU, and takes only seed, fa3_overlap, best and best_causal. A ladder retells how a text tuned its kernel, a
    schedule for each step.
    """
    if ladder is not None:
        if stray := given(context, "ladder", "rounds", "output"):
            raise InputError(f"--ladder names the schedules and their problem: expected no {stray} beside it")
        climb(ladder, rounds, output)
        return
    texts, dtypes = texts_of(schedules) if schedules else default_schedules(), dtypes or ("fp16", "bf16")
    measure("bench", texts, refuse=False, peers=None, dtypes=dtypes, rounds=rounds, output=output, **problem)


def default_schedules() -> list[str]:
    """Returns the names of all top schedules, but only four where there is no GPU of a known card."""
    texts = texts_of(())
    if any(gpu.card for gpu in device.visible_gpus()[:1]):
        return texts
    four = ", ".join(WITHOUT_GPU)
    click.echo(f"no GPU: {len(WITHOUT_GPU)} of {len(texts)} schedules, {four}; others are taken by name", err=True)
    return list(WITHOUT_GPU)
