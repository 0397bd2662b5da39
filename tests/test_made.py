"""Made pages and pictures are what `tools/make.py` would make of the records, schedules and rules."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import make
import pytest
from click.testing import CliRunner
from pages.cells import record
from pages.made import ROOT, filled
from picture_text import faults
from pictures import sheet, style
from PIL import Image, ImageChops
from tiers import exhaustive

GRID = record("grid")


@pytest.mark.parametrize("path", make.TEXTS)
def test_a_page_is_what_it_is_made_of(path) -> None:
    assert (ROOT / path).read_text("utf-8") == make.TEXTS[path](), f"python tools/make.py {path} makes it again"


@exhaustive
@pytest.mark.parametrize("path", make.PICTURES)
def test_a_picture_is_that_of_its_record_and_its_text_can_be_read(path, tmp_path) -> None:
    picture, stand = make.PICTURES[path], [(ROOT / path).with_suffix(kind) for kind in (".svg", ".png")]
    if picture.missing(make.RESULTS):
        assert not [file for file in stand if file.exists()], "a picture without a record"
        return
    figure = picture.drawn(make.RESULTS)
    assert faults(figure, style.SMALL) == []
    svg, png = sheet.save(figure, tmp_path, picture.name)
    made_by = f"python tools/make.py {path} makes it again"
    assert svg.read_bytes() == stand[0].read_bytes(), made_by
    with Image.open(png) as drawn, Image.open(stand[1]) as committed:
        assert drawn.size == committed.size, made_by
        assert ImageChops.difference(drawn.convert("RGB"), committed.convert("RGB")).getbbox() is None, made_by


def test_no_made_page_or_picture_is_left_over() -> None:
    """The test looks at folders in which all files are made."""
    pictures = {Path(path).with_suffix(kind).as_posix() for path in make.PICTURES for kind in (".svg", ".png")}
    for folder, made in (("docs/ladders", set(make.TEXTS)), (make.FOLDER, {*make.TEXTS, *pictures})):
        assert {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).iterdir()} <= made


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
def test_the_command_makes_what_is_asked_for_and_leaves_out_what_has_no_record(tmp_path, monkeypatch) -> None:
    folder, lengths = tmp_path / make.FOLDER, f"{make.FOLDER}/lengths.svg"
    folder.mkdir(parents=True)
    results = tmp_path / "results"
    results.mkdir()
    shutil.copy(GRID, results)
    monkeypatch.setattr(make, "RESULTS", results)
    monkeypatch.setattr(make, "ROOT", tmp_path)
    done = CliRunner().invoke(make.main, [f"{make.FOLDER}/ladder-fa4.svg", lengths, "docs/results.md"])
    assert done.exit_code == 0, done.output
    assert "ladder-fa4.svg: left out, there is no ladder-fa4-h200.jsonl in results/ yet" in done.output
    assert re.search(
        r"docs/pictures/lengths.svg: \d+ KiB\ndocs/pictures/lengths.png: \d+ KiB\ndocs/results.md", done.output
    )
    assert {path.name for path in folder.iterdir()} == {"lengths.svg", "lengths.png"}
    assert (tmp_path / "docs/results.md").read_text() == (ROOT / "docs/results.md").read_text()
    unknown = CliRunner().invoke(make.main, ["docs/none.md"])
    assert unknown.exit_code == 2 and "docs/none.md" in unknown.output
    (results / GRID.name).write_text("{}\n")
    broken = CliRunner().invoke(make.main, [lengths])
    assert broken.exit_code == 2 and f"{GRID.name}:1" in broken.output and "Traceback" not in broken.output
