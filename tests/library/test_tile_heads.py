"""Heads that share K and V have their rows in one tile, where they are few."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from matrix_cases import CAPS, LAYOUTS, MEMORIES, NO_CAP, OUTS, Case
from matrix_check import faults
from on_cpu import Kernels, on_cpu
from torch import Tensor

from tl_attention import attention
from tl_attention.kernels.registry import lowering_of
from tl_attention.lab.oracle.reference import attention_and_lse
from tl_attention.op.few import packed_heads
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.schedule.files.named import resolve

__all__ = ["on_cpu"]
ONE = AttentionShape(2, 12, 1, 300, 64, mask=CAUSAL, heads_kv=3)


def half(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float16)


@pytest.mark.parametrize(
    "shape, heads, mask",
    [
        (ONE, 4, FULL),
        (replace(ONE, mask=Mask(299, 0)), 4, FULL),
        (replace(ONE, mask=FULL, seq_q=16), 4, FULL),
        (ONE.asking(softcap=5.0, lse=True), 4, FULL),
        (replace(ONE, seq_q=2), 4, CAUSAL),
        (replace(ONE, mask=Mask(298, 0)), 4, Mask(298, 0)),
        (replace(ONE, mask=FULL, seq_q=48), 4, FULL),
        (replace(ONE, mask=FULL, seq_q=49), 1, FULL),
        (replace(ONE, mask=FULL, seq_q=65), 1, FULL),
        (replace(ONE, mask=FULL, heads=18, seq_q=20), 6, FULL),
        (replace(ONE, mask=FULL, heads=18, seq_q=21), 3, FULL),
        (replace(ONE, mask=FULL, heads=18, seq_q=32), 2, FULL),
        (replace(ONE, heads_kv=12), 1, CAUSAL),
        (replace(ONE, heads=195), 33, FULL),
        (replace(ONE, heads=3 * 128), 64, FULL),
        (replace(ONE, heads=3 * 71), 36, FULL),
        (ONE.asking(sinks=True), 4, FULL),
        (replace(ONE, packed=True), 4, CAUSAL),
        (replace(ONE, packed=True, seq_q=1000), 4, CAUSAL),
        (replace(ONE, packed=True, heads=3 * 64), 64, CAUSAL),
        (replace(ONE, head_dim=72, heads=3 * 64), 32, FULL),
        (replace(ONE, head_dim=72, heads=3 * 64, mask=Mask(3, 3)), 16, Mask(3, 3)),
    ],
    ids=str,
)
def test_they_are_where_their_rows_fill_fewer_tiles(shape: AttentionShape, heads: int, mask: Mask) -> None:
    assert packed_heads(shape, resolve("short_d64").schedule) == (replace(shape, mask=mask), heads)


@pytest.mark.parametrize(
    "heads, columns, box, idle",
    [
        (1, 128, 64, 0),
        (4, 128, 16, 0),
        (3, 64, 21, 1),
        (7, 256, 9, 1),
        (5, 192, 12, 4),
        (3, 96, 20, 4),
        (7, 72, 8, 8),
        (64, 128, 1, 0),
        (33, 128, 1, 31),
    ],
)
def test_a_warpgroup_has_as_many_rows_of_each_head(heads: int, columns: int, box: int, idle: int) -> None:
    variant = Variant(columns, "float16", group=heads, tile_heads=heads)
    assert (variant.box, variant.idle_rows, variant.rows_of(128)) == (box, idle, 2 * box)


@pytest.mark.parametrize(
    "group, most", [(1, 64), (7, 64), (71, 64), (128, 64), (65, 64), (40, 16), (17, 16), (130, 32)]
)
def test_subgroups_have_all_heads_of_their_group_and_no_others(group: int, most: int) -> None:
    tile_heads = -(-group // -(-group // most))
    variant = Variant(128, "float16", group=group, tile_heads=tile_heads)
    assert variant.subgroups == -(-group // most) and variant.heads_of_tiles(3 * group) == 3 * variant.subgroups
    for kv in range(3):
        own = range(kv * variant.subgroups, (kv + 1) * variant.subgroups)
        heads = [range(first, first + tile_heads) for first in map(variant.first_head, own)]
        assert {head for of_one in heads for head in of_one} == {*range(kv * group, (kv + 1) * group)}
        # Fewer than there are subgroups are in two.
        assert sum(map(len, heads)) - group < variant.subgroups


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
    full = not options or (rows == 1 and "window_size" not in options)
    assert (variant.group, variant.tile_heads, variant.mask == FULL) == (4, 4, full)


def test_a_schedule_says_whether_they_are(on_cpu: Kernels) -> None:
    q, k = half(1, 4, 2, 128), half(1, 1, 300, 128)
    for schedule, heads in (("short", 4), ("best_causal", 1)):
        on_cpu.asked.clear()
        attention(q, k, k, causal=True, schedule=schedule)
        # Where tiles have rows of one head, the launch says how many share K and V.
        group = 4 if heads > 1 else None
        assert {(variant.group, variant.tile_heads) for _, variant in on_cpu.asked} == {(group, heads)}
    with pytest.raises(ValueError, match="rows_of"):
        best = resolve("best").schedule
        lowering_of(best).check_variant(best, Variant(128, "float16", group=4, tile_heads=4))


def test_of_packed_sequences_they_always_are_where_a_schedule_can() -> None:
    # A tile of a prompt has some rows of each.
    many = replace(ONE, packed=True, heads=3 * 64)
    assert [packed_heads(many, resolve(name).schedule)[1] for name in ("best_causal", "short_packed")] == [16, 64]
    variant = Variant(128, "float16", optional=frozenset({"Sinks"}), group=4, tile_heads=4, packed=True)
    for name in ("best_causal", "short", "ragged"):
        lowering_of(resolve(name).schedule).check_variant(resolve(name).schedule, variant)
    for name in ("experiments/output_tma", "experiments/q_registers"):
        with pytest.raises(ValueError, match="rows_of"):
            lowering_of(resolve(name).schedule).check_variant(resolve(name).schedule, variant)


# Of each kind of call a few kernels are compiled.
KINDS = 15


def few_queries(number: int) -> Case:
    """Draws a call of a few queries, of grouped heads."""
    kind, rng = random.Random(f"kind {number % KINDS}"), random.Random(f"few queries {number}")
    heads_kv, group = rng.choice(((1, 8), (2, 4), (3, 3), (1, 32), (8, 2), (2, 16), (1, 64), (4, 5), (1, 71), (2, 20)))
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
    # A head's sink is the row's, where its rows lie among others.
    asked = [variant for _, variant in on_cpu.asked if "Sinks" in variant.acting]
    assert asked and all(variant.tile_heads > 1 for variant in asked)


@pytest.mark.gpu
@pytest.mark.parametrize("shard", range(15))
def test_a_thousand_calls_of_few_queries_are_right(shard: int) -> None:
    found = [line for n in range(shard, 1000, 15) if (line := fault(n, "cuda"))]
    assert not found, "\n".join([f"{len(found)} are wrong:", *found])
