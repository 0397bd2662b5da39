"""A predicted timeline has a measured one's form, so every view shows it, as `explain` and `run` show predictions."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from conftest import ROOT
from model_code import in_store

from tl_attention.lab.cli import main
from tl_attention.lab.cli.measure import _predicted
from tl_attention.lab.measure import bench
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.records import Row, problem_of
from tl_attention.lab.model import machine as machines
from tl_attention.lab.model import prediction
from tl_attention.lab.model.machine import Machine
from tl_attention.lab.model.timeline import predicted
from tl_attention.lab.trace.critical import critical_path
from tl_attention.lab.trace.flows import flows
from tl_attention.lab.trace.shares import shares_of_block, tensor_pipe
from tl_attention.lab.trace.steady import steady
from tl_attention.lab.trace.timeline import Timeline, What
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve

RECORDED = ROOT / "results/timelines/best.json"
L = "4,64,8192,128"


@pytest.fixture(autouse=True)
def stored(monkeypatch) -> None:
    """Has machine code for best, best_causal, seed and mma_sync, of bf16 kernels, and compiles nothing."""
    for module in ("prediction", "timeline"):
        monkeypatch.setattr(f"tl_attention.lab.model.{module}.compiled", in_store)


@functools.cache
def timeline(name: str) -> Timeline:
    candidate = Candidate(
        name, AttentionShape.parse(L, dtype="bfloat16"), Planned(resolve(name).schedule), sms=132, arch="sm_90a"
    )
    return predicted(candidate, machines.load())


def cli(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def test_the_roles_of_best_do_what_its_program_says() -> None:
    found = timeline("best")
    assert found.roles == ("consumer 0", "consumer 1", "producer")
    roles = shares_of_block(found, 0)
    # 8192 keys are 46 blocks of 176 and the rest.
    for role in ("consumer 0", "consumer 1"):
        assert roles[role].issues == {"mma0": 47 * roles[role].tiles, "mma1": 47 * roles[role].tiles}
        assert {str(what) for what in roles[role].parts} >= {
            *(
                "wait K_full",
                "wait V_full",
                "wait Q_full",
                "wait named barrier",
                "wait mma1",
                "issue mma0",
                "issue mma1",
            ),
            *("vector row_max+scale+exp", "vector exp+row_sum+cast+rescale"),
        }
    assert {what.kind for what in roles["producer"].parts} == {"tile", "wait", "load"}
    ended_by_loads = [flow for flow in flows(found) if found.roles[found.lines[flow.line].role] == "producer"]
    assert len({flow.wait for flow in ended_by_loads}) > 100


def test_it_is_near_the_recorded_one_of_a_kernel_with_marks() -> None:
    found, recorded = timeline("best"), Timeline.read(RECORDED)
    ours = shares_of_block(found, 0)["consumer 0"]
    theirs = shares_of_block(recorded, recorded.lines[0].block)["consumer 0"]
    assert ours.cycles / ours.tiles == pytest.approx(theirs.cycles / theirs.tiles, rel=0.1)
    for what in ("row_max+scale+exp", "exp+row_sum+cast+rescale"):
        parts = (of.parts[What("vector", what)] / of.cycles for of in (ours, theirs))
        assert abs(next(parts) - next(parts)) < 0.03
    busy = tensor_pipe(found, [*shares_of_block(found, 0).values()])
    assert busy and 0.82 < busy < 0.92


@pytest.mark.parametrize("name", ["best", "best_causal", "seed"])
def test_its_critical_path_is_known(name) -> None:
    found = timeline(name)
    window = steady(found)
    path = critical_path(found, window)
    assert sum(segment.end - segment.start for segment in path) == window.end - window.begin


def test_of_mma_sync_the_issues_are_not_told_apart() -> None:
    found = timeline("mma_sync")
    assert {line.block for line in found.lines} == {0, 1} and "issue" not in {what.kind for what in found.whats}


def test_a_file_gives_it_back(tmp_path) -> None:
    found = timeline("best")
    found.write(tmp_path / "best.json")
    assert Timeline.read(tmp_path / "best.json") == found


def test_trace_shows_it_below_a_recorded_one_in_every_view(tmp_path) -> None:
    page, picture, saved = tmp_path / "both.html", tmp_path / "both.svg", tmp_path / "predicted.json"
    done = cli(
        *("trace", "best", "--dtype", "bf16", "--predict", "--of", RECORDED),
        *("-o", page, "-o", picture, "--output", saved),
    )
    assert done.exit_code == 0, done.output
    assert done.output.index("NVIDIA H200, thread block") < done.output.index("NVIDIA H200, predicted, thread block")
    assert "predicted by a model of NVIDIA H200" in done.output and "tiles of 47 KV blocks" in done.output
    assert "H200, predicted" in page.read_text() and "predicted" in picture.read_text()
    assert cli("trace", "--of", saved, "-o", tmp_path / "the.chrome.json").exit_code == 0
    assert json.loads((tmp_path / "the.chrome.json").read_text())["traceEvents"]


def test_explain_says_what_each_wait_costs() -> None:
    done = cli("explain", "best", "--cycles")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert any(line.startswith("predicted for (4, 64, 8192, 128)") and "cycles an iteration" in line for line in lines)
    begin = lines.index("Steady state, iteration t:")
    loop = [line for line in lines[begin:] if "cycles" in line]
    assert [line.split(":")[0].split()[0] for line in loop] == ["turn", "issue", "issue", "wait", "wait"]
    assert "cycles" not in cli("explain", "best").output


def test_run_shows_what_is_predicted_of_kernels_that_were_compiled_and_not_timed() -> None:
    best = Candidate(
        "best", AttentionShape.parse(L, dtype="bfloat16"), Planned(resolve("best").schedule), sms=132, arch="sm_90a"
    )
    inferred = replace(best, name="inferred", planned=Planned(resolve("inferred").schedule))

    def row(candidate: Candidate, status: str, fingerprint: str | None = "0123") -> Any:
        of = {"name": candidate.name, "sizes": candidate.sizes, "shape": candidate.shape}
        return SimpleNamespace(**of, status=status, fingerprint=fingerprint)

    found = _predicted([best, inferred], [row(best, "checked_on_cpu"), row(inferred, "compiled")])
    of_best, of_inferred = found.values()
    assert float(of_best.removesuffix(" ms")) == pytest.approx(11.5, rel=0.1)
    assert of_inferred == "no Program, expected a schedule whose lowering follows one: nothing is predicted"
    assert [name for name, *_ in found] == ["best", "inferred"]
    assert not _predicted([best], [row(best, "ok")]) and not _predicted([best], [row(best, "compiled", None)])


def test_run_shows_its_table_before_a_model_that_fails(monkeypatch, tmp_path) -> None:
    def measure(candidates: Sequence[Candidate], *_: object, **__: object) -> list[Row]:
        (one,) = candidates
        return [Row(one.name, one.label, one.sizes, problem_of(one.shape), "compiled", fingerprint="0123")]

    def predict(candidate: Candidate, machine: Machine) -> None:
        raise IndexError("tuple index\nout of range")

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(prediction, "predict", predict)
    done = cli("run", "seed", "--shape", "1,2,128,128", "--output", tmp_path / "rows.jsonl")
    assert done.exit_code == 0 and done.stderr.splitlines()[-1] == "predict: kernel 1 of 1: seed float16"
    table, _, behind = done.stdout.partition(f"1 row in {tmp_path}/rows.jsonl\n")
    assert "seed      runtime  compiled" in table
    assert behind.splitlines()[1:] == ["  seed (runtime): the model failed: IndexError: tuple index out of range"]
