"""Tests check the pages of ladders, and what the records say of the texts."""

from __future__ import annotations

import pytest
from pages import ladder_sections, ladders

from tl_attention.files.ladder_file import ladder_names, load_ladder
from tl_attention.measure.records import read_rows
from tl_attention.show import ladder as shown

PAGES = ladders.pages()


def test_there_is_a_page_of_each_ladder() -> None:
    assert sorted(ladders.ORDER) == ladder_names()


@pytest.mark.parametrize("name", ladder_names())
def test_every_step_ran_right_before_it_was_timed(name) -> None:
    ladder = load_ladder(name)
    rows = shown.by_name(read_rows(ladders.record_of(name)), ladder)
    assert {step.name for step in ladder.measured} <= set(rows)
    for step in ladder.measured:
        row, named = rows[step.name], step.schedule
        assert row.status == "ok" and row.median_ms and row.verified_shapes > 0 and row.loops
        assert row.error_max_abs <= row.error_max_abs_budget and row.product == ladder.product
        assert named is not None and row.label == named.schedule.label, f"{step.name} has changed since it was measured"
        assert (row.against is None) == (step.against is None)
    codes = [rows[step.name].fingerprint for step in ladder.measured]
    assert len(set(codes)) == len(codes), "a step changed no code"
    assert set(ladder.peers) <= set(rows)


def test_every_configuration_of_the_space_is_in_the_record_of_the_choice() -> None:
    rows = read_rows(ladders.record_of("rtx3090_tuned"))
    of_each, best = shown.of_record(rows)
    assert len(of_each) == 120 and len(best) == 4
    assert all(row.median_ms and row.error_max_abs <= row.error_max_abs_budget for row in best)


def test_the_grid_has_the_texts_48_problems() -> None:
    cells = ladder_sections.read_cells(ladder_sections.GRID)
    assert len(cells) == 48 == sum(map(len, ladder_sections.TEXT_GAINS.values()))
    assert all(entry.status == "ok" for cell in cells for entry in cell.entries)


def test_a_page_says_what_the_text_and_what_this_project_measured_on() -> None:
    for name in ladder_names():
        ladder, page = load_ladder(name), PAGES[f"{name}.md"]
        assert (
            ladder.source in page
            and ladder.link in page
            and ladder.method in page
            and "NVIDIA H200" in page
            and ladder.story in page
        )
        for step in ladder.steps:
            assert f"### {step.name}: {step.idea}" in page and step.why in page
