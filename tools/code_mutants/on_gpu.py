"""Runs one mutant on the GPU, in a process of its own, because a mutant may fault."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from code_mutants.kernels import KERNELS
from tl_attention.compiler.compile import CompiledKernel, compile_kernel
from tl_attention.lab.measure.candidate import VerifiedProblem, verified_on
from tl_attention.lab.measure.device import card_at_hand
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Sizes
from tl_attention.program.planned import Planned

if TYPE_CHECKING:
    from torch import Tensor

REPEATS = 3
# Elements before and after every tensor: NaN around the inputs, so that what is read there shows.
AROUND = 65_536
# Exact in either dtype, as its neighbours are, and far from any output.
MARK = 96.0
# Several tiles for each SM, and loops over many KV blocks.
ALIGNED = (Sizes(4, 15, 1024, 1024), Sizes(1, 3, 256, 4096))

RIGHT, WRONG, NOT_FINITE, OUTSIDE = "right", "wrong numbers", "NaN or not written", "written outside"
UNSTABLE, FAULT = "not the same twice", "fault"


@dataclass(frozen=True)
class Result:
    """A result says what became of a mutant: RIGHT or another outcome, and words with the problem or the error."""

    outcome: str
    words: str = ""


def compiled(kernel: str, source: str, cubin: bytes) -> CompiledKernel:
    """Compiles a kernel with this text for the generated one, and this machine code for the compiler's.

    The package compiles it in its usual way, proof included. Every kernel that this process compiles later gets this
    text and machine code too.
    """
    import tilelang
    from tilelang.contrib import nvcc
    from tilelang.engine.callback import register_cuda_postproc

    tilelang.disable_cache()
    register_cuda_postproc(lambda code, target: source)
    nvcc.compile_cuda = lambda *given, **options: bytearray(cubin)
    taken = compile_kernel(KERNELS[kernel].schedule, KERNELS[kernel].variant)
    assert taken.source == source, "TileLang compiled another text"
    return taken


def problems(kernel: str) -> Iterator[VerifiedProblem]:
    """Yields the problems of a kernel: some of whole tiles, then ragged ones."""
    variant = KERNELS[kernel].variant
    for sizes in ALIGNED:
        yield VerifiedProblem(AttentionShape.of(variant, sizes))
    yield from verified_on(
        AttentionShape.of(variant, Sizes(2, 3, 1100, 1900)), False, Planned(KERNELS[kernel].schedule)
    )


def run(kernel: str, source: str, cubin: bytes) -> Result:
    """Compares a mutant with the oracle at every shape. Raises InputError where it is refused, or cannot be loaded."""
    numbers = {"workers": KERNELS[kernel].schedule.workers(card_at_hand().sms)}
    taken = partial(compiled(kernel, source, cubin), group=KERNELS[kernel].variant.some_group, **numbers)
    try:
        for number, problem in enumerate(problems(kernel)):
            result = on_shape(taken, problem, number)
            if result.outcome != RIGHT:
                return Result(result.outcome, f"{problem}: {result.words}")
        return Result(RIGHT)
    except Exception:  # CUDA's errors come by way of torch or TVM; one of our own shows in the kernels as generated.
        return Result(FAULT, traceback.format_exc().splitlines()[-1])


def on_shape(kernel: Any, problem: VerifiedProblem, seed: int, device: str = "cuda") -> Result:
    """Runs a kernel on one problem: the output is full of NaN before, and the memory around it is marked."""
    import torch

    from tl_attention.lab.oracle.reference import attention_fp64, attention_same_precision, compare, make_inputs

    shape = problem.shape
    options: dict[str, Any] = {"mask": shape.mask, "scale": shape.head_dim**-0.5}
    q, k, v = (_surrounded(tensor, float("nan"))[0] for tensor in make_inputs(shape, seed, device, problem.spread))
    exact, peer = attention_fp64(q, k, v, **options), attention_same_precision(q, k, v, **options)
    found: list[Tensor] = []
    for _ in range(REPEATS):
        output, memory = _surrounded(torch.full_like(q, float("nan")), MARK)
        kernel(Q=q, K=k, V=v, Output=output, softmax_scale=options["scale"])
        if bool((memory[:AROUND] != MARK).any() or (memory[-AROUND:] != MARK).any()):
            return Result(OUTSIDE)
        found.append(output)
    report = compare(found[0], exact, peer)
    if not report.finite:
        rows = int((~found[0].isfinite()).any(dim=-1).sum())
        return Result(NOT_FINITE, f"{rows} of {found[0][..., 0].numel()} rows")
    if not report.ok:
        return Result(WRONG, str(report))
    return Result(RIGHT) if all(torch.equal(found[0], other) for other in found[1:]) else Result(UNSTABLE)


def _surrounded(tensor: Tensor, around: float) -> tuple[Tensor, Tensor]:
    """Returns a copy of the tensor, and the memory in which the copy lies in the middle."""
    import torch

    memory = torch.full((tensor.numel() + 2 * AROUND,), around, dtype=tensor.dtype, device=tensor.device)
    copy = memory[AROUND:-AROUND].view(tensor.shape)
    copy.copy_(tensor)
    return copy, memory
