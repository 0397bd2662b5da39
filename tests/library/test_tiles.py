"""Each order of row tiles takes every tile once, and keeps what it promises about long ones."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import tilelang.language as T
from tvm import arith

from tl_attention.kernels.warp_specialized import tiles
from tl_attention.kernels.warp_specialized.tile_order import entry_and_head
from tl_attention.kernels.warp_specialized.tiles import SECTION_BYTES, section_heads, taper
from tl_attention.problem.card import HOPPER
from tl_attention.problem.mask import CAUSAL
from tl_attention.schedule.options import KernelOptions

HEAD_DIM = 128


def constants(head_dim: int = HEAD_DIM, **kernel: object) -> SimpleNamespace:
    sizes = {"head_dim": head_dim, "head_dim_v": head_dim, "group": None, "tile_heads": 1}
    return SimpleNamespace(kernel=KernelOptions(**kernel), mask=CAUSAL, **sizes)


def places(
    order: str, row_tiles: int, heads: int, head_dim: int = HEAD_DIM, section: int = 5, workers: int = HOPPER.sms,
    group: int = 1,
) -> list[tuple[int, int]]:  # fmt: skip
    """Returns (row tile, head) of each tile, causal, as the expressions of the kernel give them."""
    c = constants(head_dim, tile_order=order, cluster=1)
    # Of which K and V of `section` heads fill a section.
    of_k = SimpleNamespace(shape=(T.int32(1), T.int32(heads // group)))
    given = SimpleNamespace(workers=T.int32(workers), group=T.int32(group), K=of_k)
    keys = SECTION_BYTES // (section * head_dim * 4)
    s = SimpleNamespace(batch=T.int32(1), seq_kv=T.int32(keys), given=given)
    simplify = arith.Analyzer().simplify

    def at(tile: int) -> tuple[int, int]:
        row, head = tiles.place(*(T.int32(number) for number in (tile, row_tiles, heads)), s, c)
        return int(simplify(row)), int(simplify(head))

    return [at(tile) for tile in range(row_tiles * heads)]


def imbalance(found: Sequence[tuple[int, int]]) -> float:
    """Returns the workers' wait for the last one over their work; each takes the next tile, of row + 1 blocks."""
    ends = [0] * HOPPER.sms
    for row, _ in found:
        heapq.heapreplace(ends, ends[0] + row + 1)
    return max(ends) / (sum(row + 1 for row, _ in found) / HOPPER.sms) - 1


@pytest.mark.parametrize("order", ["rows", "tapered", "sections"])
@pytest.mark.parametrize("row_tiles,heads", [(1, 1), (1, 700), (7, 3), (7, 120), (40, 33), (300, 4)])
@pytest.mark.parametrize("workers", [HOPPER.sms, 66, 1])
def test_every_tile_is_taken_once(order, row_tiles, heads, workers):
    everything = {(row, head) for row in range(row_tiles) for head in range(heads)}
    found = places(order, row_tiles, heads, workers=workers)
    assert len(found) == len(everything) and set(found) == everything


@pytest.mark.parametrize("group", [1, 2, 3, 6])
def test_a_section_has_all_heads_that_share_k_and_v(group):
    found = places("sections", 2, 18, section=2, group=group)
    width = 2 * group
    first = [head for head in range(18) for _ in range(2)]
    sections = [[place for place in found if place[1] // width == number] for number in range(-(-18 // width))]
    assert [place for section in sections for place in section] == found
    assert sorted(head for _, head in found) == first
    assert all([row for row, _ in section] == sorted((row for row, _ in section), reverse=True) for section in sections)


@pytest.mark.parametrize("few,many,heads,turns_from", [(0, 1, 1, 0), (5, 7, 3, 0), (5, 7, 3, 2), (9, 40, 33, 12)])
def test_every_packed_tile_is_taken_once(few, many, heads, turns_from):
    entries, of_heads = entry_and_head(np.arange((few + many) * heads), few, many, heads, turns_from)
    found = [*zip(entries.tolist(), of_heads.tolist())]
    # Tiles of few queries are those of all heads, one after the other.
    expected = [(entry, head) for entry in range(few) for head in range(heads)]
    # Heads that take no turns have the list's second order, in which their tiles follow each other.
    expected += [(few + many + tile, head) for head in range(turns_from) for tile in range(many)]
    expected += [(few + tile, head) for tile in range(many) for head in range(turns_from, heads)]
    assert found == expected


@pytest.mark.parametrize("head_dim", [HEAD_DIM, 192, 256])
@pytest.mark.parametrize("row_tiles,heads", [(8, 512), (16, 256), (32, 128), (64, 64)])
def test_tapered_ends_with_short_tiles(row_tiles, heads, head_dim):
    rows, tapered = places("rows", row_tiles, heads), places("tapered", row_tiles, heads, head_dim)
    together = -(-taper(head_dim, head_dim) * HOPPER.sms // row_tiles) * row_tiles
    assert tapered[:-together] == rows[:-together]
    assert [row for row, _ in tapered[-together:]] == sorted((row for row, _ in rows[-together:]), reverse=True)
    # As on the H200 at 32 row tiles, where the tensor pipe was idle for 3 % of the time (results/counters-h200.md).
    assert imbalance(tapered) < 0.013 and imbalance(rows) > 0.027


@pytest.mark.parametrize("heads,seq_kv,expected", [(512, 1024, 64), (4, 1024, 4), (9, 1 << 20, 1)])
def test_a_section_fits_the_cache(heads, seq_kv, expected):
    sizes = (T.int32(size) for size in (heads, seq_kv))
    assert int(arith.Analyzer().simplify(section_heads(*sizes, constants()))) == expected
