"""The operator is timed beside the bare kernel: tests check what is called, and the cells that come of it."""

from __future__ import annotations

from itertools import count

import measure
import pytest
import torch
from click.testing import CliRunner
from measurements import operator
from measurements.operator import calls_of, measured, shapes
from on_cpu import Kernels, on_cpu

from tl_attention.errors import InputError
from tl_attention.hardware.card import KNOWN
from tl_attention.measure.cell_records import CellRow
from tl_attention.measure.records import parse_line
from tl_attention.oracle.reference import make_inputs
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.shape import AttentionShape

__all__ = ["on_cpu"]
SMALL = AttentionShape(1, 2, 100, 100, 128, "bfloat16", CAUSAL)
# Milliseconds of the bare kernel, attention() and the operator.
TIMES = {"kernel": 2.0, "ours": 2.0, "operator": 2.5}


def test_the_problems() -> None:
    found = list(shapes())
    assert {(s.batch, s.heads, s.seq_q, s.seq_kv, s.head_dim) for s in found} == {
        (4, 64, 8192, 8192, 128),
        (32, 16, 1024, 1024, 128),
    }
    assert len(set(found)) == 4


@pytest.fixture
def kernel(monkeypatch, on_cpu: Kernels) -> None:
    """Makes kernels run on the CPU, for the bare launch too."""
    monkeypatch.setattr(operator, "compile_kernel", on_cpu.kernel_of)


def test_all_three_give_the_same(kernel, on_cpu: Kernels) -> None:
    outputs = [call() for call in calls_of(SMALL, make_inputs(SMALL, 1)).values()]
    assert len(outputs) == 3 and all(torch.equal(output, outputs[0]) for output in outputs)
    assert outputs[0].any() and len(on_cpu.asked) == 1


@pytest.fixture
def flows(monkeypatch, kernel) -> None:
    class Flow:
        made = iter(TIMES)

        def __init__(self, call) -> None:
            self.calls, self.name = 5, next(self.made)

        def sample(self) -> tuple[float, int]:
            return TIMES[self.name], 1700

    monkeypatch.setattr(operator, "Flow", Flow)
    monkeypatch.setattr("measurements.backward.BATCH_PAUSE_S", 0.0)


def test_each_has_a_cell_beside_the_bare_kernel(flows) -> None:
    attention, operator = measured(SMALL, 15, 3, {"device": "stand-in", "run": "now"}, "cpu")
    for row in (attention, operator):
        assert parse_line(CellRow, row.to_json().encode(), "here") == row
        assert [entry.name for entry in row.entries] == ["kernel", "ours", "kernel again"]
        assert all(len(entry.rounds_ms) == 15 and entry.calls == 5 for entry in row.entries)
        assert row.reference == "kernel" and row.repeatability == 0.0 and row.method.startswith("CUDA events around")
    assert (attention.speed("ours", "kernel").ratio, operator.speed("ours", "kernel").ratio) == (1.0, 0.8)
    assert (attention.ours.what, operator.ours.what) == ("attention", "operator")


def test_another_output_is_not_timed(flows, on_cpu: Kernels) -> None:
    calls = count()
    on_cpu.fault = lambda of_kernel: of_kernel["Output"].mul_(1 + next(calls))
    with pytest.raises(InputError, match="ours, operator of .* gives another output than the bare kernel"):
        list(measured(SMALL, 15, 3, {"device": "stand-in", "run": "now"}, "cpu"))


def test_without_a_gpu_it_says_so(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = CliRunner().invoke(measure.main, ["operator", "--output", str(tmp_path / "record.jsonl")])
    assert (done.exit_code, done.stderr) == (
        2,
        f"error: operator: no GPU here, expected one of compute capability {KNOWN}\n",
    )
