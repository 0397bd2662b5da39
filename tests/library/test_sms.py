"""A kernel serves GPUs of any number of SMs: a launch says how many blocks, or clusters, work at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from code_mutants.reading import prove
from golden_kernels import KERNELS
from mutations import shipped
from on_cpu import forget_plans
from once import lowered
from stand_in import gpus, launched_on
from tiers import sampled

from tl_attention import attention, attention_varlen
from tl_attention.codeproof.tiles import unknowns
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.device import VisibleGpu
from tl_attention.op import compiled
from tl_attention.problem.bounds import MOST_WORKERS
from tl_attention.problem.card import HOPPER
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.options import KernelOptions

__all__ = ["gpus", "launched_on"]

# A golden kernel, the SMs, and its blocks: of clusters of two an odd SM is left out, and there is one cluster at least.
LAUNCHED = {
    "static, 132": ("best", 132, 132),
    "static, 114": ("best", 114, 114),
    "static, 131": ("best", 131, 130),
    "static, 1": ("best", 1, 2),
    "from a counter, 114": ("dynamic", 114, 114),
    "from a counter, 1": ("dynamic", 1, 1),
    "tapered, 131": ("best_causal", 131, 131),
    "tapered, 1": ("best_causal", 1, 1),
    "in sections, 66": ("sections", 66, 66),
    "two on an SM, 132": ("short", 132, 264),
    "two on an SM, 114": ("short", 114, 228),
    "packed, 66": ("best_causal, packed", 66, 66),
    "packed, 1": ("short, packed parts", 1, 1),
    "compiled in, 114": ("best, 114 SMs", 114, 114),
    "tapered, compiled in, 114": ("best_causal, 114 SMs", 114, 114),
}


@pytest.mark.parametrize("name", sampled(LAUNCHED, ["static, 131", "packed, 66"]))
def test_a_kernel_is_launched_and_proved_with_numbers_for_any(name, monkeypatch):
    """The proof shows it for all numbers at once; with each of these it runs tiles of blocks, too."""
    kernel, sms, blocks = LAUNCHED[name]
    golden, code = KERNELS[kernel], lowered(KERNELS[kernel])
    workers = golden.schedule.workers(sms)
    assert code.plan.grid[0].at({"workers": workers}) == blocks
    given = unknowns.Unknowns.from_numbers.__func__
    tried: list[Any] = []

    def with_workers(cls: Any, proof: Any, sizes: Any, *more: Any, **others: int) -> Any:
        tried.append(sizes)
        return given(cls, proof, sizes, *more, **others, workers=workers)

    monkeypatch.setattr(unknowns.Unknowns, "from_numbers", classmethod(with_workers))
    assert prove(golden.schedule, code).digest and tried


def test_no_number_leaves_its_bounds():
    numbers = [KernelOptions(blocks_per_sm=3, cluster=1).workers(sms) for sms in (1, 132, 1 << 20)]
    assert numbers == [3, 396, MOST_WORKERS] and KernelOptions(cluster=2).workers(1) == 1


def test_attention_asks_the_device(launched_on):
    q = torch.zeros(1, 2, 64, 64, dtype=torch.bfloat16)
    attention(q, q, q, schedule="d64")
    attention(q, q, q, causal=True, specialize=True, schedule="d64")
    attention(q, q, q, schedule="short_d64")
    rows, bounds = q[0].transpose(0, 1).contiguous(), torch.tensor([0, 64], dtype=torch.int32)
    attention_varlen(rows, rows, rows, bounds, bounds, 64, 64, schedule="d64")
    workers = [resolve(name).schedule.workers(114) for name in ("d64", "d64", "short_d64", "d64")]
    assert [given["workers"] for _, given in launched_on] == workers and workers[2] == 228


def test_gradients_take_every_sm(launched_on):
    """Their blocks are in no clusters, of which a schedule of the forward has two blocks each."""
    q, k, v = (torch.zeros(1, 2, 64, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    output = attention(q, k, v, backward=("dq", "dkdv"))
    torch.autograd.grad(output, (q, k, v), output.detach())
    assert [given["workers"] for _, given in launched_on[-2:]] == [114, 114]


def test_one_kernel_serves_all(launched_on, monkeypatch):
    q = torch.zeros(1, 2, 64, 64, dtype=torch.bfloat16)
    for sms in (114, 132, 78):
        forget_plans(monkeypatch)
        monkeypatch.setattr(compiled, "sms_of", lambda device, sms=sms: sms)
        attention(q, q, q, schedule="d64")
    assert len({variant for variant, _ in launched_on}) == 1
    assert len({given["workers"] for _, given in launched_on}) == 3


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
def test_what_is_measured_is_launched_for_the_gpu_at_hand(visible, sms, arch, gpus):
    gpus(*visible)
    candidate = Candidate("best", AttentionShape(1, 2, 64, 64, 128), Planned(shipped()["best"]))
    assert (candidate.sms, candidate.arch, candidate.variant.arch) == (sms, arch, arch)
    assert replace(candidate, sms=66).variant == candidate.variant == Variant(128, "float16", arch=arch)
