"""Pictures that are committed agree with the records, and their text and colours can be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from make import FOLDER as FOLDER_OF_PICTURES
from make import PICTURES
from matplotlib.font_manager import fontManager
from pages import cells, outcomes
from pages.cells import read
from pages.experiments import section
from pages.made import RESULTS, ROOT
from picture_text import faults
from pictures import grid, ladder, lengths, sheet, style
from pictures.errors import shares
from pictures.ladder import beside, figures_of_peers, only_figure
from tiers import exhaustive

from tl_attention.errors import InputError
from tl_attention.lab.files.ladder_file import Ladder, load_ladder
from tl_attention.lab.measure.cell_records import CellRow, Timed
from tl_attention.lab.measure.records import Row, problem_of, read_rows
from tl_attention.lab.trace.fonts import own_fonts_first
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape

FOLDER = ROOT / FOLDER_OF_PICTURES
LENGTHS = f"{FOLDER_OF_PICTURES}/lengths.svg"
MOST_BYTES = 2_900_000


# --- what is committed -----------------------------------------------------------------------------------------


def test_together_they_are_small() -> None:
    assert 0 < sum(path.stat().st_size for path in FOLDER.iterdir()) < MOST_BYTES


@exhaustive
def test_a_machines_own_settings_do_not_matter() -> None:
    import matplotlib

    with matplotlib.rc_context(
        {"font.size": 20, "axes.facecolor": "black", "svg.fonttype": "none", "svg.hashsalt": "x"}
    ):
        svg = sheet.svg_of(sheet.drawn(PICTURES[LENGTHS], RESULTS))
    assert svg == (ROOT / LENGTHS).read_text()


def test_the_picture_drawn_by_hand_has_a_title_the_card_and_the_date_of_the_record_that_its_numbers_are_of() -> None:
    svg = (ROOT / "docs/life-of-a-block.svg").read_text()
    row = next(row for row in read_rows(RESULTS / "bench-h200-L.jsonl") if row.name == "best")
    loop = row.loops[0]
    assert f"{loop.product_waits[-1]} of {loop.exponentials} MUFU.EX2, then" in svg
    assert f"of {loop.counts['HGMMA']} in the loop" in svg
    assert f"TileLang {row.versions['tilelang']}, nvcc {row.nvcc}, {row.device}, {row.run[:10]}" in svg
    assert "The life of a KV block, from YAML to machine code</text>" in svg


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


def test_a_cell_that_was_not_timed_is_an_empty_one() -> None:
    rows = [cell(1024, {"ours": 1.0, "fa3": 1.1}), cell(4096, {"ours": 1.0})]
    assert "| 128 | 40 on 8 |  | 1.100 |  |  |  | 1.100 |" in cells.section(rows).splitlines()


@pytest.mark.parametrize("draw", [lengths.figure, grid.figure])
@pytest.mark.parametrize("rows", [
    read(RESULTS / "cells-h200.jsonl"),
    [cell(seq, {"ours": 1.0, "fa3": speed}) for seq, speed in ((1024, 0.81), (4096, 1.3))],
    [cell(1024, {"ours": 1.0, "fa3": 1.1}), cell(4096, {"ours": 1.0})],
], ids=["another record", "two lengths", "a peer that was not timed"])  # fmt: skip
def test_other_cells_can_be_drawn_too(draw, rows) -> None:
    with style.styled():
        assert faults(draw(rows, "cells.jsonl"), style.SMALL) == []


# --- predictions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["much slower", "slower by 1 %", "as nobody.", "as odd.", "", "-1 % slower"])
def test_words_that_are_no_prediction_are_refused_by_name(said) -> None:
    with pytest.raises(InputError, match=r"^odd: the prediction .* cannot be read, expected 'N % slower'"):
        outcomes.interval("odd", {"odd": said})


def test_a_prediction_comes_true_within_noise_of_its_interval() -> None:
    assert outcomes.interval("a", {"a": "2.5 % slower, as without a mask."}) == outcomes.Interval(0.975, 0.975)
    predicted = outcomes.Interval(0.98, 0.99)
    assert [predicted.holds(speed) for speed in (0.969, 0.97, 0.985, 1.0, 1.001)] == [False, True, True, True, False]


def test_an_experiment_that_was_not_timed_is_named_with_its_prediction(tmp_path) -> None:
    experiments = outcomes.EXPERIMENTS[0]._replace(folder=tmp_path)
    experiments.path("nothing").write_text("# Prediction: 1 % slower: why.\nbase: best\nsummary: all\n")
    assert outcomes.outcomes(experiments) == []
    assert section(experiments).endswith("\n| `nothing` | not measured yet |  | all | 1 % slower: why |  |  |")
    experiments.path("nothing").write_text("# Prediction: slower.\nbase: best\n")
    with pytest.raises(InputError, match="the prediction 'slower.' cannot be read"):
        outcomes.outcomes(experiments)
    experiments.path("nothing").write_text("base: best\n")
    with pytest.raises(InputError, match="nothing.yaml: no line `# Prediction"):
        outcomes.predictions(tmp_path)


# --- errors ----------------------------------------------------------------------------------------------------


def test_all_that_was_recorded_is_within_its_budget() -> None:
    found = [share for path in RESULTS.glob("*.jsonl") for share in shares(path)]
    assert len(found) > 500 and max(share.value for share in found) <= 1


# --- ladders ---------------------------------------------------------------------------------------------------

LADDER = """title: two steps
source: nobody
story: up
headline: {{step: two, text: the second is the faster one}}
method: by hand
unit: {unit}
shape: 1,2,256,128
product: mma_sync
peers: {{flash2: {peer}}}
steps:
  - {{name: one, idea: the seed, schedule: seed}}
  - {{name: two, idea: K loaded first, schedule: source_order, text: 50}}
"""


def some(folder: Path, unit: str = "ms", peer: str = "null") -> Ladder:
    path = folder / "ladder-some.yaml"
    path.write_text(LADDER.format(unit=unit, peer=peer))
    return load_ladder(path)


def test_a_single_figure_is_said_in_words_and_another_unit_is_refused(tmp_path) -> None:
    found = some(tmp_path)
    rows = {
        name: Row(name, name, "runtime", problem_of(found.shape), "ok", median_ms=ms, tflops=100 / ms)
        for name, ms in {"one": 1.0, "two": 0.5, "flash2": 0.4}.items()
    }
    assert beside(found, rows) is None
    assert only_figure(found, rows) == "The text has one figure, 50 ms for step 2; here that step has 0.5 ms."
    with pytest.raises(InputError, match="ladder some: the unit 'furlongs' is none that pictures can draw"):
        beside(some(tmp_path, "furlongs"), rows)
    assert figures_of_peers(found) == ""
    assert figures_of_peers(some(tmp_path, peer="97.2")) == "The text has FlashAttention-2 at 97.2 ms."


def test_a_record_without_a_timed_step_is_refused(tmp_path) -> None:
    found = some(tmp_path)
    refused = {"one": Row("one", "one", "runtime", problem_of(found.shape), "refused")}
    with pytest.raises(InputError, match=r"ladder-some-h200.jsonl: no step of the ladder some was timed"):
        ladder.figure(found, refused, "ladder-some-h200.jsonl")


def test_a_font_of_the_system_does_not_take_the_place_of_matplotlibs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fonts = [entry for entry in fontManager.ttflist if entry.name == "DejaVu Sans"]
    of_the_system = [replace(entry, fname=f"/elsewhere/{entry.fname.rpartition('/')[2]}") for entry in fonts]
    monkeypatch.setattr(fontManager, "ttflist", [*of_the_system, *fontManager.ttflist])
    own_fonts_first.__wrapped__()
    own = Path(matplotlib.get_data_path()).resolve()
    assert Path(str(fontManager.findfont("DejaVu Sans"))).resolve().is_relative_to(own)
