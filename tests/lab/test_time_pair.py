"""The backward alone by a pair is timed beside others: tests check what is called and compiled, and the cells."""

from __future__ import annotations

import pytest
import torch
from gradients import flash_on_cpu
from measurements import backward, pair
from on_cpu import Kernels, on_cpu
from test_time_backward import MACHINE, SMALL, Batch

from tl_attention.lab.measure import peers
from tl_attention.lab.measure.cell import Cell
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.compilation import Compiled
from tl_attention.lab.measure.records import parse_line
from tl_attention.problem.mask import CAUSAL, Mask
from tl_attention.problem.shape import AttentionShape

__all__ = ["flash_on_cpu", "on_cpu"]
KINDS = [SMALL[1], AttentionShape(1, 4, 1024, 1024, 96, "bfloat16", CAUSAL, 96, 2)]


@pytest.mark.parametrize("shape", KINDS, ids=str)
def test_ours_is_held_to_fp64_beside_flash(shape, on_cpu: Kernels, flash_on_cpu) -> None:
    assert 0.1 < backward.error_of(shape, 3, "cpu", pair.call_of) <= 1
    assert {variant.loop for _, variant in on_cpu.asked} == {"forward", "dq", "dkdv"}


def test_a_call_gives_three_gradients_each_time_of_one_forward(on_cpu: Kernels, flash_on_cpu) -> None:
    inputs, grad = backward.tensors(SMALL[1], 3, "cpu")
    for name in ("ours", "flash2", "exact"):
        call = pair.call_of(name, SMALL[1], inputs, grad)
        on_cpu.asked.clear()
        first, second = call(), call()
        assert [x.shape for x in first] == [x.shape for x in inputs] and all(map(torch.equal, first, second))
        assert "forward" not in {variant.loop for _, variant in on_cpu.asked}


def test_what_is_compiled_before_is_what_calls_take(monkeypatch, on_cpu: Kernels, flash_on_cpu) -> None:
    compiled: list = []

    def compile_all(candidates):
        compiled.extend(candidates)
        return {candidate: Compiled() for candidate in candidates}

    monkeypatch.setattr(backward, "compile_all", compile_all)
    monkeypatch.setattr(pair, "compile_all", compile_all)
    lengths = [(64, 64), (9, 9)]
    packed = AttentionShape.ragged(lengths, 4, 64, dtype="bfloat16", mask=CAUSAL, packed=True)
    shapes = [*KINDS, AttentionShape(1, 2, 300, 300, 64, "bfloat16", Mask(63, 0)), packed]
    pair.compile_ours(shapes)
    for shape in shapes:
        pair.call_of("ours", shape, *backward.tensors(shape, 3, "cpu"))()
    assert {(candidate.schedule, candidate.variant) for candidate in compiled} == on_cpu.asked
    assert len(compiled) == len(on_cpu.asked)


def test_the_cells_are_those_over_lengths_windows_and_prompts() -> None:
    found = list(pair.cells())
    assert len({cell.name for cell in found}) == len(found) == 52
    names = {cell.name for cell in found}
    assert {"d128_gqa-16k-causal", "window_d96-16k", "packed_d64-12_prompts-causal"} < names
    of_window, of_prompts = (
        next(c.shape for c in found if c.group == f"{kind}_d128_gqa") for kind in ("window", "packed")
    )
    assert (of_window.heads, of_window.heads_kv, of_window.mask) == (32, 8, Mask(1023, 0))
    assert (of_prompts.heads_kv, len(of_prompts.lengths)) == (8, 12)
    assert all(100 <= of.seq_q == of.seq_kv <= 4000 for of in of_prompts.lengths)
    assert pair.flops_of(SMALL[0]) == 2.5 * SMALL[0].flops
    # Bars as they are asked for.
    assert {cell.peers.get("cudnn") for cell in found if cell.group == "d128"} == {0.8}
    assert {cell.peers["flash2"] for cell in found} == {1.2}


def test_a_cell_has_ours_beside_cudnn_twice_and_flash(monkeypatch, on_cpu: Kernels, flash_on_cpu) -> None:
    from torch.nn.attention import SDPBackend

    monkeypatch.setattr(Batch, "made", [], raising=False)
    monkeypatch.setattr(backward, "TimedBatch", Batch)
    # A CPU has no cuDNN.
    monkeypatch.setitem(peers.SDPA, "cudnn", SDPBackend.MATH)
    row = pair.measured(Cell("d64", SMALL[1], {"cudnn": 0.65, "flash2": 1.2}), 3, 15, MACHINE, "cpu")
    assert parse_line(CellRow, row.to_json().encode(), "here") == row
    assert [entry.name for entry in row.entries] == ["cudnn", "ours", "flash2", "cudnn again"]
    assert row.ours.what == "gradients by (dq, dkdv)" and row.ours.flops == 2.5 * SMALL[1].flops
    assert (row.speed("ours", "cudnn").ratio, row.speed("ours", "flash2").ratio) == (2.0, 1.5)
    assert row.method.startswith(
        "the backward alone with all its kernels, the FLOP of five products, ours by (dq, dkdv); "
    )
    assert [*pair.means([row])] == [
        "d64: cudnn's time over ours in 1 of 1 cells: geometric mean 2.000, lowest 2.000",
        "d64: flash2's time over ours in 1 of 1 cells: geometric mean 1.500, lowest 1.500",
    ]


def test_what_is_wrong_is_not_timed(monkeypatch, on_cpu: Kernels) -> None:
    monkeypatch.setattr(backward, "error_of", lambda *of: 1.5)
    row = pair.measured(Cell("d64", SMALL[1], {"flash2": 1.2}), 3, 15, MACHINE, "cpu")
    assert row.ours.status == "wrong" and row.ours.median_ms is None
    assert "3 times as far from fp64 as flash's, expected 2" in row.ours.reason
