"""The list of the matrix test has what it must have, and each of its cases is of the kernel that it stands with."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from matrix_cases import CAPS, FA3_LENGTHS, Case, cases
from matrix_check import faults, places
from matrix_kernels import FA3_HEADS, FA3_SIZES, HEADS, kernels
from on_cpu import Kernels, on_cpu

from tl_attention import InputError, attention
from tl_attention.op import arguments
from tl_attention.op.in_memory import other_way
from tl_attention.problem.shape import DTYPES

__all__ = ["on_cpu"]
# At 20 s of a core each, on 15 cores, seven and a half minutes.
MOST_KERNELS = 340
LEAST_CASES = 3000


def test_there_are_enough_cases_of_few_enough_kernels() -> None:
    every = [case for of_kernel in cases().values() for case in of_kernel]
    assert len(every) == len(set(every))
    assert sum(case.launches and not case.is_refused for case in every) >= 2 * LEAST_CASES
    assert any(case.is_refused for case in every) and any(not case.launches for case in every)
    assert min(map(len, cases().values())) >= 10
    compiled = {(kernel.scheduled, kernel.variant) for kernel in kernels()}
    assert len(compiled) == len(kernels()) == len(set(map(str, kernels()))) <= MOST_KERNELS


def test_flash_attention_3s_span_is_within_it() -> None:
    there = {
        (c.dtype, c.head_dim, c.heads // c.heads_kv, c.cap in CAPS, c.causal, c.window != (-1, -1), c.seq_q, c.seq_kv)
        for of_kernel in cases().values()
        for c in of_kernel
        if c.head_dim == c.head_dim_v and not c.sinks
    }
    groups = [HEADS[name][0] // HEADS[name][1] for name in FA3_HEADS]
    off_and_on = (False, True)
    assert groups == [1, 3, 6] and FA3_SIZES == (64, 96, 128, 192, 256) and len(FA3_LENGTHS) == 21
    for problem in product(DTYPES, FA3_SIZES, groups, off_and_on, off_and_on, off_and_on):
        for lengths in FA3_LENGTHS:
            assert (*problem, *lengths) in there


def call_on_meta(case: Case, schedule: Any) -> None:
    """Calls attention() on tensors that have no memory."""
    like = torch.empty(0, dtype=getattr(torch, case.dtype), device="meta")
    read, out = places(case, like)
    sinks = torch.empty(case.heads, device="meta") if case.sinks else None
    attention(
        *(other_way(place.tensor, case.layout) for place in read),
        causal=case.causal,
        window_size=case.window,
        softcap=case.cap[0],
        sinks=sinks,
        layout=case.layout,
        return_lse=case.lse,
        out=other_way(out.tensor, case.layout) if out else None,
        schedule=schedule,
    )


def test_each_case_asks_for_the_kernel_that_it_stands_with(on_cpu: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cpu, "compute", lambda tensors, variant: None)
    # All tensors without memory lie at one address.
    monkeypatch.setattr(arguments, "check_out", lambda *of_out: None)
    for kernel, of_kernel in cases().items():
        on_cpu.asked.clear()
        for case in of_kernel:
            if case.is_refused:
                with pytest.raises(InputError, match="strides"):
                    call_on_meta(case, kernel.scheduled)
            else:
                call_on_meta(case, kernel.scheduled)
        assert on_cpu.asked == {(kernel.scheduled, kernel.variant)}, str(kernel)


def test_small_cases_of_some_kernels_are_right_with_the_reference_in_their_place(on_cpu: Kernels) -> None:
    for kernel, of_kernel in [*cases().items()][::11]:
        small = sorted(of_kernel, key=lambda case: case.batch * case.heads * (case.seq_q + 1) * (case.seq_kv + 1))
        first = next(case for case in small if case.launches and not case.is_refused)
        for case in {small[0]: None, first: None}:
            assert list(faults(case, 5, "cpu")) == [], f"{kernel} {case}"
