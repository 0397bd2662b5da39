"""flash_attn_func makes the 5,040 calls of FlashAttention-3's forward test on a Hopper GPU, with windows drawn.

    pytest -m gpu -n 15 --dist worksteal tests/library/test_fa3_matrix.py

A test has the calls that share kernels: those of one dtype, head size, softcap and number of heads.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import gpu_lost
import pytest
import torch
from matrix_cases import Case
from matrix_check import faults
from on_cpu import Kernels, on_cpu
from torch import Tensor

from tl_attention.flash_attn_interface import flash_attn_func
from tl_attention.problem.shape import DTYPES

__all__ = ["on_cpu"]
LENGTHS = (
    *((1, 1), (1, 3), (2, 1), (511, 1), (3, 513), (64, 128), (128, 128), (256, 256), (113, 203), (128, 217)),
    *((113, 211), (108, 256), (256, 512), (384, 256), (640, 128), (512, 256), (1024, 1024), (1023, 1024)),
    *((1024, 1023), (4096, 4096), (4224, 4224)),
)
HEADS = ((6, 6), (6, 2), (6, 1))
SIZES = (64, 96, 128, 192, 256)
# (softcap, what Q is multiplied with).
CAPS = ((0.0, 1.0), (15.0, 3.75))
GROUPS = [*product(DTYPES, SIZES, HEADS, CAPS)]
# Of the longest lengths, so that a reference in fp64 fits beside others.
BATCH = {4096: 2, 4224: 2}


def cases(dtype: str, head_dim: int, heads: tuple[int, int], cap: tuple[float, float]) -> Iterator[Case]:
    """Yields the group's calls: each pair of lengths, causal or not, with a window or without."""
    rng = random.Random(f"{dtype} {head_dim} {heads}")
    for (seq_q, seq_kv), causal, has_window in product(LENGTHS, (False, True), (False, True)):
        # As FlashAttention-3's test draws them.
        window = (rng.randrange(seq_kv), rng.randrange(seq_kv)) if has_window else (-1, -1)
        yield Case(
            dtype, head_dim, head_dim, BATCH.get(seq_q, 9), *heads, seq_q, seq_kv, causal, window, cap,
            sinks=False, lse=dtype == "bfloat16", scale="default", layout="bshd", out="none",
            memory=rng.choice(("contiguous", "transposed", "sliced", "packed")),
        )  # fmt: skip


def call(*tensors: Tensor, sinks: None, out: None, layout: str, **options: Any) -> Any:
    names = {"scale": "softmax_scale", "return_lse": "return_attn_probs"}
    result = flash_attn_func(*tensors, **{names.get(name, name): value for name, value in options.items()})
    if tensors[0].is_cuda:
        gpu_lost.wait()
    return result


def test_they_are_flash_attention_3s(on_cpu: Kernels) -> None:
    every = [case for group in GROUPS for case in cases(*group)]
    assert len(every) == 2 * 5 * 3 * 2 * 21 * 4 and len({case.window for case in every}) > 1000
    for seed, case in enumerate(every[::53]):
        if case.batch * case.seq_q * case.seq_kv < 50_000:
            assert not [*faults(case, seed, "cpu", call)], case


@pytest.mark.gpu
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_every_call_is_right(group: Any) -> None:
    draw = random.SystemRandom()
    found = []
    for case in cases(*group):
        seed = draw.randrange(2**31)
        try:
            found += [f"seed {seed} {case}: {fault}" for fault in faults(case, seed, "cuda", call)]
        except gpu_lost.Lost as lost:
            gpu_lost.leave(f"seed {seed} {case}: {lost}")
    torch.cuda.empty_cache()
    assert not found, "\n".join([f"{len(found)} are wrong:", *found])
