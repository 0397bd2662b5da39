"""Pictures agree with the records, and their text can be read; what they say is worked out from rows made up here."""

from __future__ import annotations

import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from make import FOLDER as FOLDER_OF_PICTURES
from make import PICTURES as OF_RECORDS
from matplotlib.figure import Figure
from pages.cells import record
from pages.made import RESULTS, ROOT
from picture_text import boxes, faults
from pictures import grid, sheet, style
from PIL import Image
from tiers import exhaustive, sampled

from tl_attention.measure.records import read_rows

FOLDER = ROOT / FOLDER_OF_PICTURES
GRID = record("grid")
PICTURES = {picture.name: picture for picture in OF_RECORDS.values()}
MOST_BYTES = 3_000_000


# --- what is committed -----------------------------------------------------------------------------------------


def test_together_they_are_small() -> None:
    assert 0 < sum(path.stat().st_size for path in FOLDER.iterdir()) < MOST_BYTES


@pytest.mark.parametrize("name", [f"{name}.svg" for name in PICTURES])
def test_a_picture_needs_no_font_and_says_no_date_of_drawing(name) -> None:
    text = (FOLDER / name).read_text()
    assert "<text" not in text and "font-family" not in text and "<image" not in text
    assert "dc:date" not in text and "Matplotlib" not in text
    assert re.search(r'<svg [^>]*width="675pt"', text), "900 pixels"


@pytest.mark.parametrize("name", sampled(PICTURES, [*PICTURES][::2]))
def test_a_picture_says_where_when_and_from_what(name) -> None:
    picture = PICTURES[name]
    assert not picture.missing(RESULTS), "all that ship have been measured"
    said = " ".join(box.text for box in boxes(picture.drawn(RESULTS)))
    assert f"NVIDIA {'H100' if 'h100' in name else 'H200'}" in said and re.search(r"\b20\d\d-\d\d-\d\d\b", said)
    assert all(f"results/{record}" in said for record in picture.records)
    assert re.search(r"128\)|head_dim", said), "the problem"
    assert re.search(r"TFLOPS|divided by|allowed error|, %", said), "the unit"


def test_colours_are_those_of_the_style_in_a_png_too() -> None:
    with Image.open(FOLDER / "grid-h200.png") as image:
        drawn = {colour for _, colour in image.convert("RGB").getcolors()}
    for colour in (*grid.COLOURS, "#000000", style.PAPER):
        wanted = tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))
        assert min(max(abs(a - b) for a, b in zip(wanted, found)) for found in drawn) < 10, colour


@exhaustive
def test_another_number_in_the_record_is_another_picture(tmp_path) -> None:
    record = Path(shutil.copy(GRID, tmp_path))
    before = sheet.save(PICTURES["grid-h200"].drawn(tmp_path), tmp_path, "grid")[0].read_bytes()
    record.write_text(re.sub(r'"rounds_ms": \[[\d., ]+\]', '"rounds_ms": [2.0, 2.0]', record.read_text(), count=1))
    assert sheet.save(PICTURES["grid-h200"].drawn(tmp_path), tmp_path, "grid")[0].read_bytes() != before


@exhaustive
def test_a_machines_own_settings_do_not_matter(tmp_path) -> None:
    import matplotlib

    with matplotlib.rc_context(
        {"font.size": 20, "axes.facecolor": "black", "svg.fonttype": "none", "svg.hashsalt": "x"}
    ):
        svg, _ = sheet.save(PICTURES["lengths"].drawn(RESULTS), tmp_path, "lengths")
    assert svg.read_bytes() == (FOLDER / "lengths.svg").read_bytes()


def test_the_picture_drawn_by_hand_has_a_title_the_card_and_the_date_of_the_record_that_its_numbers_are_of() -> None:
    svg = (ROOT / "docs/life-of-a-block.svg").read_text()
    row = next(row for row in read_rows(RESULTS / "bench-h200-L.jsonl") if row.name == "best")
    loop = row.loops[0]
    assert f"{loop.product_waits[-1]} of {loop.exponentials} MUFU.EX2, then" in svg
    assert f"of {loop.counts['HGMMA']} in the loop" in svg
    assert f"TileLang {row.versions['tilelang']}, nvcc {row.nvcc}, {row.device}, {row.run[:10]}" in svg
    assert "The life of a KV block, from YAML to machine code</text>" in svg


# --- text and colours ------------------------------------------------------------------------------------------


def test_text_that_overlaps_leaves_the_figure_or_is_too_small_is_a_fault() -> None:
    def found(*texts: tuple[float, float, str, float], **options) -> list[str]:
        figure = Figure(figsize=(4, 2), dpi=96)
        for x, y, text, size in texts:
            figure.text(x, y, text, fontsize=size, **options)
        return faults(figure, 8)

    assert found((0.1, 0.5, "one", 9), (0.5, 0.5, "two", 9)) == []
    assert found((0.1, 0.5, "one", 9), (0.12, 0.52, "two", 9)) == ["'one' overlaps 'two'"]
    assert found((0.95, 0.5, "beyond", 9)) == ["'beyond' leaves the figure"]
    assert found((0.1, 0.99, "above", 9)) == ["'above' leaves the figure"]
    assert found((0.1, 0.5, "tiny", 6)) == ["'tiny' has 6 pt, expected at least 8"]
    assert found((0.1, 0.5, "one", 9), (0.12, 0.52, "two", 9), visible=False) == []
    # Beside each other when they lie, on each other when they stand.
    across = (0.3, 0.4, "a longer text", 9), (0.31, 0.2, "another one", 9)
    assert found(*across) == [] and found(*across, rotation=90) == ["'a longer text' overlaps 'another one'"]


def test_of_an_axis_only_what_is_drawn_counts() -> None:
    figure = Figure(figsize=(4, 2), dpi=96)
    axes = figure.add_axes((0.2, 0.2, 0.7, 0.7))
    axes.set_xticks([0, 1, 50], ["first", "last", "outside"])
    axes.set_xlim(0, 1)
    assert {"first", "last"} <= {box.text for box in boxes(figure)} and faults(figure, 8) == []
    axes.set_xticks([0, 0.01, 1], ["first", "second", "last"])
    assert faults(figure, 8) == ["'first' overlaps 'second'"]


def test_colours_are_apart_in_grey_and_words_are_read_on_them() -> None:
    of_names = [style.lightness(colour) for colour in style.COLOURS.values()]
    assert all(later - earlier > 10 for earlier, later in pairwise(of_names))
    assert len(set(style.MARKERS.values())) == len(set(map(str, style.DASHES.values()))) == len(style.COLOURS)
    middle = len(grid.COLOURS) // 2 - 1
    of_map = [style.lightness(colour) for colour in grid.COLOURS]
    assert grid.colour_of(1.0) == grid.COLOURS[middle] and of_map[middle] == max(of_map)
    assert all(b - a > 5 for a, b in pairwise(of_map[: middle + 1]))
    assert all(a - b > 5 for a, b in pairwise(of_map[middle:]))
    assert all(abs(style.lightness(style.ink_on(c)) - style.lightness(c)) > 40 for c in grid.COLOURS)
    assert (style.lightness("#000000"), round(style.lightness("#ffffff"))) == (0, 100)


def test_lines_are_wrapped_where_they_are_too_wide() -> None:
    text = "some words that do not fit into a line of two hundred pixels"
    lines = sheet.wrapped(text, 9, 200)
    assert " ".join(lines) == text and len(lines) == 2
    assert all(sheet.width_of(line, 9) <= 200 for line in lines)
    assert sheet.wrapped("anunbreakableword", 9, 10) == ["anunbreakableword"]
