"""Heads that share K and V are rows of one head for a kernel, where they are few."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from matrix_cases import CAPS, LAYOUTS, MEMORIES, NO_CAP, OUTS, Case
from matrix_check import faults
from on_cpu import Kernels, on_cpu
from torch import Tensor

from tl_attention import ScheduleRefused, attention
from tl_attention.kernels.registry import lowering_of
from tl_attention.op.in_memory import in_one_head
from tl_attention.oracle.reference import attention_and_lse
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.schedule.files.named import resolve

__all__ = ["on_cpu"]
ONE = AttentionShape(2, 12, 1, 300, 64, mask=CAUSAL, heads_kv=3)


def half(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float16)


@pytest.mark.parametrize(
    "shape, changed",
    [
        (ONE, {"seq_q": 4, "mask": FULL}),
        (replace(ONE, mask=Mask(299, 0)), {"seq_q": 4, "mask": FULL}),
        (replace(ONE, mask=FULL, seq_q=16), {"seq_q": 64}),
        (ONE.asking(softcap=5.0, lse=True), {"seq_q": 4, "mask": FULL}),
        (replace(ONE, seq_q=2), {"seq_q": 8, "head_rows": 2}),
        (replace(ONE, mask=Mask(298, 0)), {"seq_q": 4, "head_rows": 1}),
        (replace(ONE, mask=FULL, seq_q=40), {"seq_q": 160}),
        (replace(ONE, mask=FULL, seq_q=64), {}),
        (replace(ONE, mask=FULL, seq_q=65), {}),
        (replace(ONE, heads_kv=12), {}),
        (ONE.asking(sinks=True), {"seq_q": 4, "mask": FULL}),
        (replace(ONE, packed=True), {}),
    ],
    ids=str,
)
def test_they_are_where_their_rows_fill_fewer_tiles(shape: AttentionShape, changed: dict[str, Any]) -> None:
    together = shape.together(64)
    assert together == (replace(shape, heads=3, **changed) if changed else shape)
    assert together.flops == shape.flops and together.variant().together == ("head_rows" in changed)
    assert "head_rows" not in changed or together.apart == shape


def test_a_view_has_their_rows_in_order_where_these_lie_evenly() -> None:
    q = half(2, 6, 5, 8)
    found = in_one_head({"q": q, "k": q, "out": q}, 3)
    assert torch.equal(found["q"], q.view(2, 3, 10, 8)) and found["k"] is q
    assert found["q"].data_ptr() == q.data_ptr()
    assert not in_one_head({"q": q, "out": q.transpose(1, 2).contiguous().transpose(1, 2)}, 3)
    one = half(2, 1, 6, 8).transpose(1, 2)
    assert torch.equal(in_one_head({"q": one, "out": one}, 3)["q"], one.reshape(2, 3, 2, 8))


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "softcap": 4.0}, {"window_size": (20, 2)}])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_call_gives_what_it_gives_head_by_head(layout, options, rows, on_cpu: Kernels) -> None:
    q, k, v = half(2, 8, rows, 64), half(2, 2, 41, 64), half(2, 2, 41, 64)
    left, right = options.get("window_size", (-1, -1))
    mask = Mask(None if left < 0 else left, 0 if options.get("causal") else None if right < 0 else right)
    wanted, wanted_lse = attention_and_lse(
        q, k, v, mask=mask, scale=0.125, precise=True, softcap=options.get("softcap", 0.0)
    )
    given = [x if layout == "bhsd" else x.transpose(1, 2).contiguous() for x in (q, k, v)]
    # The second call has the first one's plan.
    for _ in range(2):
        out, lse = attention(*given, layout=layout, return_lse=True, **options)
        out = out if layout == "bhsd" else out.transpose(1, 2)
        assert out.shape == wanted.shape and (out - wanted).abs().max() < 2e-3
        assert lse.shape == (2, 8, rows) and (lse - wanted_lse).abs().max() < 1e-3
    ((_, variant),) = on_cpu.asked
    together = rows == 1 or layout == "bhsd"
    full = not options or (rows == 1 and "window_size" not in options)
    assert (variant.group, variant.mask == FULL, variant.together) == (
        1 if together else 4,
        full,
        together and not full,
    )


def test_a_schedule_says_whether_they_are(on_cpu: Kernels) -> None:
    q, k = half(1, 4, 2, 128), half(1, 1, 300, 128)
    for schedule, group in (("short", 1), ("best_causal", 4)):
        on_cpu.asked.clear()
        attention(q, k, k, causal=True, schedule=schedule)
        assert {(variant.group, variant.together) for _, variant in on_cpu.asked} == {(group, group == 1)}
    with pytest.raises(ValueError, match="rows_of"):
        best = resolve("best").schedule
        lowering_of(best).check_variant(best, Variant(128, "float16", together=True))


def test_rows_of_heads_that_differ_are_refused_in_one_tile_unless_parts_are_merged() -> None:
    schedule = resolve("short").schedule
    together = Variant(128, "float16", optional=frozenset({"Sinks"}), together=True)
    lowering_of(schedule).check_variant(schedule, replace(together, parts=True))
    with pytest.raises(ScheduleRefused, match="sinks with rows of several heads in a tile, which lowering"):
        lowering_of(schedule).check_variant(schedule, together)


# Of each kind of call a few kernels are compiled.
KINDS = 15


def few_queries(number: int) -> Case:
    """Draws a call of a few queries, of grouped heads."""
    kind, rng = random.Random(f"kind {number % KINDS}"), random.Random(f"few queries {number}")
    heads_kv, group = rng.choice(((1, 8), (2, 4), (3, 3), (1, 32), (8, 2), (2, 16), (1, 64), (4, 5)))
    seq_q, seq_kv = rng.choice((1, 1, 2, 4, 7, 16, 33)), rng.choice((1, 20, 63, 64, 65, 300, rng.randint(1, 5000)))
    sides = [rng.choice((0, 3, 64, 200, rng.randrange(seq_kv))) if kind.random() < 0.5 else -1 for _ in range(2)]
    return Case(
        dtype=kind.choice(("float16", "bfloat16")),
        head_dim=kind.choice((128, 128, 64, 96, 192, 256)),
        head_dim_v=128,
        batch=rng.choice((1, 2, 5, 40)),
        heads=heads_kv * group,
        heads_kv=heads_kv,
        seq_q=seq_q,
        seq_kv=seq_kv,
        causal=kind.random() < 0.5,
        window=(sides[0], sides[1]) if kind.random() < 0.4 else (-1, -1),
        cap=kind.choice((*NO_CAP, *NO_CAP, CAPS[0])),
        sinks=kind.random() < 0.2,
        lse=kind.random() < 0.5,
        scale="default",
        layout=kind.choice(LAYOUTS),
        memory=kind.choice(MEMORIES),
        out=kind.choice(OUTS),
    )


def fault(number: int, device: str) -> str:
    case = few_queries(number)
    # Two head sizes that a tile has.
    case = replace(case, head_dim_v=128 if case.head_dim == 192 else case.head_dim)
    found = "; ".join(faults(case, number, device))
    return f"{number} {case}: {found}" if found else ""


def test_few_queries_of_grouped_heads_are_right(on_cpu: Kernels) -> None:
    small = [n for n in range(400) if few_queries(n).batch * few_queries(n).heads * few_queries(n).seq_kv < 4000]
    assert len(small) > 30 and not [line for n in small[:40] if (line := fault(n, "cpu"))]
    assert {variant.together for _, variant in on_cpu.asked} == {False, True}


@pytest.mark.gpu
@pytest.mark.parametrize("shard", range(15))
def test_a_thousand_calls_of_few_queries_are_right(shard: int) -> None:
    found = [line for n in range(shard, 1000, 15) if (line := fault(n, "cuda"))]
    assert not found, "\n".join([f"{len(found)} are wrong:", *found])
