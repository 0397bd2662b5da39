"""Pictures are those of the records, their text can be read, and what they say is worked out from rows made up here."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure
from PIL import Image, ImageChops

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))

import iterations_drawing  # noqa: E402
import pictures  # noqa: E402
from cells_page import read  # noqa: E402
from pictures_of import grid, ladder, lengths, outcomes, predictions, sheet, style  # noqa: E402
from pictures_of.beside_text import beside, figures_of_peers, only_figure  # noqa: E402
from pictures_of.budget import Kind, shares  # noqa: E402
from pictures_of.layout import boxes, faults  # noqa: E402
from pictures_of.panels import by_panel, words  # noqa: E402

from tl_attention.errors import InputError  # noqa: E402
from tl_attention.files.ladder_file import load_ladder  # noqa: E402
from tl_attention.measure.cell_records import CellRow, Timed  # noqa: E402
from tl_attention.measure.comparison import Comparison  # noqa: E402
from tl_attention.measure.records import Row, problem_of  # noqa: E402
from tl_attention.problem.mask import CAUSAL, FULL  # noqa: E402
from tl_attention.problem.shape import AttentionShape  # noqa: E402

RESULTS, FOLDER = pictures.RESULTS, pictures.FOLDER
MOST_BYTES = 3_000_000
OURS = {f"{name}.{kind}" for name in pictures.PICTURES for kind in ("svg", "png")}
MEASURED = {"device": "NVIDIA H200", "power_limit_w": 700.0, "run": "2026-01-02T03:04:05Z"}


# --- what is committed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_that_of_its_record_and_its_text_can_be_read(name, tmp_path) -> None:
    picture = pictures.PICTURES[name]
    stand = [FOLDER / f"{name}.{kind}" for kind in ("svg", "png")]
    if picture.missing(RESULTS):
        assert not [path for path in stand if path.exists()], "a picture without a record"
        return
    figure = picture.drawn(RESULTS)
    assert faults(figure, style.SMALL) == []
    svg, png = sheet.save(figure, tmp_path, name)
    made_by = f"python tools/pictures.py --only {name} makes it"
    assert svg.read_bytes() == stand[0].read_bytes(), made_by
    with Image.open(png) as drawn, Image.open(stand[1]) as committed:
        assert drawn.size == committed.size, made_by
        assert ImageChops.difference(drawn.convert("RGB"), committed.convert("RGB")).getbbox() is None, made_by


def test_together_they_are_small_and_nothing_else_is_there() -> None:
    there = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert set(there) <= OURS | {iterations_drawing.path(name).name for name in iterations_drawing.DRAWN}
    assert 0 < sum(there.values()) < MOST_BYTES


@pytest.mark.parametrize("name", sorted(name for name in OURS if name.endswith("svg")))
def test_a_picture_needs_no_font_and_says_no_date_of_drawing(name) -> None:
    text = (FOLDER / name).read_text()
    assert "<text" not in text and "font-family" not in text and "<image" not in text
    assert "dc:date" not in text and "Matplotlib" not in text
    assert re.search(r'<svg [^>]*width="675pt"', text), "900 pixels"


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_says_where_when_and_from_what(name) -> None:
    picture = pictures.PICTURES[name]
    assert not picture.missing(RESULTS), "all that ship have been measured"
    said = " ".join(box.text for box in boxes(picture.drawn(RESULTS)))
    assert "NVIDIA H200" in said and re.search(r"\b20\d\d-\d\d-\d\d\b", said)
    assert all(f"results/{record}" in said for record in picture.records)
    assert re.search(r"128\)|head_dim", said), "the problem"
    assert re.search(r"TFLOPS|part of|, %", said), "the unit"


def test_colours_are_those_of_the_style_in_a_png_too() -> None:
    with Image.open(FOLDER / "grid.png") as image:
        drawn = {colour for _, colour in image.convert("RGB").getcolors()}
    for colour in (*grid.COLOURS, "#000000", style.PAPER):
        wanted = tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))
        assert min(max(abs(a - b) for a, b in zip(wanted, found)) for found in drawn) < 10, colour


def test_another_number_in_the_record_is_another_picture(tmp_path) -> None:
    shutil.copy(RESULTS / lengths.RECORD, tmp_path)
    record = tmp_path / lengths.RECORD
    before = sheet.save(pictures.PICTURES["grid"].drawn(tmp_path), tmp_path, "grid")[0].read_bytes()
    record.write_text(re.sub(r'"rounds_ms": \[[\d., ]+\]', '"rounds_ms": [2.0, 2.0]', record.read_text(), count=1))
    assert sheet.save(pictures.PICTURES["grid"].drawn(tmp_path), tmp_path, "grid")[0].read_bytes() != before


def test_a_machines_own_settings_do_not_matter(tmp_path) -> None:
    import matplotlib

    with matplotlib.rc_context(
        {"font.size": 20, "axes.facecolor": "black", "svg.fonttype": "none", "svg.hashsalt": "x"}
    ):
        svg, _ = sheet.save(pictures.PICTURES["lengths"].drawn(RESULTS), tmp_path, "lengths")
    assert svg.read_bytes() == (FOLDER / "lengths.svg").read_bytes()


# --- the command -----------------------------------------------------------------------------------------------


def test_the_command_draws_what_is_asked_for_and_leaves_out_what_has_no_record(tmp_path, monkeypatch) -> None:
    results, folder = tmp_path / "results", tmp_path / "docs/pictures"
    results.mkdir()
    folder.parent.mkdir()
    shutil.copy(RESULTS / lengths.RECORD, results)
    monkeypatch.setattr(pictures, "RESULTS", results)
    monkeypatch.setattr(pictures, "FOLDER", folder)
    done = CliRunner().invoke(pictures.main, ["--only", "ladder-fa4", "--only", "lengths"])
    assert done.exit_code == 0, done.output
    assert "ladder-fa4: left out, there is no ladder-fa4-h200.jsonl in results/ yet" in done.output
    assert re.search(r"docs/pictures/lengths.svg: \d+ KiB\ndocs/pictures/lengths.png: \d+ KiB", done.output)
    assert {path.name for path in folder.iterdir()} == {"lengths.svg", "lengths.png"}
    unknown = CliRunner().invoke(pictures.main, ["--only", "ladder-none"])
    assert unknown.exit_code == 2 and "ladder-none" in unknown.output
    (results / lengths.RECORD).write_text("{}\n")
    broken = CliRunner().invoke(pictures.main, ["--only", "lengths"])
    assert broken.exit_code == 2 and f"{lengths.RECORD}:1" in broken.output and "Traceback" not in broken.output


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


# --- cells -----------------------------------------------------------------------------------------------------


def cell(seq: int, times: dict[str, float], causal: bool = False, **fields) -> CellRow:
    """A cell of that length, in which each entry takes so many milliseconds."""
    shape = AttentionShape(32768 // seq, 40, seq, seq, 128, "bfloat16", CAUSAL if causal else FULL, heads_kv=8)
    entries = tuple(
        Timed(name, name, shape.flops, calls=4, rounds_ms=(ms,) * 7, **fields) for name, ms in times.items()
    )
    group = "grouped_causal" if causal else "grouped"
    return CellRow(f"{group}-{seq}", group, problem_of(shape), entries, {"fa3": None}, **MEASURED)


def test_a_panel_is_what_differs_besides_lengths_and_those_without_a_mask_are_first() -> None:
    one = {"ours": 1.0, "fa3": 1.1}
    found = by_panel([cell(4096, one, causal=True), cell(4096, one), cell(1024, one)])
    assert [words(key) for key in found] == ["40 heads on 8, bf16", "40 heads on 8, causal, bf16"]
    assert [[row.shape.seq_kv for row in rows] for rows in found.values()] == [[1024, 4096], [4096]]


def test_the_fastest_peer_is_that_of_the_cell() -> None:
    row = cell(1024, {"ours": 1.0, "fa3": 1.2, "cudnn": 0.9})
    assert grid.speed(row, "fa3") == pytest.approx(1.2)
    assert grid.speed(row, grid.FASTEST) == pytest.approx(0.9)
    assert grid.speed(row, "flash2") is None and grid.speed(None, "fa3") is None
    # Another schedule of ours is no peer.
    assert grid.speed(cell(1024, {"ours": 1.0, "fa3": 1.2, "ours:best": 0.5}), grid.FASTEST) == pytest.approx(1.2)


@pytest.mark.parametrize("draw", [lengths.of_rows, grid.of_rows])
@pytest.mark.parametrize("rows", [
    read(RESULTS / "cells-h200.jsonl"),
    [cell(seq, {"ours": 1.0, "fa3": speed}) for seq, speed in ((1024, 0.81), (4096, 1.3))],
    [cell(1024, {"ours": 1.0, "fa3": 1.1}), cell(4096, {"ours": 1.0})],
], ids=["another record", "two lengths", "a peer that was not timed"])  # fmt: skip
def test_other_cells_can_be_drawn_too(draw, rows) -> None:
    with style.styled():
        assert faults(draw(rows, "cells.jsonl"), style.SMALL) == []


def test_the_values_of_a_map_are_the_speeds_of_its_cells() -> None:
    rows = [cell(1024, {"ours": 1.0, "fa3": 0.81}), cell(4096, {"ours": 1.0, "fa3": 1.3})]
    with style.styled():
        said = [box.text for box in boxes(grid.of_rows(rows, "cells.jsonl"))]
    assert said.count("0.810") == said.count("1.300") == 2
    assert "FlashAttention-3: mean 1.026, 0.810 to 1.300" in said


# --- predictions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", predictions.PAGES, ids=lambda page: page.base)
def test_every_prediction_is_read_and_speeds_are_those_of_the_page(page) -> None:
    table = [line for line in (RESULTS / page.page).read_text().splitlines() if line.startswith("|")][2:]
    speeds = {(cells := [cell.strip() for cell in line.split("|")])[1]: float(cells[5]) for line in table}
    found = outcomes.outcomes(RESULTS / page.page, RESULTS / page.record, page.base)
    assert {one.name: round(one.speed, 3) for one in found} == speeds
    assert [one.speed for one in found] == sorted((one.speed for one in found), reverse=True)
    assert all(0.9 < one.predicted.low <= one.predicted.high < 1.1 for one in found)
    assert 0 < sum(one.came_true for one in found) < len(found)


@pytest.mark.parametrize(("name", "low", "high"), [
    ("a", 0.98, 0.99),
    ("b", 1.01, 1.02),
    ("c", 1.0, 1.0),
    ("d", 0.98, 0.99),
    ("wait_16", 0.95, 0.95),
    ("exactly_16", 0.95, 0.95),
    ("e", 0.975, 0.975),
])  # fmt: skip
def test_words_are_intervals(name, low, high) -> None:
    said = {
        "a": "1 to 2 % slower: twice the reads, 10 % at 1024.",
        "b": "1 to 2 % faster: 64 FMUL less of 620 instructions.",
        "c": "no difference without causal: all tiles are equal.",
        "d": "as a: tiles are all equal here.",
        "e": "2.5 % slower, as without a mask.",
        "wait_16": "5 % slower: late.",
        "exactly_16": "as wait.",
    }
    found = outcomes.interval(name, said)
    assert (found.low, found.high) == pytest.approx((low, high))


@pytest.mark.parametrize("said", ["much slower", "slower by 1 %", "as nobody.", "as odd.", "", "-1 % slower"])
def test_words_that_are_no_prediction_are_refused_by_name(said) -> None:
    with pytest.raises(InputError, match=r"^odd: the prediction .* cannot be read, expected 'N % slower'"):
        outcomes.interval("odd", {"odd": said})


def test_a_prediction_comes_true_within_noise_of_its_interval() -> None:
    predicted = outcomes.Interval(0.98, 0.99)
    assert [predicted.holds(speed) for speed in (0.969, 0.97, 0.985, 1.0, 1.001)] == [False, True, True, True, False]


def test_an_experiment_that_was_not_timed_is_refused(tmp_path) -> None:
    page = tmp_path / "experiments.md"
    page.write_text("| schedule | prediction |\n| --- | --- |\n| nothing | 1 % slower: why. |\n")
    with pytest.raises(InputError, match=r"nothing was not timed, expected a row for each line of experiments.md"):
        outcomes.outcomes(page, RESULTS / predictions.PAGES[0].record, "best")
    page.write_text("no table\n")
    with pytest.raises(InputError, match="no table that has a column 'prediction'"):
        outcomes.predictions(page)


# --- errors ----------------------------------------------------------------------------------------------------


def test_shares_of_budgets_are_those_of_rows_and_of_entries(tmp_path) -> None:
    shape = AttentionShape(1, 2, 256, 256, 64, "float16", CAUSAL)
    row = Row("seed", "L", "runtime", problem_of(shape), "ok", error_max_abs=1.0, error_max_abs_budget=4.0)
    peer = replace(row, name="fa3", sizes="peer", error_max_abs=2.0)
    cells = cell(1024, {"ours": 1.0, "fa3": 1.0, "fa3 again": 1.0, "unmasked": 1.0, "ours:best": 1.0}, True, error=0.3)
    refused = replace(row, status="refused", error_max_abs=None, error_max_abs_budget=None)
    record = tmp_path / "some.jsonl"
    record.write_text("".join(f"{line.to_json()}\n" for line in (row, peer, refused, cells)))
    found = shares(record)
    fp16, bf16 = Kind(False, "float16", "causal", 64), Kind(False, "bfloat16", "causal", 128)
    assert [(share.of, share.kind, share.value) for share in found] == [
        ("ours", fp16, 0.25),
        ("fa3", fp16, 0.5),
        ("ours", bf16, 0.3),
        ("fa3", bf16, 0.3),
        ("ours", bf16._replace(mask="unmasked"), 0.3),
        ("ours", bf16, 0.3),
    ]
    assert {share.kind.gradients for share in shares(RESULTS / "backward-h200.jsonl")} == {True}


def test_all_that_was_recorded_is_within_its_budget() -> None:
    found = [share for path in RESULTS.glob("*.jsonl") for share in shares(path)]
    assert len(found) > 500 and max(share.value for share in found) <= 1


# --- ladders ---------------------------------------------------------------------------------------------------

LADDER = """title: four steps
source: nobody
story: up
headline: {{step: two, text: the second is the faster one}}
method: by hand
unit: {unit}
shape: 1,2,256,128
product: mma_sync
peers: {{flash2: {peer}}}
steps:
  - {{name: one, idea: the seed, schedule: seed, text: {first}}}
  - {{name: two, idea: K loaded first, schedule: source_order, text: 50}}
  - {{name: three, idea: on another card, note: it has no such unit}}
  - {{name: four, idea: three buffers, schedule: seed_stages3, against: one}}
  - {{name: five, idea: four buffers, schedule: seed_stages4}}
"""


def some(folder: Path, unit: str = "ms", first: float | None = 100.0, peer: float | None = 100.0):
    path = folder / "ladder-some.yaml"
    path.write_text(
        LADDER.format(unit=unit, first="null" if first is None else first, peer="null" if peer is None else peer)
    )
    return load_ladder(path)


def rows_of(ladder, rates: dict[str, float | None], gains: dict[str, float]) -> dict[str, Row]:
    """Rows at those rates of 400 TFLOPS, and by how much they gained in each round."""
    return {
        name: Row(
            name, name, "runtime", problem_of(ladder.shape), "ok" if rate else "refused",
            median_ms=100 / rate if rate else None, tflops=rate, matmul_tflops=400.0,
            percent_of_matmul=rate / 4 if rate else None,
            against=Comparison("x", None, (1 / gains[name],) * 7) if name in gains else None,
            **MEASURED,
        )
        for name, rate in rates.items()
    }  # fmt: skip


RATES = {"one": 100.0, "two": 200.0, "four": 150.0, "five": None, "flash2": 250.0}
GAINS = {"two": 2.0, "four": 1.4999}


def test_a_ladder_has_its_rates_gains_and_gaps(tmp_path) -> None:
    found = some(tmp_path)
    with style.styled():
        figure = ladder.of_rows(found, rows_of(found, RATES, GAINS), "ladder-some-h200.jsonl")
    assert faults(figure, style.SMALL) == []
    said = [box.text for box in boxes(figure)]
    for text in (
        "100",
        "200",
        "150",
        "+100.0 %",
        "+50.0 %",
        "on 1",
        "kernel",
        "refused",
        "FlashAttention-2, 250 TFLOPS",
    ):
        assert text in said, text
    assert "on 2" not in said, "the one before needs no number"
    assert any(text == "4. four: three buffers" for text in said)
    assert any("nobody; by hand" in text for text in said)


def test_a_gain_has_a_sign_and_none_of_less_than_a_thousandth(tmp_path) -> None:
    found = some(tmp_path)
    rows = rows_of(found, RATES, {"two": 0.9, "four": 0.9999})
    assert list(ladder.gain(found.step("two"), rows["two"], found)) == ["\N{MINUS SIGN}10.0 %"]
    assert list(ladder.gain(found.step("four"), rows["four"], found)) == ["0.0 %", "on 1"]
    assert list(ladder.gain(found.step("one"), rows["one"], found)) == []


def test_steps_that_are_alike_get_an_axis_of_their_own() -> None:
    assert ladder.limits([100.0, 300.0])[0] == 0
    low, high = ladder.limits([290.0, 300.0])
    assert 280 < low < 290 and 300 < high < 310


@pytest.mark.parametrize(("unit", "first", "ours", "text"), [
    ("'% of the speed of light'", 90.0, (25.0, 50.0, None, 37.5, None), (90.0, 50.0, None, None, None)),
    ("'% of the reference'", 90.0, (40.0, 80.0, None, 60.0, None), (90.0, 50.0, None, None, None)),
    # A step of half the time is twice as fast.
    ("ms", 100.0, (100.0, 200.0, None, 150.0, None), (100.0, 200.0, None, None, None)),
    ("TFLOPS", 100.0, (100.0, 200.0, None, 150.0, None), (100.0, 50.0, None, None, None)),
])  # fmt: skip
def test_the_texts_figures_stand_beside_ours_in_percent_of_the_same(unit, first, ours, text, tmp_path) -> None:
    found = some(tmp_path, unit, first)
    compared = beside(found, rows_of(found, RATES, GAINS))
    assert compared and compared.ours == ours and compared.text == text
    assert only_figure(found, rows_of(found, RATES, GAINS)) == ""


def test_a_single_figure_is_said_in_words_and_another_unit_is_refused(tmp_path) -> None:
    found = some(tmp_path, "ms", None)
    rows = rows_of(found, RATES, GAINS)
    assert beside(found, rows) is None
    assert only_figure(found, rows) == "Its one figure is 50 ms, of step 2; here 0.5 ms."
    with pytest.raises(InputError, match="ladder some: the unit 'furlongs' is none that pictures can draw"):
        beside(some(tmp_path, "furlongs"), rows)
    assert figures_of_peers(found) == ""
    assert figures_of_peers(some(tmp_path, "ms", peer=97.2)) == "Its peers there: FlashAttention-2 97.2 ms."


def test_a_record_without_a_timed_step_is_refused(tmp_path) -> None:
    found = some(tmp_path)
    with pytest.raises(InputError, match=r"ladder-some-h200.jsonl: no step of the ladder some was timed"):
        ladder.of_rows(found, rows_of(found, {"one": None}, {}), "ladder-some-h200.jsonl")
