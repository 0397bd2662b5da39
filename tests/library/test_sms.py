"""Kernels are made and proved for the number of SMs of a GPU, and whoever compiles asks for that number."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from code_mutants.kernels import Kernel
from code_mutants.reading import prove
from golden_kernels import KERNELS
from mutations import shipped
from once import lowered, proved
from stand_in import compiled_for, gpus
from tiers import sampled

from tl_attention import attention
from tl_attention.errors import ScheduleRefused
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.device import VisibleGpu
from tl_attention.problem.card import HOPPER
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned

__all__ = ["compiled_for", "gpus"]

STATIC, DYNAMIC = KERNELS["best, 114 SMs"], KERNELS["best_causal, 114 SMs"]
# A kernel, and its blocks: with clusters of two an odd SM is left out, and there is one cluster at least.
MADE = {
    "static of 114": (STATIC, 114),
    "static of 130": (Kernel("best", sms=130), 130),
    "static of 131": (Kernel("best", sms=131), 130),
    "static of 1": (Kernel("best", sms=1), 2),
    "static of 1, heads in groups": (Kernel("best", group=8, sms=1), 2),
    "tapered of 114": (DYNAMIC, 114),
    "from a counter of 114": (Kernel("experiments/dynamic", sms=114), 114),
    "from a counter of 1": (Kernel("experiments/dynamic", sms=1), 1),
    "tapered of 131": (Kernel("best_causal", causal=True, sms=131), 131),
    "tapered of 66": (Kernel("best_causal", causal=True, sms=66), 66),
    "tapered of 1": (Kernel("best_causal", causal=True, sms=1), 1),
    "sections of 114": (Kernel("experiments/causal/sections", causal=True, sms=114), 114),
}


@pytest.mark.parametrize("name", sampled(MADE, ["tapered of 114"]))
def test_a_kernel_is_made_and_proved_for_any_number(name):
    kernel, blocks = MADE[name]
    code = lowered(kernel)
    assert code.plan.grid[0].at({}) == blocks
    assert proved(kernel).digest


def test_a_kernel_for_another_gpu_is_refused():
    code = lowered(STATIC)
    with pytest.raises(ScheduleRefused, match=r"the number of blocks is 114, expected 132$"):
        prove(STATIC.schedule, replace(code, variant=replace(code.variant, sms=HOPPER.sms)))


def test_an_h100_of_all_its_sms_is_what_is_compiled_where_nobody_says():
    assert Variant(128, "float16").sms == AttentionShape(1, 1, 9, 9, 64).variant().sms == HOPPER.sms == 132


def test_attention_asks_the_device(compiled_for):
    q = torch.zeros(1, 2, 64, 64, dtype=torch.bfloat16)
    attention(q, q, q)
    attention(q, q, q, causal=True, specialize=True)
    assert [variant.sms for variant in compiled_for] == [114, 114]


@pytest.mark.parametrize(
    "visible,sms,arch",
    [
        ((), HOPPER.sms, "sm_90a"),
        (
            (VisibleGpu("GPU-0", "NVIDIA H100 PCIe", (9, 0), 114), VisibleGpu("GPU-1", "NVIDIA H200", (9, 0), 132)),
            114,
            "sm_90a",
        ),
        (
            (VisibleGpu("GPU-0", "NVIDIA A100", (8, 0), 98), VisibleGpu("GPU-1", "NVIDIA H200", (9, 0), 132)),
            98,
            "sm_80",
        ),
        ((VisibleGpu("GPU-0", "Orin", (8, 7), 16),), HOPPER.sms, "sm_90a"),
    ],
)
def test_what_is_measured_is_compiled_for_the_gpu_at_hand(visible, sms, arch, gpus):
    gpus(*visible)
    candidate = Candidate("best", AttentionShape(1, 2, 64, 64, 128), Planned(shipped()["best"]))
    assert (candidate.sms, candidate.variant.sms) == (sms, sms)
    assert (candidate.arch, candidate.variant.arch) == (arch, arch)
    assert replace(candidate, sms=66).variant == replace(candidate.variant, sms=66)
