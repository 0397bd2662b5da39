"""Forward plus backward, and the operator, are timed beside others: tests check what is called, and the cells."""

from __future__ import annotations

from collections import Counter
from itertools import count

import measure
import pytest
import torch
from click.testing import CliRunner
from gradients import flash_on_cpu
from measurements import backward, operator
from measurements.backward import call_of, error_of, measured, shapes, tensors
from on_cpu import Kernels, on_cpu
from tiers import sampled

from tl_attention.errors import InputError
from tl_attention.hardware.card import KNOWN
from tl_attention.measure import timing
from tl_attention.measure.cell_records import CellRow
from tl_attention.measure.compilation import Compiled
from tl_attention.measure.records import parse_line
from tl_attention.oracle.reference import make_inputs
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape

__all__ = ["flash_on_cpu", "on_cpu"]
SMALL = [AttentionShape(1, 2, 1024, 1024, d, "bfloat16", mask) for d in (64, 128) for mask in (FULL, CAUSAL)]


@pytest.mark.parametrize("shape", sampled(SMALL, SMALL[::3]), ids=str)
def test_ours_is_held_to_fp64_beside_flash(shape, on_cpu: Kernels, flash_on_cpu) -> None:
    assert 0.1 < error_of(shape, 3, "cpu") <= 1
    on_cpu.fault = lambda of_kernel: of_kernel["Output"].mul_(1.05)
    assert error_of(shape, 3, "cpu") > 1


def test_a_call_gives_the_output_and_three_gradients(on_cpu: Kernels, flash_on_cpu) -> None:
    inputs, grad = tensors(SMALL[1], 3, "cpu")
    for name in ("ours", "flash2"):
        found = call_of(name, SMALL[1], inputs, grad)()
        assert [x.shape for x in found] == [x.shape for x in (inputs[0], *inputs)]
        assert not any(x.requires_grad for x in found) and all(x.any() for x in found)
    # Inputs are not those of another entry's graph.
    assert not any(x.requires_grad for x in inputs)


def test_what_is_compiled_before_is_what_attention_takes(monkeypatch, on_cpu: Kernels, flash_on_cpu) -> None:
    compiled: list = []

    def compile_all(candidates):
        compiled.extend(candidates)
        return {candidate: Compiled() for candidate in candidates}

    monkeypatch.setattr(backward, "compile_all", compile_all)
    backward.compile_ours(SMALL)
    for shape in SMALL:
        call_of("ours", shape, *tensors(shape, 3, "cpu"))()
    assert {(candidate.schedule, candidate.variant) for candidate in compiled} == on_cpu.asked
    assert len(compiled) == len(on_cpu.asked) == 4


def test_a_kernel_that_does_not_compile_is_named(monkeypatch) -> None:
    broken = Compiled(status="compile_error", error="nvcc said no")
    monkeypatch.setattr(backward, "compile_all", lambda candidates: dict.fromkeys(candidates, broken))
    with pytest.raises(InputError, match="bfloat16: nvcc said no"):
        backward.compile_ours(SMALL)


class Batch:
    """A stand-in batch is made for each entry, in this order: flash, ours, cuDNN."""

    made: list[Batch]
    method, pause_s = staticmethod(timing.Batch.method), 0.0
    ms = (4.0, 2.0, 3.0)

    def __init__(self, call) -> None:
        self.calls, self.number, self.samples = 5, len(self.made), 0
        self.made.append(self)

    def sample(self) -> tuple[float, int]:
        self.samples += 1
        return self.ms[self.number], 1700


@pytest.fixture
def batches(monkeypatch) -> list[Batch]:
    monkeypatch.setattr(Batch, "made", [], raising=False)
    monkeypatch.setattr(backward, "Batch", Batch)
    monkeypatch.setattr(backward, "error_of", lambda *of: 0.5)
    return Batch.made


def test_a_cell_has_ours_beside_flash_twice_and_cudnn(batches) -> None:
    row = measured(SMALL[1], 3, 15, {"device": "stand-in", "run": "now"}, "cpu")
    assert parse_line(CellRow, row.to_json().encode(), "here") == row
    assert [entry.name for entry in row.entries] == ["flash2", "ours", "cudnn", "flash2 again"]
    assert all(len(entry.rounds_ms) == 15 and entry.calls == 5 for entry in row.entries)
    assert Counter(batch.samples for batch in batches) == {30: 1, 15: 2}
    assert (row.speed("ours", "flash2").ratio, row.speed("ours", "cudnn").ratio) == (2.0, 1.5)
    assert row.reference == "flash2" and row.repeatability == 0.0
    assert row.ours.flops == 3.5 * SMALL[1].flops and row.ours.error == 0.5
    assert row.method.startswith("forward and backward, 3.5 times the FLOP of a forward; CUDA events")


def test_what_is_wrong_is_not_timed(batches, monkeypatch) -> None:
    monkeypatch.setattr(backward, "error_of", lambda *of: 1.5)
    row = measured(SMALL[1], 3, 15, {"device": "stand-in", "run": "now"}, "cpu")
    assert not batches and row.ours.status == "wrong" and row.ours.median_ms is None
    assert "3 times as far from fp64 as flash's, expected at most 2" in row.ours.reason


@pytest.mark.parametrize("command", ["backward", "operator", "training"])
def test_without_a_gpu_it_says_so(command, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = CliRunner().invoke(measure.main, [command, "--output", str(tmp_path / "record.jsonl")])
    assert done.exit_code == 2 and not (tmp_path / "record.jsonl").exists()
    assert done.stderr == f"error: {command}: no GPU here, expected one of compute capability {KNOWN}\n"


# --- the operator --------------------------------------------------------------------------------------------------------

# Milliseconds of the bare kernel, attention() and the operator.
TIMES = {"kernel": 2.0, "ours": 2.0, "operator": 2.5}


@pytest.fixture
def kernel(monkeypatch, on_cpu: Kernels) -> None:
    """Makes kernels run on the CPU, for the bare launch too."""
    monkeypatch.setattr(operator, "compile_kernel", on_cpu.kernel_of)


def test_all_three_give_the_same(kernel, on_cpu: Kernels) -> None:
    outputs = [call() for call in operator.calls_of(SMALL[1], make_inputs(SMALL[1], 1)).values()]
    assert len(outputs) == 3 and all(torch.equal(output, outputs[0]) for output in outputs)
    assert outputs[0].any() and len(on_cpu.asked) == 1


@pytest.fixture
def flows(monkeypatch, kernel) -> None:
    class Flow:
        made, pause_s = iter(TIMES), 0.0

        def __init__(self, call) -> None:
            self.calls, self.name = 5, next(self.made)

        def sample(self) -> tuple[float, int]:
            return TIMES[self.name], 1700

    monkeypatch.setattr(operator, "Flow", Flow)


def test_each_has_a_cell_beside_the_bare_kernel(flows) -> None:
    attention, through = operator.measured(SMALL[1], 15, 3, {"device": "stand-in", "run": "now"}, "cpu")
    for row in (attention, through):
        assert parse_line(CellRow, row.to_json().encode(), "here") == row
        assert [entry.name for entry in row.entries] == ["kernel", "ours", "kernel again"]
        assert all(len(entry.rounds_ms) == 15 and entry.calls == 5 for entry in row.entries)
        assert row.reference == "kernel" and row.repeatability == 0.0 and row.method.startswith("CUDA events around")
    assert (attention.speed("ours", "kernel").ratio, through.speed("ours", "kernel").ratio) == (1.0, 0.8)
    assert (attention.ours.what, through.ours.what) == ("attention", "operator")


def test_another_output_is_not_timed(flows, on_cpu: Kernels) -> None:
    calls = count()
    on_cpu.fault = lambda of_kernel: of_kernel["Output"].mul_(1 + next(calls))
    with pytest.raises(InputError, match="ours, operator of .* gives another output than the bare kernel"):
        list(operator.measured(SMALL[1], 15, 3, {"device": "stand-in", "run": "now"}, "cpu"))


@pytest.mark.gpu
@pytest.mark.alone
def test_a_cell_on_the_gpu() -> None:
    row = measured(next(shapes()), 3, 2, {"device": "GPU", "run": "now"})
    assert all(entry.status == "ok" and entry.median_ms > 0 for entry in row.entries)
