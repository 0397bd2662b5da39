"""The table of the best configuration per tile, beside what the text has of each on an RTX 3090."""

from __future__ import annotations

from typing import Any

from tl_attention.configurations import published
from tl_attention.configurations.space import space
from tl_attention.hardware.card import CARDS
from tl_attention.measure.records import Row, problem_of
from tl_attention.problem.shape import AttentionShape
from tl_attention.show.configurations import HEADINGS, best_of_tiles
from tl_attention.show.text_table import fitting, lines, markdown

PROBLEM = problem_of(AttentionShape(16, 16, 4096, 4096, 128))
FIRST, SECOND = "(128, 64, 64, 4)", "(128, 64, 32, 4)"


def row(tile: str, options: str, **fields: Any) -> Row:
    name = f"{tile}: async+{options}"
    return Row(name, name, "runtime", PROBLEM, **{"status": "ok", "arch": "sm_90a"} | fields)


def test_what_the_text_has_is_of_its_space_and_of_its_card():
    assert {line.configuration for line in published.BEST} <= set(space())
    assert [line.tflops for line in published.BEST] == sorted((line.tflops for line in published.BEST), reverse=True)
    for line in published.BEST:
        one = line.configuration
        assert line.shared_bytes == (one.block_M + 2 * one.block_N) * one.head_dim * 2
        assert published.CARD.warps_per_sm(one.threads, line.registers, line.shared_bytes) == line.warps_per_sm


def test_each_tile_has_a_line_here_and_the_texts_behind_it():
    fast = row(
        FIRST,
        "eager+swizzled+load_2_2_2_fragments",
        device="NVIDIA H200",
        tflops=400.0,
        registers=168,
        stack_bytes=0,
        shared_bytes=48 * 1024,
    )
    slow = row(
        SECOND,
        "eager+swizzled+load_0_2_0_fragments",
        device="NVIDIA H200",
        tflops=300.0,
        registers=200,
        stack_bytes=8,
        shared_bytes=32 * 1024,
    )
    table = best_of_tiles([fast, slow])
    assert all(len(line) == len(HEADINGS) for line in table)
    text = "text, RTX 3090"
    assert table == [
        [FIRST, "NVIDIA H200", "load_2_2_2_fragments", "400.0", "100.0", "168", "0", "48", "12"],
        ["", text, "load_0_2_0_fragments+buffer+opt_softmax", "68.3", "100.0", "229", "0", "48", "8"],
        [SECOND, "NVIDIA H200", "load_0_2_0_fragments", "300.0", "75.0", "200", "8", "32", "8"],
        ["", text, "load_2_2_0_fragments", "67.4", "98.7", "168", "0", "32", "12"],
    ]
    assert CARDS["sm_90a"].warps_per_sm(128, 168, 48 * 1024) == 12
    assert len(lines(HEADINGS, table)) > len(table) and markdown(HEADINGS, table).count("\n") == len(table) + 1


def test_what_was_not_timed_or_not_compiled_is_left_empty():
    compiled = row(
        FIRST,
        "load_2_2_2_fragments",
        status="compiled",
        arch="sm_86",
        registers=255,
        stack_bytes=272,
        shared_bytes=64 * 1024,
    )
    refused = row("(128, 192, 64, 4)", "eager+load_2_2_2_fragments", status="refused", arch="sm_86")
    table = best_of_tiles([compiled, refused])
    where = "compiled for RTX 3090"
    assert table[0] == [FIRST, where, "async+load_2_2_2_fragments", "", "", "255", "272", "64", "4"]
    # The text has no such tile.
    assert table[2:] == [["(128, 192, 64, 4)", where, "async+eager+load_2_2_2_fragments", *[""] * 6]]


def test_a_long_name_stands_in_several_lines_of_a_table():
    name = f"{FIRST}: async+eager+swizzled+load_0_2_0_fragments+buffer+opt_softmax"
    table = [[name, "ok", "1.0"], ["best", "ok", "2.0"]]
    shown, left_out = fitting(("schedule", "status", "ms"), table, (0, 1, 2), 60)
    assert (shown, left_out) == ([0, 1, 2], [])
    assert lines(("schedule", "status", "ms"), table)[2:] == [
        "(128, 64, 64, 4): async+eager+swizzled+  ok      1.0",
        "load_0_2_0_fragments+buffer+opt_softmax",
        "best                                     ok      2.0",
    ]
    unbroken = "x" * 90
    assert lines(("schedule",), [[unbroken]])[2:] == [unbroken]
