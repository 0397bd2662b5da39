"""cudnn-inputs records where cuDNN is wrong, and backward.yaml says it: tests use stand-ins on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gradients import Operators, operators
from measurements.cudnn_inputs import LEVELS, Tried, problem, wrong_ones
from pages import backward as page
from pages import backward_rules

from tl_attention.lab.measure.records import parse_line, problem_of
from tl_attention.op import aten
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.schedule.files.backward import backward_rules as rules

__all__ = ["operators"]
CPU = torch.device("cpu")


@pytest.fixture
def nan_below(operators: Operators, monkeypatch) -> None:
    """Has cuDNN give NaN in dQ as cuDNN 9.19 does: of 64 keys beyond a multiple of 128, for low LSEs, without a mask."""
    right = aten.cudnn

    def cudnn(grad, q, k, v, output, lse, causal, scale):
        dq, dk, dv = right(grad, q, k, v, output, lse, causal, scale)
        if not causal and k.shape[2] % 128 == 64:
            dq = dq.masked_fill(lse[..., None] < -88.7, float("nan"))
        return dq, dk, dv

    monkeypatch.setattr(aten, "cudnn", cudnn)


def test_what_is_wrong_is_found_and_nothing_else(nan_below) -> None:
    found = [[*wrong_ones(problem(mask), range(191, 194), CPU)] for mask in (FULL, CAUSAL)]
    low = [level for level in LEVELS if level < -90]
    assert found == [[(192, level, "gives a NaN in dQ") for level in low], []]


def test_a_record_is_what_the_rules_file_says(monkeypatch, tmp_path: Path) -> None:
    kept = [*backward_rules.said()]
    monkeypatch.setattr(page, "INPUTS", tmp_path / "training-cudnn-inputs-h200.jsonl")
    wrong = tuple((192, level, "gives a NaN in dQ") for level in (-100.0, -500.0))
    row = Tried(
        "9.19.0", problem_of(problem(FULL)), LEVELS, 768, wrong, method="by hand", seed=7, run="now", device="H200"
    )
    for one in (row, replace(row, wrong=())):
        assert parse_line(Tried, one.to_json().encode(), "here") == one
    page.INPUTS.write_text(row.to_json() + "\n")
    place = next(number for number, rule in enumerate(rules().rules) if rule.seq_kv_mod_128 is not None)
    said = [*backward_rules.said()]
    assert said[place] == (
        "training-cudnn-inputs-h200.jsonl says wrong gradients where LSEs are near -100 or below, and in 0 of 766 other inputs"
    )
    assert kept[:place] + kept[place + 1 :] == said[:place] + said[place + 1 :]
