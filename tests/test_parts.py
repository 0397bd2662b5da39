"""A row's keys are computed in parts where few tiles have many."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from on_cpu import Kernels, on_cpu
from torch import Tensor

from tl_attention import attention
from tl_attention.errors import ScheduleRefused
from tl_attention.files.named import resolve
from tl_attention.lowering.registry import lowering_of
from tl_attention.op.few import parts_of, results_of_parts
from tl_attention.oracle.reference import attention_and_lse
from tl_attention.problem.mask import CAUSAL, FULL, ceildiv
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

__all__ = ["on_cpu"]
FEW = resolve("few").schedule
ONE = AttentionShape(1, 8, 4, 16384, 128)


def half(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float16)


@pytest.mark.parametrize("keys", [1, 1055, 1056, 1057, 5000, 131072])
def test_a_rows_keys_alone_say_how_many_there_are(keys: int) -> None:
    shape = replace(ONE, seq_kv=keys)
    assert parts_of(shape, FEW) == ceildiv(keys, 1056) == parts_of(replace(shape, batch=64), FEW)
    assert not parts_of(shape, resolve("short_full").schedule)


def test_results_of_parts_are_more_batches() -> None:
    output, lse = results_of_parts(half(2, 3, 5, 64), 7)
    assert (output.shape, lse.shape) == ((14, 3, 5, 64), (14, 3, 5))
    assert output.dtype == lse.dtype == torch.float32 and output.is_contiguous()


def test_what_has_none_is_refused() -> None:
    check = partial(lowering_of(FEW).check_variant, FEW)
    variant = Variant(128, "float16", parts=True)
    check(variant)
    with pytest.raises(ScheduleRefused, match="sinks with parts of the keys"):
        check(replace(variant, optional=frozenset({"Sinks"})))
    with pytest.raises(ScheduleRefused, match="packed sequences"):
        check(replace(variant, packed=True))
    with pytest.raises(ValueError, match="parts=False"):
        check(replace(variant, parts=False))
    for options, words in (({"cluster": 2}, "cluster: 1"), ({"tile_scheduler": "one_tile"}, "a persistent tile_sched")):
        kernel = {**FEW.kernel.model_dump(), **options}
        with pytest.raises(ValueError, match=words):
            Schedule(**{**FEW.model_dump(), "kernel": kernel})


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 4.0}])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_call_gives_what_all_keys_at_once_give(layout, options, rows, on_cpu: Kernels) -> None:
    q, k, v = half(1, 4, rows, 128), half(1, 2, 3000, 128), half(1, 2, 3000, 128)
    given = [x if layout == "bhsd" else x.transpose(1, 2).contiguous() for x in (q, k, v)]
    mask = CAUSAL if "causal" in options else FULL
    wanted, wanted_lse = attention_and_lse(
        q, k, v, mask=mask, scale=128**-0.5, precise=True, softcap=options.get("softcap", 0.0)
    )
    for _ in range(2):
        out, lse = attention(*given, layout=layout, return_lse=True, **options)
        out = out if layout == "bhsd" else out.transpose(1, 2)
        assert (out - wanted).abs().max() < 2e-3 and (lse - wanted_lse).abs().max() < 1e-3
        alone = attention(*given, layout=layout, **options)
        assert torch.equal(alone if layout == "bhsd" else alone.transpose(1, 2), out)
    assert {variant.parts for _, variant in on_cpu.asked} == {True}
    # A prompt has no parts, so an invariant call has none.
    on_cpu.asked.clear()
    attention(*given, layout=layout, **options, invariant=True)
    assert {variant.parts for _, variant in on_cpu.asked} == {False}
