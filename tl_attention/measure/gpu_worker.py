"""What runs in the worker process on the GPU: verification and timing of one candidate at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tl_attention.build.compile import CompiledKernel
from tl_attention.measure import peers, timing
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.compilation import kernel_of
from tl_attention.oracle.reference import ErrorReport, attention_fp64, attention_same_precision, compare, make_inputs
from tl_attention.problem.shape import AttentionShape

REPEATS = 3


@functools.lru_cache(maxsize=1)
def _inputs(shape: AttentionShape, seed: int, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    return make_inputs(shape, seed, "cuda", spread)


@functools.lru_cache(maxsize=1)
def _output(shape: AttentionShape) -> Tensor:
    # One for all kernels: they run one after another, and an 80 GB card could not hold one for each.
    size = (shape.batch, shape.heads, shape.seq_q, shape.head_dim_v)
    return torch.empty(size, dtype=getattr(torch, shape.dtype), device="cuda")


# The largest problem's reference takes gigabytes and seconds, the ragged ones nothing: keep the last few.
@functools.lru_cache(maxsize=32)
def _references(shape: AttentionShape, seed: int, spread: float) -> tuple[Tensor, Tensor]:
    q, k, v = _inputs(shape, seed, spread)
    options: dict[str, Any] = {"mask": shape.mask, "scale": shape.head_dim**-0.5}
    return attention_fp64(q, k, v, **options), attention_same_precision(q, k, v, **options)


@functools.cache
def _kernel(candidate: Candidate) -> CompiledKernel:
    return kernel_of(candidate)


def _implementation(
    candidate: Candidate, shape: AttentionShape, seed: int, spread: float = 1.0
) -> Callable[[], Tensor]:
    q, k, v = _inputs(shape, seed, spread)
    if candidate.schedule is None:
        return peers.build(candidate.name, shape, q, k, v)
    kernel = _kernel(candidate)
    output = _output(shape)
    scale = shape.head_dim**-0.5

    def run() -> Tensor:
        kernel(Q=q, K=k, V=v, Output=output, softmax_scale=scale)
        return output

    return run


def verify(candidate: Candidate, shape: AttentionShape, spread: float, seed: int) -> tuple[ErrorReport, bool]:
    """(error of the candidate on fresh inputs, whether its repeats were bitwise equal)."""
    exact, peer = _references(shape, seed, spread)
    call = _implementation(candidate, shape, seed, spread)
    _output(shape).fill_(float("nan"))
    first = call().clone()
    report = compare(first, exact, peer)
    stable = all(torch.equal(first, call()) for _ in range(REPEATS - 1)) if report.finite else True
    return report, stable


_loaded: dict[Candidate, Callable[[], Tensor]] = {}


def load(candidate: Candidate, seed: int) -> None:
    """Make the candidate ready to be sampled."""
    _loaded[candidate] = _implementation(candidate, candidate.shape, seed)
    _loaded[candidate]()
    torch.cuda.synchronize()


def unload() -> None:
    """Forget the loaded candidates and their inputs."""
    _loaded.clear()
    _inputs.cache_clear()
    _references.cache_clear()
    _output.cache_clear()
    torch.cuda.empty_cache()


def sample(candidate: Candidate) -> tuple[list[float], int | None]:
    """Milliseconds of single calls, and the SM clock in MHz."""
    return timing.sample(_loaded[candidate])


def available_peers(shape: AttentionShape) -> list[str]:
    return peers.available(shape)


def device_name() -> str | None:
    """The GPU's name, or None without one."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
