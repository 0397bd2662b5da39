"""Made pages and pictures are what `tools/make.py` would make of the records, schedules and rules."""

import shutil

import make
import pytest
from click.testing import CliRunner
from pages import ladders
from pages.cells import record
from pages.made import ROOT, filled
from picture_text import faults
from pictures import sheet, style
from tiers import exhaustive

from tl_attention.lab.files.ladder_file import ladder_names, load_ladder
from tl_attention.lab.measure.records import read_rows
from tl_attention.lab.show import ladder as shown

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
