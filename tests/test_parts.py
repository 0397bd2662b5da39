"""A row's keys are computed in parts where few tiles have many."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from on_cpu import Kernels, on_cpu
from torch import Tensor

from tl_attention import attention
from tl_attention.files.named import resolve
from tl_attention.op.parts import LEAST_BLOCKS, parts_for
from tl_attention.oracle.reference import attention_and_lse
from tl_attention.problem.mask import CAUSAL, FULL, Mask, ceildiv
from tl_attention.problem.shape import AttentionShape

__all__ = ["on_cpu"]
SHORT = resolve("short").schedule
ONE = AttentionShape(1, 8, 4, 16384, 128)


def half(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float16)


@pytest.mark.parametrize("batch", [1, 2, 7, 16, 17, 100])
@pytest.mark.parametrize("keys", [1, 1000, 1024, 5000, 131072])
def test_they_fill_the_gpu_and_have_all_keys(batch: int, keys: int) -> None:
    found = parts_for(replace(ONE, batch=batch, seq_kv=keys), SHORT, 132)
    blocks = ceildiv(keys, 64)
    if found is None:
        assert 2 * 8 * batch > 264 or blocks < 2 * LEAST_BLOCKS
    else:
        assert found.number > 1 and found.blocks >= LEAST_BLOCKS and found.number * 8 * batch <= 264
        assert (found.number - 1) * found.blocks < blocks <= found.number * found.blocks


def test_a_window_a_sink_and_a_cluster_have_none() -> None:
    assert parts_for(ONE, SHORT, 132) and parts_for(replace(ONE, mask=CAUSAL), SHORT, 132)
    assert not parts_for(replace(ONE, mask=Mask(9, 0)), SHORT, 132) and not parts_for(
        ONE.asking(sinks=True), SHORT, 132
    )
    assert not parts_for(ONE, resolve("best").schedule, 132) and not parts_for(ONE, resolve("seed").schedule, 132)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 4.0}])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_call_gives_what_all_keys_at_once_give(layout, options, rows, on_cpu: Kernels) -> None:
    q, k, v = half(1, 4, rows, 64), half(1, 2, 3000, 64), half(1, 2, 3000, 64)
    given = [x if layout == "bhsd" else x.transpose(1, 2).contiguous() for x in (q, k, v)]
    mask = CAUSAL if "causal" in options else FULL
    wanted, wanted_lse = attention_and_lse(
        q, k, v, mask=mask, scale=0.125, precise=True, softcap=options.get("softcap", 0.0)
    )
    for _ in range(2):
        out, lse = attention(*given, layout=layout, return_lse=True, **options)
        out = out if layout == "bhsd" else out.transpose(1, 2)
        assert (out - wanted).abs().max() < 2e-3 and (lse - wanted_lse).abs().max() < 1e-3
        alone = attention(*given, layout=layout, **options)
        assert torch.equal(alone if layout == "bhsd" else alone.transpose(1, 2), out)
    assert {variant.parts for _, variant in on_cpu.asked} == {True}
    on_cpu.asked.clear()
    attention(*given, layout=layout, **options, invariant=True)
    assert {variant.parts for _, variant in on_cpu.asked} == {False}
