"""The model's predictions are those of the record, and rank schedules as well as docs/model.md says."""

from __future__ import annotations

import json

import pytest
from model_code import CELLS, in_store
from pages import model as page

from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.records import read_all
from tl_attention.lab.model.machine import load
from tl_attention.lab.model.prediction import predict_code
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve


@pytest.mark.parametrize(("cell", "schedule"), CELLS)
def test_a_kernels_prediction_is_that_of_the_record(cell, schedule) -> None:
    lines = json.loads((page.RESULTS / "predictions/h200.json").read_text())
    recorded = next(line for line in lines if (line["cell"], line["schedule"]) == (cell, schedule))
    row = next(row for row in read_all(CellRow, page.RESULTS / "model-h200.jsonl") if row.cell == cell)
    candidate = Candidate(schedule, row.shape, Planned(resolve(schedule).schedule), sms=132, arch="sm_90a")
    machine = load("h200")
    found = predict_code(candidate, machine, *in_store(candidate, machine))
    assert found.ms == pytest.approx(recorded["ms"], rel=1e-5)


@pytest.mark.parametrize(
    ("gpu", "least", "least_near", "schedules"), [("h200", 0.82, 0.53, 60), ("h100", 0.80, 0.48, 25)]
)
def test_the_model_ranks_schedules_that_it_was_not_fitted_to(gpu, least, least_near, schedules) -> None:
    found = page.judged(gpu)
    assert len({case.schedule for case in found}) >= schedules
    assert page.fitted().isdisjoint(case.schedule for case in found) and len(page.fitted()) <= 10
    ranked, near = (page.rank(found, lambda case: case.predicted_ms, near=near) for near in (False, True))
    assert (ranked.pairs, near.pairs) >= (400, 80)
    assert ranked.rank >= least and near.rank >= least_near
    # An instruction count does worse.
    assert page.rank(found, lambda case: case.per_key).rank < ranked.rank - 0.1
