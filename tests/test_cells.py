"""Cells: each is measured beside its peers, whatever becomes of the others, and held to its bars. A stand-in times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from stand_in import Compilers, Gpu, on_a_machine

from tl_attention.errors import InputError
from tl_attention.files.named import resolve
from tl_attention.measure import cells, timing
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.cell import Cell
from tl_attention.measure.cell_records import CellRow, parse_cell
from tl_attention.measure.cells import Options, measure
from tl_attention.measure.pool import CallFailed
from tl_attention.measure.progress import SILENT
from tl_attention.oracle.reference import ErrorReport
from tl_attention.problem.mask import Mask
from tl_attention.problem.shape import AttentionShape

__all__ = ["on_a_machine"]
pytestmark = pytest.mark.usefixtures("on_a_machine")
ROOT = Path(__file__).parents[1]
SHAPE = AttentionShape(2, 4, 1024, 1024, 128, "bfloat16")
WRONG = ErrorReport(1.0, 1.0, 2e-4, 2e-4, True)


def cell(group: str = "d128", shape: AttentionShape = SHAPE, **options) -> Cell:
    return Cell(group, shape, **{"peers": {"fa3": 0.995, "cudnn": None}} | options)


@pytest.fixture
def run(monkeypatch) -> Callable[..., dict[str, CellRow]]:
    """Measures cells on a stand-in, and returns the rows by name; what is recorded reads back as it was."""

    def of(some: list[Cell], gpu: Gpu, **options) -> dict[str, CellRow]:
        monkeypatch.setattr(cells, "Worker", lambda: gpu)
        monkeypatch.setattr(cells, "CompilePool", Compilers)
        lines: list[str] = []
        rows = measure(some, Options(**{"rounds": 7} | options), lambda row: lines.append(row.to_json()), SILENT)
        assert [parse_cell(line.encode(), "here") for line in lines] == rows and gpu.closed
        return {row.cell: row for row in rows}

    return of


def fixed(**ms: float) -> Gpu:
    return Gpu(ms=lambda candidate: ms.get(candidate.name, 1.0))


def test_the_first_peer_comes_first_and_last_and_the_order_alternates(run) -> None:
    gpu = fixed()
    run([cell()], gpu, rounds=2)
    assert gpu.named("sample_batch") == ["fa3", "best", "cudnn", "fa3", "fa3", "cudnn", "best", "fa3"]
    assert gpu.named("load_batch") == ["fa3", "best", "cudnn"]


def test_a_row_has_pairs_of_rounds_and_says_how_they_were_taken(run) -> None:
    row = run([cell()], fixed(best=2.0, fa3=1.9, cudnn=3.0), seed=5)["d128-1k"]
    assert row.speed("ours", "fa3").ratio == pytest.approx(0.95) and row.speed("ours", "cudnn").ratio == 1.5
    assert row.ours.n == 7 * 4 and row.ours.tflops == pytest.approx(SHAPE.flops / 2.0 / 1e9)
    assert (row.ours.sm_clock_mhz, row.seed, row.device, row.nvcc) == (1600, 5, "stand-in", "13.0.88")
    assert "held back until the whole batch is enqueued" in row.method and "7 rounds" in row.method
    assert {"tl-attention", "torch", "python"} <= set(row.versions) and row.ours.error == 0.5
    assert row.shape == SHAPE and row.repeatability == 0.0 and row.verdicts() == {"fa3": "missed"}


def test_a_speed_is_of_each_round_so_that_the_clock_falls_out(run) -> None:
    clock = count()
    row = run([cell(peers={"cudnn": 0.995})], Gpu(ms=lambda of: next(clock) // 3 * 0.1 + 1.0), rounds=15)["d128-1k"]
    times = [row.entry(name).rounds_ms for name in ("cudnn", "ours", "cudnn again")]
    assert all(len(set(of)) > 10 for of in times)
    assert set(row.speed("ours", "cudnn").ratios) == {1.0} and row.repeatability == 0.0


@pytest.mark.parametrize(
    "ours, again, verdict",
    [
        (1.0 / 0.996, 1.0, "met"),
        (1.0 / 0.992, 1.002, "missed"),
        (1.0 / 0.992, 1.004, "within repeatability"),
        (1.0 / 0.992, 0.996, "within repeatability"),
        # However much equal entries differ.
        (1.0 / 0.989, 1.1, "missed"),
    ],
)
def test_a_bar_is_met_within_what_the_same_entered_twice_shows(ours, again, verdict, run) -> None:
    turn = count()

    def ms(candidate: Candidate) -> float:
        if candidate.name != "fa3":
            return ours
        # First and last in the first round, last and first in the next.
        return (1.0, again, again, 1.0)[next(turn) % 4]

    row = run([cell()], Gpu(ms=ms))["d128-1k"]
    assert row.verdicts() == {"fa3": verdict}


def test_a_window_is_compared_at_the_rate_of_visible_pairs(run) -> None:
    shape = replace(SHAPE, seq_q=2048, seq_kv=2048, mask=Mask(255, 0))
    gpu = Gpu(ms=lambda of: 0.25 if of.shape.mask == shape.mask else 1.0)
    row = run([cell("window", shape, peers={"unmasked": 0.7})], gpu)["window-2k"]
    full = row.entry("unmasked")
    assert row.ours.flops / full.flops == pytest.approx(255.5 / 2048, rel=0.1) and full.what == "best"
    assert row.speed("ours", "unmasked").ratio == pytest.approx(4 * row.ours.flops / full.flops)
    assert row.verdicts() == {"unmasked": "missed"} and row.visited > 1.2


def test_the_lse_is_compared_with_the_same_schedule_without_it(run) -> None:
    gpu = Gpu(ms=lambda of: 1.004 if "lse" in of.shape.asked else 1.0)
    row = run([cell("lse", SHAPE.asking(lse=True), peers={"without_lse": 0.995})], gpu)["lse-1k"]
    assert row.verdicts() == {"without_lse": "met"} and row.problem["lse"] is True
    assert row.ours.what == row.entry("without_lse").what == "best"


def test_a_kernel_is_compiled_and_verified_once_for_all_its_cells(run) -> None:
    gpu = fixed()
    some = [cell(shape=replace(SHAPE, seq_q=seq, seq_kv=seq)) for seq in (1024, 2048, 4096)]
    submitted = []

    class Counted(Compilers):
        def submit(self, candidate, done):
            submitted.append(candidate.name)
            super().submit(candidate, done)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "CompilePool", Counted)
        patch.setattr(cells, "Worker", lambda: gpu)
        measure(some, Options(rounds=2), lambda row: None, SILENT)
    assert submitted == ["best"]
    assert gpu.named("verify_some_rows") == ["best", "fa3", "cudnn"] * 3
    calls = [call for call, _ in gpu.calls]
    assert calls.index("verify_some_rows") > max(n for n, call in enumerate(calls) if call == "verify")


def test_other_schedules_run_in_the_cells_that_they_are_meant_for(run) -> None:
    some = [cell(), cell("d96", replace(SHAPE, head_dim=96, head_dim_v=96))]
    rows = run(some, fixed(seed=4.0), others=[resolve("seed"), resolve("d96_causal")])
    assert [e.name for e in rows["d128-1k"].entries] == ["ours", "seed", "fa3", "cudnn", "fa3 again"]
    assert [e.name for e in rows["d96-1k"].entries] == ["ours", "d96_causal", "fa3", "cudnn", "fa3 again"]
    assert rows["d128-1k"].speed("seed", "fa3").ratio == 0.25


def test_a_peer_may_be_less_precise_than_ours(run) -> None:
    imprecise = ErrorReport(6e-4, 1e-4, 2e-4, 2e-4, True)
    for name, status in (("fa3", "ok"), ("best", "wrong")):
        row = run([cell()], Gpu({("verify_some_rows", name): imprecise}))["d128-1k"]
        assert row.entry("ours" if name == "best" else name).status == status
        assert row.entry("ours" if name == "best" else name).error == pytest.approx(3.0)


FAULTS = {
    "a kernel that is wrong": ({("verify", "best"): (WRONG, True)}, "ours", "wrong", "rms 1.00e+00"),
    "rows of the cell that are wrong": ({("verify_some_rows", "best"): WRONG}, "ours", "wrong", "(2, 4, 1024, 128)"),
    "a peer that is wrong": ({("verify_some_rows", "fa3"): WRONG}, "fa3", "wrong", "(2, 4, 1024, 128)"),
    "a peer that cannot": ({("verify_some_rows", "fa3"): "no kernel"}, "fa3", "refused", "no kernel"),
    "a hang": ({("verify_some_rows", "best"): CallFailed("timeout", "killed")}, "ours", "timeout", "killed"),
    "a crash": ({("sample_batch", "best"): CallFailed("crashed", "gone")}, "ours", "crashed", "timing: gone"),
    "a peer that crashes": ({("load_batch", "fa3"): CallFailed("error", "gone")}, "fa3", "error", "timing: gone"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_fails_is_a_row_and_the_others_go_on(name, run) -> None:
    faults, entry, status, words = FAULTS[name]
    other = cell("d96", replace(SHAPE, head_dim=96, head_dim_v=96), peers={"cudnn": 0.9})
    rows = run([cell(), other], Gpu(faults, ms=lambda of: 1.0))
    failed = rows["d128-1k"].entry(entry)
    assert failed.status == status and words in failed.reason and failed.rounds_ms == ()
    assert rows["d128-1k"].verdicts() == {"fa3": "not measured"}
    assert rows["d96-1k"].verdicts() == {"cudnn": "met"}
    # Without ours there is nothing to compare; without a peer the next one shows the repeatability.
    assert rows["d128-1k"].reference == (None if entry == "ours" else "cudnn")


@pytest.mark.parametrize("name, status", [("racing", "refused"), ("unbuildable", "compile_error")])
def test_a_schedule_that_does_not_compile_is_told_in_each_of_its_cells(name, status, run) -> None:
    causal = replace(SHAPE, mask=Mask(right=0))
    rows = run([cell(), cell(shape=causal)], fixed(), others=[replace(resolve("seed"), name=name)])
    assert len(rows) == 2
    for row in rows.values():
        assert row.entry(name).status == status and row.entry(name).reason and row.ours.rounds_ms


def test_without_a_gpu_there_is_nothing_to_time(run, monkeypatch) -> None:
    gpu = fixed()
    monkeypatch.setattr(gpu, "call", lambda *arguments, **options: None)
    with pytest.raises(InputError, match="no GPU here, expected one of compute capability 8.0"):
        run([cell()], gpu)


def test_a_batch_that_began_before_it_was_enqueued_is_taken_again(monkeypatch) -> None:
    """A stand-in for CUDA: the GPU passes the first event when it has slept for as long as the calls take on the host."""
    import torch

    slept: list[int] = []

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            pass

        def query(self) -> bool:
            return slept[-1] < 4 * timing.FIRST_HOLD

        def elapsed_time(self, end) -> float:
            return 7.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timing, "sm_clock_mhz", lambda: 1500)
    batch = timing.Batch(lambda: None)
    assert slept == [timing.FIRST_HOLD, 2 * timing.FIRST_HOLD, 4 * timing.FIRST_HOLD] and batch.calls == 4
    assert batch.sample() == (7.5 / 4, 1500) and len(slept) == 4
    monkeypatch.setattr(Event, "query", lambda self: True)
    with pytest.raises(RuntimeError, match="a call waits for it"):
        batch.sample()
