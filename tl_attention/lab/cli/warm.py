"""`warm` compiles kernels ahead, so that the first call of a process finds them finished."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tl_attention.errors import InputError, printable
from tl_attention.lab.cli.command import FAILED, ErrorCount, command
from tl_attention.lab.cli.options import (
    arch_option,
    compiled_for_card,
    dtype_option,
    feature_options,
    head_dim_option,
    head_size_for,
    shape_for,
    shape_option,
    window_option,
)
from tl_attention.lab.cli.schedules import meant_for, prove, resolve_all, schedules_argument, texts_of
from tl_attention.lab.measure.device import card_at_hand
from tl_attention.problem.card import HOPPER, Card
from tl_attention.problem.head_dims import HeadSize, sizes_of
from tl_attention.problem.mask import Mask, masked, parse_window
from tl_attention.problem.shape import AttentionShape, parse_dtype
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.backward import backward_rules, case_of
from tl_attention.schedule.files.defaults import default_schedules
from tl_attention.schedule.files.named import Named, resolve
from tl_attention.schedule.loop.loops import FORWARD

if TYPE_CHECKING:
    from tl_attention.lab.measure.candidate import Candidate

# The proof takes lengths beyond the window's: their arithmetic is of 32 bits, as the kernel's.
MOST_KEYS = 2**30


@command(
    examples={
        "warm --head-dim 64 --dtype bf16": "the kernels that attention() takes by default",
        "warm mine.yaml --causal --lse": "a file of yours, for training",
        "warm --shape 1,32/8,4096,64 --arch a100": "grouped heads, for another machine with an A100",
    },
    gone={
        "--group": "is gone: `--shape 1,32/8,4096,128` says it, with heads of Q/heads of K and V",
        "--packed": "is gone: `--shape 8x4096,32,128` says it, with packed sequences",
        "--sms": "is gone: a kernel serves GPUs of any number of SMs",
    },
)
@schedules_argument
@shape_option
@head_dim_option("the head size  [default: that of each SCHEDULE, 128 without any]")
@dtype_option("the dtype of calls; may be given twice  [default: fp16 and bf16]", several=True)
@click.option("--causal/--no-causal", default=None, help="calls with a causal mask, or without one  [default: both]")
@window_option
@feature_options
@click.option(
    "--strided",
    is_flag=True,
    help="for calls with views or layout bshd: tensors of any strides, instead of contiguous ones",
)
@click.option("--invariant", is_flag=True, help="for calls with invariant=True")
@arch_option
def warm(**asked: Any) -> None:
    """Compile kernels ahead of time, so that the first attention() call of a process finds them. It needs no GPU.

    Without a SCHEDULE these are the kernels that attention() takes by default. A kernel serves all batches, heads and
    lengths, and all windows that are closed on the same sides. The options say for which calls: of a shape these are
    the head size, how many heads of Q share one of K and V, and whether sequences are packed. --lse is for calls that
    return the LSE or have a gradient. Of loop dq and dkdv they are the kernels that compute gradients.
    """
    if not filled(kernels_of(**asked)):
        sys.exit(FAILED)


def kernels_of(
    schedules: tuple[str, ...],
    shape: str | None,
    head_dim: HeadSize | None,
    dtypes: Sequence[str],
    causal: bool | None,
    window: str,
    strided: bool,
    invariant: bool,
    card: Card | None,
    **asked: Any,
) -> list[Candidate]:
    """Returns the kernels that `warm` compiles with these options, each once. Raises as the command fails."""
    # A mistake in any file or option is told before the first slow import.
    on = card or card_at_hand()
    named = compiled_for_card(resolve_all(texts_of(schedules), None), on) if schedules else []
    kinds = (False, True) if causal is None else (causal,)
    masks = dict.fromkeys(masked(is_causal, _window(window)) for is_causal in kinds)
    of_calls = AttentionShape.parse(shape_for(shape, head_dim, named))
    is_sized = shape is not None or head_dim is not None
    sizes = [of_calls.head_size] if is_sized or not named else [head_size_for([one]) for one in named]
    shapes = [
        _any_lengths(of_calls, size, mask, parse_dtype(dtype)).asking(**asked)
        for size in dict.fromkeys(sizes)
        for dtype in dict.fromkeys(dtypes or ("fp16", "bf16"))
        for mask in masks
    ]
    wanted = [(one, call) for call in shapes for one in _named(named, call, on, invariant, is_sized, shape)]
    if not named:
        wanted += [one for call in shapes for one in _of_gradients(call, strided, on)]
    problems = ErrorCount()
    # Only head sizes matter here.
    for (_, size), one in {(one.text, shape.head_size): one for one, shape in wanted}.items():
        with problems.each():
            prove(one, [size], on)
    problems.finish()

    from tl_attention.lab.measure.candidate import Candidate
    from tl_attention.lab.measure.compilation import check_can_be_filled
    from tl_attention.op.few import kernels_for_any_lengths

    check_can_be_filled()
    kernels = (
        Candidate(
            *(one.name, problem, Planned(one.schedule)),
            strided=strided,
            arch=on.arch,
            invariant=invariant,
            in_parts=in_parts,
            tile_heads=heads,
        )
        for one, shape in wanted
        for problem, heads, in_parts in (
            kernels_for_any_lengths(shape, one.schedule, invariant)
            if one.schedule.loop == FORWARD
            # The LSE of a call that returns it may have a gradient, or none.
            else [(of, 1, False) for of in dict.fromkeys((shape.asking(lse=False), shape))]
        )
    )
    # Two names may have one schedule.
    return [*{(kernel.schedule, kernel.variant): kernel for kernel in kernels}.values()]


def filled(kernels: Sequence[Candidate]) -> bool:
    """Has the store filled with the kernels that it lacks, says how each ends, and returns whether all are there."""
    from tl_attention.lab.measure.compilation import fill
    from tl_attention.lab.show.console import ProgressBar

    failed = 0
    with ProgressBar() as progress:
        progress.phase("compile", len(kernels), "kernel")
        for kernel, compiled in fill(kernels):
            if compiled is None:
                progress.show(f"{_words(kernel)}: was there already")
            elif compiled.status == "ok":
                progress.show(f"{_words(kernel)}: compiled in {compiled.seconds:.1f} s")
            else:
                failed += 1
                progress.say(" ".join(f"error: {_words(kernel)}: {compiled.error}".split()))
            # The line above has its name.
            progress.advance("")
    return not failed


def _window(text: str) -> tuple[int, int]:
    sides = parse_window(text)
    if max(sides) > MOST_KEYS:
        raise InputError(
            f"--window: {text[:40]!r} hides no key of a sequence, expected at most {MOST_KEYS} keys on a side"
        )
    return sides


def _any_lengths(of_calls: AttentionShape, size: HeadSize, mask: Mask, dtype: str) -> AttentionShape:
    """Returns a problem with the heads and packing of these calls; a kernel serves all batches and lengths: 1 here."""
    head_dim, head_dim_v = sizes_of(size)
    sizes: dict[str, Any] = {"head_dim": head_dim, "head_dim_v": head_dim_v, "dtype": dtype, "mask": mask}
    return replace(of_calls, batch=1, heads=of_calls.group, heads_kv=1, seq_q=1, seq_kv=1, lengths=(), **sizes)


def _named(
    asked: Sequence[Named], shape: AttentionShape, card: Card, invariant: bool, is_sized: bool, text: str | None
) -> list[Named]:
    """Returns the schedules to compile for a shape, the defaults if `asked` is empty, else those for its head size."""
    # --shape's `text` or --head-dim asks for a size; otherwise each of `asked` is for its own.
    if asked and is_sized:
        return meant_for(asked, shape.head_size, text)
    if asked:
        return [named for named in asked if head_size_for([named]) == shape.head_size]
    return [resolve(name) for name in default_schedules(shape, card.arch, invariant)]


def _of_gradients(shape: AttentionShape, strided: bool, card: Card) -> Iterator[tuple[Named, AttentionShape]]:
    """Yields the schedules of the pairs that rules take for the gradients of such calls, with the calls' problem."""
    from tl_attention.op.pair import launched, pair_of

    # Few calls have a gradient of the LSE. Its kernel is compiled for a pair that the command names.
    problem = shape.asking(lse=False)
    for names in backward_rules().pairs(case_of(shape, card.arch)) if shape.asked["lse"] else ():
        # The next rule serves what a pair does not compute.
        with suppress(InputError):
            yield from [(named, problem) for named, _ in launched(pair_of(names), problem, strided, card.arch)]


def _words(kernel: Candidate) -> str:
    """Describes a kernel in a line, with its schedule, head size, dtype, mask, features and arch."""
    variant = kernel.variant
    together = ", their rows in one tile" if variant.tile_heads > 1 else ""
    is_grouped = variant.tile_heads > 1 or (variant.group or 1) > 1
    group = [f"{variant.group} heads of Q for each of K and V{together}"] if is_grouped else []
    more = [
        *group,
        *sorted(variant.optional),
        *(["packed"] if variant.packed else ["strided"] * variant.strided),
        *([f"keys in pages, {variant.key_box} at a time"] if variant.key_box else []),
        *([] if variant.arch == HOPPER.arch else [variant.arch]),
    ]
    what = f"head_dim {variant.head_size} {variant.dtype}{variant.mask.suffix}"
    return printable(", ".join([f"{kernel.name} {what}", *more]))
