"""Forward plus backward, and the operator, are timed beside others: tests check what is called, and the cells."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count

import measure
import pytest
import torch
from click.testing import CliRunner
from gradients import flash_on_cpu
from measurements import backward, operator
from measurements.backward import call_of, cells, error_of, flops_of, means, measured, small, tensors
from on_cpu import Kernels, on_cpu
from tiers import sampled
from torch.nn.attention import SDPBackend, varlen

from tl_attention.errors import InputError
from tl_attention.lab.measure import peers, timing
from tl_attention.lab.measure.cell import Cell
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.compilation import Compiled
from tl_attention.lab.measure.records import parse_line
from tl_attention.lab.oracle.reference import make_inputs
from tl_attention.op import aten, trial
from tl_attention.problem.card import KNOWN
from tl_attention.problem.mask import CAUSAL, FULL, Mask, is_window
from tl_attention.problem.shape import AttentionShape

__all__ = ["flash_on_cpu", "on_cpu"]
SMALL = [AttentionShape(1, 2, 1024, 1024, d, "bfloat16", mask) for d in (64, 128) for mask in (FULL, CAUSAL)]


KINDS = {(shape.mask, shape.group, shape.head_size, shape.packed): shape for cell in cells() for shape in [cell.shape]}
OTHERS = [
    shape
    for shape in KINDS.values()
    if shape.packed or is_window(shape.mask) or shape.group > 1 or shape.head_dim > 128
]


@pytest.mark.parametrize("shape", sampled([*SMALL, *OTHERS], [*SMALL[::3], *OTHERS[-2:]]), ids=str)
def test_ours_is_held_to_fp64_beside_flash(shape, on_cpu: Kernels, flash_on_cpu, monkeypatch) -> None:
    # The CPU has FlashAttention-2 in SDPA alone. What stands for it elsewhere computes in fp32.
    most = 2 if shape in OTHERS[-2:] else 1
    monkeypatch.setattr(backward, "flash_with_window", lambda q, k, v, *sides: backward.exact(q, k, v, Mask(*sides)))
    monkeypatch.setattr(varlen, "varlen_attn", lambda *of, **window: backward.exact_packed(small(shape), *of[:3]))
    assert 0.1 < error_of(shape, 3, "cpu") <= most
    on_cpu.fault = lambda of_kernel: [x.mul_(1.05) for name, x in of_kernel.items() if name == "Output"]
    assert error_of(shape, 3, "cpu") > most


def test_a_call_gives_the_output_and_three_gradients(on_cpu: Kernels, flash_on_cpu) -> None:
    inputs, grad = tensors(SMALL[1], 3, "cpu")
    for name in ("ours", "flash2", "exact"):
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


def test_the_cells_are_40_over_lengths_and_others() -> None:
    found = list(cells())
    assert len({cell.name for cell in found}) == len(found) == 48
    assert sum(cell.group in backward.OVER_LENGTHS for cell in found) == 40
    assert all(cell.shape.totals[0] == backward.TOKENS for cell in found)
    # An operator that computes 3.5 times a forward's FLOP, where V has the columns of Q.
    assert flops_of(found[0].shape) == 3.5 * found[0].shape.flops
    names = {cell.name for cell in found}
    assert {"d128_gqa-16k-causal", "d192_128-4k", "window-8k", "packed-12_sequences-causal"} < names


class Batch:
    """A stand-in batch is made for each entry, in this order: ours, flash, cuDNN."""

    made: list[Batch]
    method, pause_s = staticmethod(timing.TimedBatch.method), 0.0
    ms = (2.0, 4.0, 3.0)

    def __init__(self, call) -> None:
        self.calls, self.number, self.samples = 5, len(self.made), 0
        self.made.append(self)

    def sample(self) -> tuple[float, int]:
        self.samples += 1
        return self.ms[self.number], 1700


@pytest.fixture
def batches(monkeypatch, on_cpu, flash_on_cpu) -> list[Batch]:
    monkeypatch.setattr(Batch, "made", [], raising=False)
    monkeypatch.setattr(backward, "TimedBatch", Batch)
    monkeypatch.setattr(backward, "error_of", lambda *of: 0.5)
    # A CPU has no cuDNN.
    monkeypatch.setitem(peers.SDPA, "cudnn", SDPBackend.MATH)
    return Batch.made


CELL = Cell("d64", SMALL[1], {"flash2": None, "cudnn": None})
MACHINE = {"device": "stand-in", "run": "now"}


def test_a_cell_has_ours_beside_flash_twice_and_cudnn(batches) -> None:
    row = measured(CELL, 3, 15, MACHINE, "cpu")
    assert parse_line(CellRow, row.to_json().encode(), "here") == row
    assert [entry.name for entry in row.entries] == ["flash2", "ours", "cudnn", "flash2 again"]
    assert all(len(entry.rounds_ms) == 15 and entry.calls == 5 for entry in row.entries)
    assert Counter(batch.samples for batch in batches) == {30: 1, 15: 2}
    assert (row.speed("ours", "flash2").ratio, row.speed("ours", "cudnn").ratio) == (2.0, 1.5)
    assert row.reference == "flash2" and row.repeatability == 0.0
    assert row.ours.flops == 3.5 * SMALL[1].flops and row.ours.error == 0.5
    # The rule's operator is cuDNN, which is not there.
    assert row.ours.what.endswith(", gradients by flash2")
    assert row.method.startswith(
        "forward and backward, the FLOP of seven products, our gradients from the first call on"
    )
    assert [*means([row, row])] == [
        "flash2's time over ours in 1 of 2 cells: geometric mean 2.000, lowest 2.000 (d64-1k-causal)",
        "cudnn's time over ours in 1 of 2 cells: geometric mean 1.500, lowest 1.500 (d64-1k-causal)",
    ]


def test_our_gradients_are_the_rules_from_the_first_call_on(batches, monkeypatch) -> None:
    monkeypatch.setattr(aten, "cudnn", lambda given, *of: (cudnn.append(given.q.shape), given.q * 0, *given[2:4])[1:])
    monkeypatch.setattr(trial, "why_not", lambda *of, **may_run: "")
    cudnn: list = []
    row = measured(CELL, 3, 15, MACHINE, "cpu")
    assert cudnn == [(*SMALL[1].sizes[:3], 64)] and row.ours.what.endswith(", gradients by cudnn")
    # These are no gradients, so every peer disagrees.
    assert {e.status for e in row.entries} == {"ok", "wrong"} and row.ours.median_ms is None
    assert "of its norm from ours, expected at most 0.1" in row.entry("flash2").reason


def test_a_peer_that_does_not_run_says_why_in_its_row(batches, monkeypatch) -> None:
    def refuse(*of):
        raise RuntimeError("No plan.\nmore")

    monkeypatch.setattr(backward.peers, "build", refuse)
    window = Cell("window", replace(SMALL[0], mask=Mask(99, 0)), {"flash2": None, "flex": None})
    monkeypatch.setattr(backward, "compiled_flex", lambda: refuse)
    monkeypatch.setattr(backward, "flash_with_window", lambda q, k, v, *sides: backward.exact(q, k, v, Mask(*sides)))
    row = measured(window, 3, 15, MACHINE, "cpu")
    assert [(e.name, e.status) for e in row.entries] == [
        ("flash2", "ok"), ("ours", "ok"), ("flash2 again", "ok"), ("flex", "error")
    ]  # fmt: skip
    failed = measured(CELL, 3, 15, MACHINE, "cpu")
    assert [(e.name, e.status, e.reason) for e in failed.entries] == [
        ("ours", "ok", ""), ("flash2", "error", "No plan."), ("cudnn", "error", "No plan.")
    ]  # fmt: skip


def test_what_is_wrong_is_not_timed(batches, monkeypatch) -> None:
    monkeypatch.setattr(backward, "error_of", lambda *of: 1.5)
    row = measured(CELL, 3, 15, MACHINE, "cpu")
    assert not batches and row.ours.status == "wrong" and row.ours.median_ms is None
    assert "3 times as far from fp64 as flash's, expected at most 2" in row.ours.reason


@pytest.mark.parametrize("command", ["backward", "host", "llama", "new-shapes", "operator", "pair", "training"])
def test_without_a_gpu_it_says_so(command, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = CliRunner().invoke(measure.main, [command, "--output", str(tmp_path / "record.jsonl")])
    assert done.exit_code == 2 and not (tmp_path / "record.jsonl").exists()
    assert done.stderr == f"error: {command}: no GPU here, expected one of compute capability {KNOWN}\n"


# --- the operator -----------------------------------------------------------------------------------------------------

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
    row = measured(next(cells()), 3, 2, {"device": "GPU", "run": "now"})
    assert all(entry.status == "ok" and entry.median_ms > 0 for entry in row.entries)
