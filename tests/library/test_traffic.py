"""The bytes that tiles move are compared with ncu's counts on an H200, and with a count tile by tile and key by key."""

from __future__ import annotations

import pytest

from tl_attention.lab.measure.candidate import tiling_of
from tl_attention.lab.measure.traffic import Tiling, input_bytes, l2_bytes, output_bytes, sm_bytes
from tl_attention.problem.head_dims import tile_dim
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve

L = AttentionShape.parse("4,64,8192,128")


@pytest.mark.parametrize(
    ("schedule", "from_l2", "arrived"),
    [
        # L2 reads once for several SMs what their cp.async ask for at the same time: theory is an upper bound there.
        ("seed", None, 69_257_368_576),
        ("best", 32 * 1_101_004_800, 69_927_436_288),
        ("experiments/cluster_1", None, 69_927_436_288),
        ("experiments/one_tile", 32 * 1_101_004_800, None),
    ],
)
def test_theory_is_what_ncu_counted(schedule, from_l2, arrived) -> None:
    tiling = tiling_of(Planned(resolve(schedule).schedule))
    if from_l2:
        assert l2_bytes(L, tiling) == pytest.approx(from_l2, rel=0.01)
    if arrived:
        assert sm_bytes(L, tiling) == pytest.approx(arrived, rel=0.01)


def test_a_cluster_of_flash_attention_3_reads_as_much() -> None:
    assert l2_bytes(L, Tiling(128, 176, cluster=2, whole_boxes=True)) == pytest.approx(32 * 1_101_006_442, rel=0.01)


def test_dram_reads_and_writes_each_tensor_once() -> None:
    assert input_bytes(L) == pytest.approx(1_611_156_992, rel=0.01) and input_bytes(L) == 1.5 * 2**30
    assert output_bytes(L) == 2**29


def test_fewer_heads_of_k_and_v_and_another_head_dim_v_count() -> None:
    shape = AttentionShape.parse("1,4/2,32,96,192/128", lse=True)
    assert input_bytes(shape) == 2 * (4 * 32 * 192 + 2 * 96 * (192 + 128))
    assert output_bytes(shape) == 4 * 32 * (2 * 128 + 4)


def counted(shape: AttentionShape, tiling: Tiling) -> tuple[int, int]:
    """Counts (bytes read from L2, bytes that arrive), by looking at every query and key."""
    rows = tiling.block_M * tiling.cluster
    read = arrived = 0
    columns = [shape.head_dim, shape.head_dim_v]
    if tiling.whole_boxes:
        columns = [tile_dim(n) for n in columns]
    for start in range(0, shape.seq_q, rows):
        own = [row + shape.past_len for row in range(start, start + rows)]
        left = shape.mask.left
        right = shape.seq_kv if shape.mask.right is None else shape.mask.right
        seen = [
            key
            for key in range(shape.seq_kv)
            if any((left is None or key >= place - left) and key <= place + right for place in own)
        ]
        blocks = range(seen[0] // tiling.block_N, seen[-1] // tiling.block_N + 1)
        blocks = range(blocks.start, max(blocks.stop, blocks.start + tiling.least_blocks))
        keys = [key for block in blocks for key in range(block * tiling.block_N, (block + 1) * tiling.block_N)]
        there = keys if tiling.whole_boxes else [key for key in keys if key < shape.seq_kv]
        queries = rows if tiling.whole_boxes else min(rows, shape.seq_q - start)
        read += 2 * (queries * columns[0] + len(there) * sum(columns))
        arrived += 2 * (queries * columns[0] + tiling.cluster * len(there) * sum(columns))
    return read * shape.batch * shape.heads, arrived * shape.batch * shape.heads


@pytest.mark.parametrize("window", [{}, {"causal": True}, {"window": "40,8"}])
@pytest.mark.parametrize("size", ["128", "72", "192/128"])
@pytest.mark.parametrize(
    "tiling",
    [
        Tiling(32, 48),
        Tiling(32, 48, least_blocks=3),
        Tiling(32, 48, whole_boxes=True),
        Tiling(32, 48, cluster=2, least_blocks=2, whole_boxes=True),
    ],
)
def test_every_tile_loads_the_keys_that_its_mask_leaves(tiling, size, window) -> None:
    shape = AttentionShape.parse(f"2,4/2,150,170,{size}", **window)
    assert (l2_bytes(shape, tiling), sm_bytes(shape, tiling)) == counted(shape, tiling)
