"""A search's outcome is told to its page, and its winner is a schedule's file. A stand-in plays the GPU."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from search_jobs import SHAPE, many, opened, points, told
from stand_in import Compilers, Gpu, on_a_machine
from test_search_page import NOTHING, TOLD

from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.records import MATMUL, Row
from tl_attention.lab.measure.session import Session
from tl_attention.lab.measure.trials import SILENT, sample
from tl_attention.lab.oracle.reference import ErrorReport
from tl_attention.lab.search.final import FINALISTS, final
from tl_attention.lab.search.outcome import Outcome
from tl_attention.lab.search.study import CHANGED, DRAWN, FIRST_MODELLED, QUEUED, SAMPLED, Study
from tl_attention.lab.show import diff, search
from tl_attention.schedule.files.catalogue import names
from tl_attention.schedule.files.named import load, resolve

__all__ = ["on_a_machine"]
pytestmark = pytest.mark.usefixtures("on_a_machine")
FILES = {"file": "some.yaml", "timelines": "some.timelines.html"}
# Of the final; what is not here takes twice as long as a product.
MS = {MATMUL: 1.0, "trial 0": 2.0, "trial 1": 1.6, "trial 2": 1.9}


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    """Returns a study with each kind of result, in which a person's schedule came first."""
    study = opened(tmp_path_factory.mktemp("study"))
    first, second, third, *others = many(3 + 6 + FIRST_MODELLED)
    told(study, first, QUEUED, verdict="first", ratios=[], registers=168, fingerprint="a", machine_code="a")
    told(study, second, CHANGED, verdict="faster", value=0.2, ratios=[0.2] * 7, against=0, fingerprint="b")
    told(study, third, SAMPLED, verdict="level", value=0.2, ratios=[0.0] * 25, against=1, fingerprint="c")
    for reason in ("spills", "machine code already seen", "predicted to be slower"):
        told(study, others.pop(), reason=reason, fingerprint="d", predicted_ms=2.0)
    for reason in ("refused: the order has a circle", "compile_error when compiled: nvcc said no", "wrong: NaN"):
        told(study, others.pop(), SAMPLED, reason=reason, failed=True)
    for number, point in enumerate(others):
        told(
            study,
            point,
            value=-0.1 - number / 100,
            predicted_ms=2 + number / 10,
            guessed_ms=9 - number / 10,
            fingerprint=f"{number}",
        )
    counted = {"judged": {DRAWN: 1000, CHANGED: 200}, "refused": {"split.row_sum": 900, "wait_before.mman": 7}}
    study.leases.beat({"seconds": 99.5, **counted})
    return study


def finished(study: Study, gpu: Gpu | None = None) -> list[Row]:
    gpu = gpu or Gpu(ms=lambda candidate: MS.get(candidate.name.removesuffix(" again"), 2.0))
    with Session(lambda row: None, seed=1, worker=gpu, compilers=Compilers()) as session:
        return final(study, SHAPE, session, SILENT)


def test_the_final_compares_the_best_with_the_best_that_a_person_gave(study) -> None:
    rows = finished(study)
    assert [row.name for row in rows[:4]] == ["trial 0", "trial 0 again", "trial 1", "trial 2"]
    assert len(rows) == FINALISTS + 1 and all(row.against and row.against.interval for row in rows)
    assert [row.against.ratio for row in rows[:4] if row.against] == pytest.approx([1.0, 1.0, 0.8, 0.95])
    assert all(row.verified_shapes > 5 for row in rows)


def test_without_a_persons_schedule_the_final_compares_with_the_best(tmp_path) -> None:
    study = opened(tmp_path)
    assert finished(study) == []
    told(study, points()[0], verdict="first", ratios=[])
    told(study, points()[1], verdict="faster", value=0.1)
    assert [row.name for row in finished(study)] == ["trial 1", "trial 1 again", "trial 0"]


def test_in_a_final_each_has_tensors_of_its_own_and_the_gpu_is_warm(study) -> None:
    gpu = Gpu()
    finished(study, gpu)
    calls = [call for call in gpu.calls if call[0] in ("forget_tensors", "load", "warm")]
    loaded = [MATMUL, "trial 0", "trial 0 again"]
    assert calls[:6] == [(call, name) for one in loaded for call, name in (("forget_tensors", ""), ("load", one))]
    assert calls[-1] == ("warm", gpu.named("load")[-1]) and len(calls) == 2 * (2 + FINALISTS) + 1
    assert [*dict(gpu.calls)] == ["verify", "forget_tensors", "load", "warm", "sample"]


def test_elsewhere_tensors_are_shared_and_nothing_is_warmed() -> None:
    gpu = Gpu()
    sample(gpu, [Candidate(name, SHAPE) for name in "ab"], seed=1, rounds=1)
    assert [call for call, _ in gpu.calls] == ["load", "load", "sample", "sample"]


def kind(value: Any) -> Any:
    """Returns the kinds of a value's parts, of a list those of its first entry's."""
    if isinstance(value, dict):
        return {name: kind(part) for name, part in value.items()}
    if isinstance(value, list):
        return [kind(value[0])] if value and isinstance(value[0], list | dict) else [*map(kind, value)]
    return "number" if type(value) in (int, float) else type(value)


def test_a_page_is_told_what_its_script_expects(study, tmp_path) -> None:
    outcome = Outcome(study, SHAPE, "NVIDIA H200", finished(study))
    found = outcome.told(True, FILES)
    expected = kind(TOLD)
    assert kind(found) == expected | {"winner": expected["winner"] | {"diff": [str] * len(found["winner"]["diff"])}}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    search.write(found, tmp_path / "search.html")
    data = re.search(r' id="search">(.*?)</script>', (tmp_path / "search.html").read_text())
    assert data and json.loads(data[1]) == found


def test_a_page_is_told_what_became_of_each(study) -> None:
    found = Outcome(study, SHAPE, "NVIDIA H200", finished(study)).told(True, FILES)
    raced = 3 + FIRST_MODELLED
    counts = [1200, raced + 5, raced + 3, raced, 2]
    assert [count for _, count in found["funnel"]] == counts
    assert found["refused"] == [["split.row_sum", 900], ["wait_before.mman", 7]]
    assert {reason for reason, _ in found["left_out"]} >= {"spills", "wrong", "compile_error when compiled", "refused"}
    assert (found["seconds"], found["baseline"], found["repeatability"]) == (99.5, "trial 0", 0.0)
    assert found["best"] == [[0.0, 1.0, 0], [1.0, math.exp(0.2), 1]]
    assert len(found["raced"]) == raced and found["raced"][2] == [2.0, math.exp(0.2), SAMPLED, 2]
    assert found["prediction"] == {"n": FIRST_MODELLED, "rank": pytest.approx(1.0)}
    assert found["sketch"] == {"n": FIRST_MODELLED, "rank": pytest.approx(-1.0)}
    assert found["winner"]["name"] == "trial 1" and found["final"][2]["speed"] == pytest.approx(1.25)
    assert len(found["mattered"]) == 15 and {name for name, _ in found["mattered"]} <= {*study.parameters.values}


def test_a_page_of_nothing_is_told_too(tmp_path) -> None:
    outcome = Outcome(opened(tmp_path), SHAPE, "no GPU", [])
    found = outcome.told(False, {})
    assert outcome.winner is None and found.keys() == NOTHING.keys()
    assert search.text(found) and found["funnel"] == [[name, 0] for name, _ in TOLD["funnel"]]


def test_where_all_are_equal_nothing_is_said_of_predictions(tmp_path) -> None:
    study = opened(tmp_path)
    for point in points()[:30]:
        told(study, point, predicted_ms=1.0)
    found = Outcome(study, SHAPE, "NVIDIA H200", []).told(True, FILES)
    assert found["prediction"] is found["sketch"] is None and json.dumps(found, allow_nan=False)


def test_a_finalist_that_is_wrong_does_not_win(study) -> None:
    wrong = {("verify", "trial 1"): (ErrorReport(1.0, 1.0, 2e-4, 2e-4, True), True)}
    rows = finished(study, Gpu(wrong, lambda candidate: MS.get(candidate.name, 2.0)))
    outcome = Outcome(study, SHAPE, "NVIDIA H200", rows)
    assert rows[2].status == "wrong" and outcome.winner and outcome.winner.name == "trial 2"


def test_where_no_final_was_held_the_best_by_its_races_wins(study) -> None:
    outcome = Outcome(study, SHAPE, "NVIDIA H200", [])
    assert outcome.winner and outcome.winner.name == "trial 1" and outcome.told(True, FILES)["final"] == []


def test_the_winners_file_is_its_schedule_and_says_where_it_came_from(study, tmp_path) -> None:
    outcome, file = Outcome(study, SHAPE, "NVIDIA H200", finished(study)), tmp_path / "found.yaml"
    for result in (*study.timed[1 : len(points())], study.timed[0]):
        outcome.write(result, file)
        assert resolve(str(file)).schedule == outcome.kernel(result).ours.schedule
    assert result == outcome.winner
    first, second, *_ = file.read_text().splitlines()
    assert re.fullmatch(r"# tl-attention search, \d{4}-\d\d-\d\d: trial 1 of some, NVIDIA H200", first)
    assert second == "# 1.2500 (1.2500 to 1.2500) of the speed of trial 0, which was queued"


def test_the_nearest_of_a_shipped_schedule_is_itself(study) -> None:
    outcome = Outcome(study, SHAPE, "NVIDIA H200", [])
    for name in names():
        nearest = outcome.nearest(load(name))
        assert nearest.name == name or not [*diff.changed_keys(nearest.ours.schedule, load(name))]
