"""Made pages and pictures are what `tools/make.py` would make of the records, schedules and rules."""

import re
import shutil
from dataclasses import replace
from itertools import pairwise

import make
import pytest
from click.testing import CliRunner
from matplotlib.patches import Rectangle
from pages import cells, ladder_sections, ladders
from pages.cells import record
from pages.made import ROOT, filled
from picture_text import boxes, faults
from pictures import sheet, style
from pictures.speed import drawn
from pictures.style import SMALL, styled
from tiers import exhaustive

from tl_attention.lab.files.ladder_file import ladder_names, load_ladder
from tl_attention.lab.measure.cell_records import CellRow, Timed
from tl_attention.lab.measure.records import problem_of, read_rows
from tl_attention.lab.show import ladder as shown
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape

GRID = record("grid")


@pytest.mark.parametrize("path", make.TEXTS)
def test_a_page_is_what_it_is_made_of(path) -> None:
    assert (ROOT / path).read_text("utf-8") == make.TEXTS[path](), f"python tools/make.py {path} makes it again"


@exhaustive
@pytest.mark.parametrize("path", make.PICTURES)
def test_a_picture_is_that_of_its_record_and_its_text_can_be_read(path) -> None:
    figure = sheet.drawn(make.PICTURES[path], make.RESULTS)
    assert faults(figure, style.SMALL) == []
    assert (ROOT / path).read_text("utf-8") == sheet.svg_of(figure), f"python tools/make.py {path} makes it again"


def test_no_made_page_or_picture_is_left_over() -> None:
    """The test looks at folders in which all files are made."""
    for folder in ("docs/ladders", make.FOLDER):
        assert {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).iterdir()} <= {
            *make.TEXTS,
            *make.PICTURES,
        }


PARTS = {"one": lambda: "new\n", "two": lambda: "other"}
PAGE = "before\n<!-- one -->\n{}<!-- end of one -->\nbetween\n<!-- two -->\n{}<!-- end of two -->\nafter\n"


def test_the_parts_of_a_page_take_the_place_of_the_old_ones() -> None:
    made = PAGE.format("\nnew\n\n", "\nother\n\n")
    for page in (PAGE.format("old\n", ""), made):
        assert filled(page, PARTS) == made
    for broken in (
        "no markers", PAGE.format("", "").replace("<!-- end of two -->", ""), PAGE * 2, "<!-- end of one --><!-- one -->\n"
    ):  # fmt: skip
        with pytest.raises(ValueError, match="expected one line <!-- (one|two) --> and, after it, one <!-- end of"):
            filled(broken, PARTS)


@exhaustive
def test_the_command_makes_what_is_asked_for(tmp_path, monkeypatch) -> None:
    folder, lengths = tmp_path / make.FOLDER, f"{make.FOLDER}/lengths.svg"
    folder.mkdir(parents=True)
    results = tmp_path / "results"
    results.mkdir()
    shutil.copy(GRID, results)
    monkeypatch.setattr(make, "RESULTS", results)
    monkeypatch.setattr(make, "ROOT", tmp_path)
    done = CliRunner().invoke(make.main, [lengths, "docs/results.md"])
    assert done.exit_code == 0, done.output
    assert done.output == f"{lengths}\ndocs/results.md\n"
    for path in (lengths, "docs/results.md"):
        assert (tmp_path / path).read_text() == (ROOT / path).read_text()
    unknown = CliRunner().invoke(make.main, ["docs/none.md"])
    assert unknown.exit_code == 2 and "docs/none.md" in unknown.output
    (results / GRID.name).write_text("{}\n")
    broken = CliRunner().invoke(make.main, [lengths])
    assert broken.exit_code == 2 and f"{GRID.name}:1" in broken.output and "Traceback" not in broken.output


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
    pages = ladders.pages()
    for name in ladder_names():
        ladder, page = load_ladder(name), pages[f"{name}.md"]
        assert (
            ladder.source in page
            and ladder.link in page
            and ladder.method in page
            and "NVIDIA H200" in page
            and ladder.story in page
        )
        for step in ladder.steps:
            assert f"### {step.name}: {step.idea}" in page and step.why in page


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
