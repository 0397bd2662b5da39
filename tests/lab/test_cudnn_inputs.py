"""cudnn-inputs records where cuDNN is wrong: tests use stand-ins on the CPU."""

from __future__ import annotations

import pytest
import torch
from gradients import Operators, operators
from measurements.cudnn_inputs import LEVELS, problem, wrong_ones

from tl_attention.op import aten
from tl_attention.problem.mask import CAUSAL, FULL

__all__ = ["operators"]
CPU = torch.device("cpu")


@pytest.fixture
def nan_below(operators: Operators, monkeypatch) -> None:
    """Has cuDNN give NaN in dQ as cuDNN 9.19 does: of 64 keys past a multiple of 128, for low LSEs, without a mask."""
    right = aten.cudnn

    def cudnn(given, causal, scale):
        dq, dk, dv = right(given, causal, scale)
        if not causal and given.k.shape[2] % 128 == 64:
            dq = dq.masked_fill(given.lse[..., None] < -88.7, float("nan"))
        return dq, dk, dv

    monkeypatch.setattr(aten, "cudnn", cudnn)


def test_what_is_wrong_is_found_and_nothing_else(nan_below) -> None:
    found = [[*wrong_ones(problem(mask), range(191, 194), CPU)] for mask in (FULL, CAUSAL)]
    low = [level for level in LEVELS if level < -90]
    assert found == [[(192, level, "gives a NaN in dQ") for level in low], []]
