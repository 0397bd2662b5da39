"""Pictures are drawn of cells, predictions, shares of budgets and the steps of a ladder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pages import outcomes
from pages.cells import read
from pages.made import RESULTS
from picture_text import boxes, faults
from pictures import grid, ladder, lengths, style
from pictures.errors import Kind, shares
from pictures.ladder import beside, figures_of_peers, only_figure
from pictures.panels import by_panel, words

from tl_attention.errors import InputError
from tl_attention.files.ladder_file import load_ladder
from tl_attention.measure.cell_records import CellRow, Timed
from tl_attention.measure.records import Comparison, Row, problem_of
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape

MEASURED = {"device": "NVIDIA H200", "power_limit_w": 700.0, "run": "2026-01-02T03:04:05Z"}


# --- cells -----------------------------------------------------------------------------------------------------


def cell(seq: int, times: dict[str, float], causal: bool = False, **fields) -> CellRow:
    """Makes a cell of a length, in which each entry takes so many milliseconds."""
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


@pytest.mark.parametrize("experiments", outcomes.EXPERIMENTS, ids=lambda experiments: experiments.base)
def test_every_prediction_is_read_and_each_of_them_has_a_speed(experiments) -> None:
    found = outcomes.outcomes(experiments)
    assert {one.name for one in found} == {path.stem for path in experiments.folder.glob("*.yaml")}
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
    experiments = outcomes.EXPERIMENTS[0]._replace(folder=tmp_path)
    experiments.path("nothing").write_text("# Prediction: 1 % slower: why.\nbase: best\n")
    with pytest.raises(
        InputError, match=r"experiments-h200.jsonl: nothing was not timed, expected a row for each file"
    ):
        outcomes.outcomes(experiments)
    experiments.path("nothing").write_text("base: best\n")
    with pytest.raises(InputError, match="nothing.yaml: no line `# Prediction"):
        outcomes.predictions(tmp_path)


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
    """Makes rows at these rates of 400 TFLOPS, with these gains in each round."""
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
        "over 1",
        "kernel",
        "refused",
        "FlashAttention-2, 250 TFLOPS",
    ):
        assert text in said, text
    assert "over 2" not in said, "the one before needs no number"
    assert any(text == "4. four: three buffers" for text in said)
    assert any("nobody; it measured on by hand" in text for text in said)


def test_a_gain_has_a_sign_and_none_of_less_than_a_thousandth(tmp_path) -> None:
    found = some(tmp_path)
    rows = rows_of(found, RATES, {"two": 0.9, "four": 0.9999})
    assert list(ladder.gain(found.step("two"), rows["two"], found)) == ["\N{MINUS SIGN}10.0 %"]
    assert list(ladder.gain(found.step("four"), rows["four"], found)) == ["0.0 %", "over 1"]
    assert list(ladder.gain(found.step("one"), rows["one"], found)) == []


def test_steps_that_are_alike_get_an_axis_of_their_own() -> None:
    assert ladder.limits([100.0, 300.0])[0] == 0
    low, high = ladder.limits([290.0, 300.0])
    assert 280 < low < 290 and 300 < high < 310


OF_PEER, OF_FIRST = (40.0, 80.0, None, 60.0, None), (100.0, 200.0, None, 150.0, None)


@pytest.mark.parametrize(("unit", "first", "peer", "ours", "text"), [
    # Where the text has a figure for the peer, the peer is 100 % on both cards.
    ("'% of the speed of light'", 64.0, 80.0, OF_PEER, (80.0, 62.5, None, None, None)),
    ("'% of the reference'", 90.0, 100.0, OF_PEER, (90.0, 50.0, None, None, None)),
    # A step of half the time is twice as fast.
    ("ms", 100.0, 100.0, OF_PEER, (100.0, 200.0, None, None, None)),
    ("ms", 100.0, None, OF_FIRST, (100.0, 200.0, None, None, None)),
    ("TFLOPS", 100.0, None, OF_FIRST, (100.0, 50.0, None, None, None)),
])  # fmt: skip
def test_the_texts_figures_stand_beside_ours_in_percent_of_the_same(unit, first, peer, ours, text, tmp_path) -> None:
    found = some(tmp_path, unit, first, peer)
    compared = beside(found, rows_of(found, RATES, GAINS))
    assert compared and compared.ours == ours and compared.text == text
    assert compared.unit.startswith(f"Speed in percent of {'FlashAttention-2' if peer else 'step 1'}, each")
    assert only_figure(found, rows_of(found, RATES, GAINS)) == ""


def test_a_single_figure_is_said_in_words_and_another_unit_is_refused(tmp_path) -> None:
    found = some(tmp_path, "ms", None)
    rows = rows_of(found, RATES, GAINS)
    assert beside(found, rows) is None
    assert only_figure(found, rows) == "The text has one figure, 50 ms for step 2; here that step has 0.5 ms."
    with pytest.raises(InputError, match="ladder some: the unit 'furlongs' is none that pictures can draw"):
        beside(some(tmp_path, "furlongs"), rows)
    assert figures_of_peers(found) == ""
    assert figures_of_peers(some(tmp_path, "ms", peer=97.2)) == "The text has FlashAttention-2 at 97.2 ms."


def test_a_record_without_a_timed_step_is_refused(tmp_path) -> None:
    found = some(tmp_path)
    with pytest.raises(InputError, match=r"ladder-some-h200.jsonl: no step of the ladder some was timed"):
        ladder.of_rows(found, rows_of(found, {"one": None}, {}), "ladder-some-h200.jsonl")
