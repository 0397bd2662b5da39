"""Pictures that are committed agree with the records, and their text and colours can be read."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from make import FOLDER as FOLDER_OF_PICTURES
from make import PICTURES as OF_RECORDS
from pages.made import RESULTS, ROOT
from picture_text import boxes
from pictures import grid, sheet, style
from PIL import Image
from tiers import exhaustive, sampled

from tl_attention.measure.records import read_rows

FOLDER = ROOT / FOLDER_OF_PICTURES
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
