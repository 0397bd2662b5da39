"""The page's tables and picture of speed are made from the record of cells, and must agree with it once it exists."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from matplotlib.patches import Rectangle
from pages import cells
from picture_text import boxes, faults
from pictures.speed import drawn
from pictures.style import SMALL, styled

from tl_attention.measure.cell_records import CellRow, Timed
from tl_attention.measure.records import problem_of
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape


def row(group: str, seq: int, causal: bool, speed: float, **fields) -> CellRow:
    """Makes a cell in which ours takes 1 ms, and the peer `speed` ms."""
    shape = AttentionShape(32768 // seq, 40, seq, seq, 128, "bfloat16", CAUSAL if causal else FULL, heads_kv=8)
    times = {"ours": 1.0, "fa3": speed, "fa3 again": speed}
    entries = tuple(Timed(name, name, shape.flops, calls=4, rounds_ms=(ms,) * 7) for name, ms in times.items())
    name = f"{group}-{seq}{'-causal' * causal}"
    return CellRow(name, group, problem_of(shape), entries, {"fa3": 0.995}, device="H200", run="now", **fields)


ALL = [row for card in cells.CARDS for row in cells.read_all(card)]
ROWS = [
    row("grouped", 1024, False, 1.0),
    row("grouped", 1024, True, 0.81),
    row("grouped", 4096, False, 1.21),
    row("grouped", 4096, True, 1.0),
    row("L", 8192, False, 1.02),
]


def test_a_line_is_a_group_and_a_mask_and_a_column_a_peer_and_a_length() -> None:
    section = cells.section(ROWS).splitlines()
    assert "| 128 | 40 on 8 |  | 1.000 | 1.210 |  |  | 1.100 |" in section
    assert "| 128 | 40 on 8 | causal | 0.810 | 1.000 |  |  | 0.900 |" in section
    assert "| (4, 40/8, 8192, 128) bfloat16 | 1.000 | 1.020 | FlashAttention-3 |" in section


def test_a_cell_that_was_not_timed_is_an_empty_one() -> None:
    failed = row("grouped", 4096, False, 1.0)
    bare = tuple(Timed(entry.name, entry.what, entry.flops, "crashed", "gone") for entry in failed.entries)
    rows = [ROWS[0], CellRow("grouped-4096", "grouped", failed.problem, bare, {"fa3": 0.995}, device="H200")]
    assert "| 128 | 40 on 8 |  | 1.000 |  |  |  | 1.000 |" in cells.section(rows).splitlines()


def test_the_picture_has_a_bar_for_each_cell_between_its_speed_and_1() -> None:
    with styled():
        [axes] = drawn(ROWS).axes
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    assert [bar.get_y() for bar in bars] == [1] * len(ROWS)
    assert [1 + bar.get_height() for bar in bars] == pytest.approx([r.speed("ours", "fa3").ratio for r in ROWS])
    low, high = axes.get_ylim()
    assert (low, high) == pytest.approx((0.8, 1.3))
    # Those with a mask have a colour of their own, and none lies on another.
    assert [bar.get_facecolor() == bars[0].get_facecolor() for bar in bars] == [True, False, True, False, True]
    places = sorted(bar.get_x() for bar in bars)
    assert all(b - a >= 0.99 * bars[0].get_width() for a, b in pairwise(places))


def test_the_picture_has_a_title_the_card_and_the_date_and_its_letters_can_be_read() -> None:
    with styled():
        figure = drawn(ALL)
    said = [box.text for box in boxes(figure)]
    assert faults(figure, SMALL) == [] and "Speed of tl-attention beside FlashAttention-3" in said
    assert any(
        re.match(r"Measured on one NVIDIA H100 .* and one NVIDIA H200 .*, 20\d\d-\d\d-\d\d", text) for text in said
    )
    assert {row.device for row in ALL} < set(said), "the name of each card stands below its bars"


def test_each_card_has_its_own_tables() -> None:
    others = [replace(row, device="H100") for row in ROWS[:3]]
    first, _, second = cells.section([*ROWS, *others]).partition("### On one H100\n")
    assert "| 128 | 40 on 8 | causal | 0.810 | 1.000 |  |  | 0.900 |" in first
    assert "| 128 | 40 on 8 | causal | 0.810 |  |  |  | 0.810 |" in second
