"""Every candidate ends as one row with a status and a reason, whatever happens to it. A stand-in plays the GPU."""

import json

import pytest
from conftest import ROOT
from mutations import shipped
from stand_in import GOOD, Compilers, Gpu, on_a_machine

from tl_attention.lab.measure import bench, session
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.peers import product_flops
from tl_attention.lab.measure.pool import CallFailed
from tl_attention.lab.measure.records import MATMUL, read_rows
from tl_attention.lab.measure.results_file import ResultsFile
from tl_attention.lab.measure.trials import SILENT, Silent
from tl_attention.lab.oracle.reference import ErrorReport, worst_of
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.schedule_file import load

__all__ = ["on_a_machine"]
SHAPE = AttentionShape(1, 2, 256, 256, 128)


@pytest.fixture
def gpu(monkeypatch, on_a_machine):
    gpu = Gpu()
    monkeypatch.setattr(session, "Worker", lambda: gpu)
    monkeypatch.setattr(session, "compile_each", Compilers())
    return gpu


def rows_of(tmp_path, names, **options):
    results = ResultsFile(tmp_path / "rows.jsonl")
    candidates = [Candidate(name, SHAPE, Planned(shipped().get(name, shipped()["seed"]))) for name in names]
    rows = bench.measure(candidates, results.append, SILENT, rounds=2, **options)
    assert read_rows(results.path) == rows, "what is returned is what is recorded"
    return {row.name: row for row in rows}


def test_a_timed_row_carries_times_rate_and_method(gpu, tmp_path):
    row = rows_of(tmp_path, ["seed"])["seed"]
    assert (row.status, row.n, row.median_ms, row.sm_clock_mhz) == ("ok", 8, 2.0, 1600)
    assert row.tflops == pytest.approx(SHAPE.flops / 2.0 / 1e9)
    assert row.matmul_tflops == pytest.approx(product_flops(MATMUL) / 1.0 / 1e9)
    assert row.percent_of_matmul == pytest.approx(100 * row.tflops / row.matmul_tflops)
    assert "2 rounds" in row.method and row.device == "stand-in"
    assert row.verified_shapes > 5 and row.error_rms == GOOD.rms


def test_the_largest_of_each_error_is_shown_of_whichever_shape() -> None:
    mean = ErrorReport(max_abs=1.0, rms=9.0, budget_max_abs=10.0, budget_rms=10.0, finite=True)
    single = ErrorReport(max_abs=3.0, rms=1.0, budget_max_abs=6.0, budget_rms=10.0, finite=True)
    assert worst_of([mean, single]) == worst_of([single, mean]) == ErrorReport(3.0, 9.0, 6.0, 10.0, True)
    broken = ErrorReport(0.0, 0.0, 6.0, 10.0, False)
    assert worst_of([mean, broken, single]) == broken


def test_peers_are_verified_and_timed_beside_ours(gpu, tmp_path):
    rows = rows_of(tmp_path, ["seed"])
    assert rows["cudnn"].sizes == "peer" and rows["cudnn"].median_ms == 2.0
    assert "cudnn" in gpu.named("verify")
    assert rows_of(tmp_path / "b", ["seed"], peers=()).keys() == {"seed"}


def test_candidates_are_interleaved_in_alternating_order(gpu, tmp_path):
    rows_of(tmp_path, ["seed", "source_order"], peers=())
    assert gpu.named("sample") == [MATMUL, "seed", "source_order", "source_order", "seed", MATMUL]


def test_all_are_compiled_and_verified_before_one_is_timed_and_every_process_ends(gpu, monkeypatch, tmp_path):
    compilers = Compilers()
    monkeypatch.setattr(session, "compile_each", compilers)
    load_first = []
    monkeypatch.setattr(gpu, "ms", lambda candidate: load_first.append(compilers.ended) or 1.0)
    rows_of(tmp_path, ["seed", "source_order"], peers=())
    assert all(load_first) and gpu.closed
    calls = [call for call, _ in gpu.calls]
    assert calls == sorted(calls, key=["verify", "load", "sample"].index)


def test_every_failure_is_a_row_and_the_others_go_on(gpu, tmp_path):
    gpu.faults = {
        ("verify", "wrong"): (ErrorReport(1.0, 1.0, 2e-4, 2e-4, True), True),
        ("verify", "nan"): (ErrorReport(0.0, 0.0, 2e-4, 2e-4, False), True),
        ("verify", "moving"): (GOOD, False),
        ("verify", "hangs"): CallFailed("timeout", "no answer within 120 s: killed"),
        ("sample", "crashes"): CallFailed("crashed", "the worker process died with exit code 1"),
        ("load", "late"): CallFailed("error", "RuntimeError: out of memory"),
    }
    names = ["seed", "wrong", "nan", "moving", "hangs", "crashes", "late", "unbuildable", "racing", "seed_stages4"]
    rows = rows_of(tmp_path, names)
    assert {name: rows[name].status for name in names} == {
        "seed": "ok",
        "wrong": "wrong",
        "nan": "wrong",
        "moving": "unstable",
        "hangs": "timeout",
        "crashes": "crashed",
        "late": "error",
        "unbuildable": "compile_error",
        "racing": "refused",
        "seed_stages4": "refused",
    }
    assert all(rows[name].reason for name in names if name != "seed")
    machines = {(row.nvcc, row.ptxas, row.driver, row.power_limit_w, row.commit) for row in rows.values()}
    assert machines == {("13.0.88", "13.0.89", "580.1", 700.0, "c0f9511a2b3c")}, "whatever became of them"
    assert all({"tl-attention", "torch", "tilelang", "python"} <= set(row.versions) for row in rows.values())
    assert len({(row.run, row.seed) for row in rows.values()}) == 1
    assert "294,912 bytes of shared memory" in rows["seed_stages4"].reason
    assert "NaN" in rows["nan"].reason and "repeats" in rows["moving"].reason


def test_after_a_crash_in_timing_the_others_are_timed_again_from_the_start(gpu, tmp_path):
    gpu.faults = {("sample", "source_order"): CallFailed("crashed", "gone")}
    rows = rows_of(tmp_path, ["seed", "source_order"], peers=())
    assert rows["source_order"].status == "crashed"
    assert rows["seed"].n == 8, "samples of the process that died are not mixed with the next one's"


def test_rows_with_the_same_generated_code_are_marked(gpu, tmp_path):
    rows = rows_of(tmp_path, ["seed", "source_order"], peers=())
    assert rows["seed"].same_code_as is None and rows["source_order"].same_code_as == "seed"


def test_the_first_of_the_list_has_the_code_whichever_is_compiled_first(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(session, "compile_each", lambda candidates: Compilers()(candidates[::-1]))
    rows = rows_of(tmp_path, ["seed", "source_order"], peers=())
    assert rows["seed"].same_code_as is None and rows["source_order"].same_code_as == "seed"


def test_rows_recorded_before_an_interruption_stay(gpu, tmp_path):
    gpu.faults = {("sample", MATMUL): CallFailed("crashed", "gone")}
    with pytest.raises(CallFailed, match="matrix product"):
        rows_of(tmp_path, ["seed_stages4", "seed"])
    kept = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["status"] for row in kept] == ["refused"]


def test_without_a_gpu_schedules_are_compiled_and_interpreted(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "compile_each", Compilers())
    results = ResultsFile(tmp_path / "rows.jsonl")
    rows = bench.measure([Candidate("seed", SHAPE, Planned(shipped()["seed"]))], results.append, SILENT)
    assert rows[0].status == "checked_on_cpu" and rows[0].error_rms <= rows[0].error_rms_budget
    assert "nothing was timed" in rows[0].reason and rows[0].median_ms is None


def test_without_a_gpu_what_has_no_program_is_compiled_and_every_step_is_told(monkeypatch):
    monkeypatch.setattr(session, "compile_each", Compilers())
    told = []

    class Told(Silent):
        def phase(self, name: str, total: int) -> None:
            told.append((name, total))

        def advance(self, what: str) -> None:
            told.append(what)

    inferred = load(ROOT / "schedules/inferred.yaml")
    schedules = {"inferred": inferred, "seed": shipped()["seed"], "seed_stages4": shipped()["seed_stages4"]}
    candidates = [Candidate(name, SHAPE, Planned(schedule)) for name, schedule in schedules.items()]
    rows = {row.name: row for row in bench.measure(candidates, lambda row: None, Told())}
    assert [rows[name].status for name in schedules] == ["compiled", "checked_on_cpu", "refused"]
    assert rows["inferred"].error_max_abs is None
    assert "no Program that the CPU could run" in rows["inferred"].reason
    steps = ["inferred float16", "seed float16"]
    assert told == [("compile", 2), *steps, ("interpret on the CPU", 2), *steps]
