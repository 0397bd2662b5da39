"""The model's predictions are those of the record, and rank schedules as well as docs/model.md says."""

from __future__ import annotations

import functools
import json
import lzma
from pathlib import Path
from statistics import median

import pytest
from pages import model as page

from tl_attention.files.named import resolve
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.cell_records import CellRow
from tl_attention.measure.records import read_all
from tl_attention.model.instructions import read
from tl_attention.model.machine import load
from tl_attention.model.prediction import predict_code
from tl_attention.model.steps import tile_code
from tl_attention.program.planned import Planned

# The machine code of four kernels of the record, and how many thread blocks of each an SM holds.
CODE = Path(__file__).with_name("machine_code.xz")
KERNELS = {
    ("h16-4k", "best"): 1,
    ("h16_c-4k-causal", "best_causal"): 1,
    ("h16-4k", "seed"): 1,
    ("h16-4k", "mma_sync"): 2,
}


@functools.cache
def machine_code() -> dict[str, str]:
    found: dict[str, str] = json.loads(lzma.decompress(CODE.read_bytes()))
    return found


@pytest.mark.parametrize(("cell", "schedule"), KERNELS)
def test_a_kernels_prediction_is_that_of_the_record(cell, schedule) -> None:
    lines = json.loads((page.RESULTS / "predictions/h200.json").read_text())
    recorded = next(line for line in lines if (line["cell"], line["schedule"]) == (cell, schedule))
    row = next(row for row in read_all(CellRow, page.RESULTS / "model-h200.jsonl") if row.cell == cell)
    candidate = Candidate(schedule, row.shape, Planned(resolve(schedule).schedule), sms=132, arch="sm_90a")
    machine = load("h200")
    code = tile_code(read(machine_code()[schedule]), machine)
    found = predict_code(candidate, machine, code, KERNELS[cell, schedule])
    assert found.ms == pytest.approx(recorded["ms"], rel=1e-5)


@pytest.mark.parametrize(
    ("gpu", "least", "least_near", "schedules"), [("h200", 0.76, 0.36, 60), ("h100", 0.75, 0.36, 25)]
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


def test_the_record_tells_schedules_apart() -> None:
    assert median((case.most - case.least) / case.ratio for case in page.cases()) <= 0.004
