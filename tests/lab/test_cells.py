"""Files of cells, and cells: each is measured beside its peers, whatever becomes of the others. A stand-in times."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from stand_in import Compilers, Gpu, on_a_machine
from told import TEXTS

from tl_attention.errors import InputError
from tl_attention.lab.measure import session
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.cell import Cell, entries, load_cells
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.cells import measure
from tl_attention.lab.measure.pool import CallFailed
from tl_attention.lab.measure.records import parse_line
from tl_attention.lab.measure.trials import SILENT
from tl_attention.lab.oracle.reference import ErrorReport
from tl_attention.problem.mask import FULL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files.named import resolve

__all__ = ["on_a_machine"]
pytestmark = pytest.mark.usefixtures("on_a_machine")
SHAPE = AttentionShape(2, 4, 1024, 1024, 128, "bfloat16")
WRONG = ErrorReport(1.0, 1.0, 2e-4, 2e-4, True)


def cell(group: str = "d128", shape: AttentionShape = SHAPE, **options) -> Cell:
    return Cell(group, shape, **{"peers": {"fa3": 0.995, "cudnn": None}} | options)


@pytest.fixture
def run(monkeypatch) -> Callable[..., dict[str, CellRow]]:
    """Gives a function that measures cells on a stand-in, and returns rows by name as they are read back."""

    def of(some: list[Cell], gpu: Gpu, **options) -> dict[str, CellRow]:
        monkeypatch.setattr(session, "Worker", lambda: gpu)
        monkeypatch.setattr(session, "compile_each", Compilers())
        lines: list[str] = []
        rows = measure(some, lambda row: lines.append(row.to_json()), SILENT, **{"rounds": 7} | options)
        assert [parse_line(CellRow, line.encode(), "here") for line in lines] == rows and gpu.closed
        return {row.cell: row for row in rows}

    return of


def fixed(**ms: float) -> Gpu:
    return Gpu(ms=lambda candidate: ms.get(candidate.name, 1.0))


def test_the_first_peer_comes_first_and_last_and_the_order_alternates(run) -> None:
    gpu = fixed()
    run([cell()], gpu, rounds=2)
    assert gpu.named("sample") == ["fa3", "best", "cudnn", "fa3", "fa3", "cudnn", "best", "fa3"]
    assert gpu.named("load") == ["fa3", "best", "cudnn"]


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


def test_an_invariant_kernel_is_compared_with_the_faster_one() -> None:
    """Invariant kernels differ under a window that hides nothing, with a softcap, and if keys choose the schedule."""
    shapes = (
        replace(SHAPE, mask=Mask(5000, 5000)),
        SHAPE.asking(softcap=30.0),
        replace(SHAPE, seq_q=4096, seq_kv=4096, head_dim=96, head_dim_v=96),
    )
    for shape, names in zip(shapes, (("best_causal", "best"), ("softcap", "softcap"), ("d96_2k", "d96"))):
        ours, other = (entry.candidate for entry in entries(cell(shape=shape, peers={"not_invariant": 0.95})))
        assert (ours.name, other.name) == names
        assert (ours.schedule, ours.variant) != (other.schedule, other.variant)
        assert ours.invariant and not other.invariant and other.variant.mask == FULL


def test_a_kernel_is_compiled_and_verified_once_for_all_its_cells(run) -> None:
    gpu = fixed()
    some = [cell(shape=replace(SHAPE, seq_q=seq, seq_kv=seq)) for seq in (1024, 2048, 4096)]
    asked = []

    class Counted(Compilers):
        def compiled(self, candidate):
            asked.append(candidate.name)
            return super().compiled(candidate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "compile_each", Counted())
        patch.setattr(session, "Worker", lambda: gpu)
        measure(some, lambda row: None, SILENT, rounds=2)
    assert asked == ["best"]
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
    "a crash": ({("sample", "best"): CallFailed("crashed", "gone")}, "ours", "crashed", "timing: gone"),
    "a peer that crashes": ({("load", "fa3"): CallFailed("error", "gone")}, "fa3", "error", "timing: gone"),
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


FILE = TEXTS["cells"]["text"]


def test_the_cells_that_ship_are_those_of_the_issue() -> None:
    assert all(cell.graph for cell in load_cells(ROOT / "results/decode.yaml"))
    found = load_cells(ROOT / "results/cells.yaml")
    names = [of.name for of in found]
    assert len(set(names)) == len(names)
    for group, heads, bar in (
        ("d64", (32, 32, 64, 64), 0.97),
        ("d96", (16, 16, 96, 96), 0.92),
        ("d192", (8, 8, 192, 192), 0.92),
        ("d192_128", (8, 8, 192, 128), 0.92),
        ("d256", (8, 8, 256, 256), 0.95),
        ("softcap", (16, 16, 128, 128), 0.95),
    ):
        own = [of for of in found if of.group == group]
        assert {(of.shape.seq_q, of.shape.seq_kv, of.shape.mask.right) for of in own} == {
            (seq, seq, right) for seq in (1024, 4096, 16384) for right in (None, 0)
        }
        assert {(s.heads, s.heads_kv, s.head_dim, s.head_dim_v) for s in (of.shape for of in own)} == {heads}
        assert all(of.shape.batch * of.shape.seq_q == 32768 and of.peers["fa3"] == bar for of in own)
    assert {of.mean for of in found if of.group == "d64"} == {1.0}
    assert {of.group for of in found if of.shape.dtype == "float16"} == {"L_fp16"}
    by_name = {of.name: of for of in found}
    assert by_name["window_both-16k"].peers == {"unmasked": 0.80} and by_name["window_left-16k"].shape.mask.left == 1023
    assert by_name["short-4k"].shape.sizes == (8, 32, 64, 4096)


def test_a_cell_is_chosen_by_its_name(cli, tmp_path, monkeypatch) -> None:
    (tmp_path / "cells.yaml").write_text(FILE)
    chosen: list[Cell] = []
    monkeypatch.setattr("tl_attention.lab.measure.cells.measure", lambda cells, *_, **__: chosen.extend(cells) or [])
    options = ("--only", "*-causal", "--only", "win*", "-o", tmp_path / "rows.jsonl")
    assert cli("compare", tmp_path / "cells.yaml", *options).exit_code == 0
    assert [cell.name for cell in chosen] == ["d128-1k-causal", "window-2k"]
    assert str(chosen[0].shape) == "(2, 4, 1024, 128) bfloat16 causal"


@pytest.fixture
def compared(cli, monkeypatch, tmp_path, on_a_machine) -> Callable[..., tuple[Any, Path]]:
    """Gives a function that runs `compare` on cells of FILE and a faulty stand-in, and returns result and record."""

    def run(*only: str, fault: CallFailed | None = None) -> tuple[Any, Path]:
        gpu = Gpu({} if fault is None else {("sample", "best_causal"): fault}, ms=lambda of: 1.0)
        monkeypatch.setattr(session, "Worker", lambda: gpu)
        monkeypatch.setattr(session, "compile_each", Compilers())
        monkeypatch.setenv("COLUMNS", "200")
        (tmp_path / "cells.yaml").write_text(FILE)
        record, globs = tmp_path / "record.jsonl", [text for glob in only for text in ("--only", glob)]
        return cli("compare", tmp_path / "cells.yaml", "--rounds", "6", "--output", record, *globs), record

    return run


@pytest.mark.parametrize("fault", [None, CallFailed("crashed", "gone")])
def test_the_command_shows_records_and_reports(fault, cli, compared) -> None:
    result, record = compared("d128-*", fault=fault)
    assert result.exit_code == (0 if fault is None else 1), result.output
    assert "d128-1k: 1.000 ms, fa3 1.000 (1.000-1.000), cudnn 1.000 (1.000-1.000): met" in result.stderr
    assert "2 cells in" in result.stdout and ("d128: geometric mean 1.000 of fa3 (" in result.stdout) == (fault is None)
    if fault:
        assert "ours: crashed: timing: gone (d128-1k-causal)" in result.stdout
        assert "not measured: 1 of 2: d128-1k-causal" in result.stdout
    shown = cli("report", record)
    assert shown.exit_code == 0 and shown.stdout == result.stdout.partition("2 cells in")[0]
    assert cli("report", record, "--markdown").stdout.count("| d128-") == 2


def test_a_line_that_is_no_cell_is_named(cli, compared) -> None:
    _, record = compared("d128-1k")
    (line,) = record.read_text().splitlines()
    broken = json.loads(line) | {"peers": {"fa3": "fast"}}
    record.write_text(f"{line}\n{json.dumps(broken)}\n")
    result = cli("report", record)
    assert result.exit_code == 0 and f"skipped: {record}:2: peers.fa3: expected" in result.stderr
