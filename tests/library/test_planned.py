"""A schedule is derived once, by the first code that asks, and its Program is passed on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import golden
import pytest
from golden_kernels import KERNELS
from mutations import shipped

from tl_attention.compiler import generation
from tl_attention.lab.leaderboard import submission
from tl_attention.lab.measure import session
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.compilation import Compiled
from tl_attention.op import compiled
from tl_attention.program import derivation, planned
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.schedule import Schedule


@pytest.fixture
def derived(monkeypatch) -> Iterator[list[Schedule]]:
    """Yields a list of the schedules of which a Program was derived, once for each time."""
    found: list[Schedule] = []

    def derive(schedule: Schedule, *model: str) -> object:
        found.append(schedule)
        return derivation.derive(schedule, *model)

    monkeypatch.setattr(planned, "derive", derive)
    yield found


@pytest.mark.parametrize("command", ["check", "explain"])
@pytest.mark.parametrize("name", ["best", "seed", "mma_sync", "inferred"])
def test_a_command_derives_its_schedule_once(command, name, cli, derived) -> None:
    assert cli(command, name).exit_code == 0
    assert derived == ([] if name == "inferred" else [shipped()[name]])


def test_a_run_derives_its_schedule_once(cli, derived, monkeypatch, tmp_path) -> None:
    """Without a GPU the schedule is proved, compiled elsewhere, and run by the interpreter."""
    monkeypatch.setattr(session, "compile_each", at_once)
    result = cli("run", "seed", "--shape", "1,1,64,64,64", "--output", tmp_path / "rows.jsonl")
    assert result.exit_code == 0 and "checked_on_cpu" in result.stdout
    assert derived == [shipped()["seed"]]


def at_once(candidates: list[Candidate]) -> Iterator[tuple[Candidate, Compiled]]:
    """Stands in for `compile_each`, as if the compiler had been quick."""
    for candidate in candidates:
        yield candidate, Compiled(candidate.name)


@pytest.fixture
def generated(monkeypatch):
    """Has TileLang generate what it generated before of one of KERNELS, which no store holds."""

    def of(name: str) -> None:
        code = golden.code(name)
        for what, instead in {
            "use_nvcc": nullcontext,
            "check_host_compiler": lambda: None,
            "lowered": lambda program, *of: (code.source, code.host_plan),
            "machine_code": lambda source, arch: b"a cubin",
        }.items():
            monkeypatch.setattr(generation, what, instead)
        monkeypatch.setattr("tl_attention.compiler.compile.cache_enabled", lambda: False)

    return of


@pytest.mark.parametrize("name", ["best", "seed", "mma_sync"])
def test_a_first_call_derives_its_schedule_once(name, derived, generated) -> None:
    generated(name)
    kernel = KERNELS[name]
    compiled._compiled.cache_clear()
    found = compiled.kernel_of(kernel.schedule, kernel.variant)
    compiled._compiled.cache_clear()
    assert found.verdict is not None and derived == [kernel.schedule]


def test_a_submission_derives_its_schedule_once_and_proves_it_once(derived, generated, monkeypatch) -> None:
    # A submission has its GPU's SMs compiled in.
    generated("best, 114 SMs")
    monkeypatch.setattr(submission, "VARIANT", KERNELS["best, 114 SMs"].variant)
    proved = []
    monkeypatch.setattr(generation, "refuse_unless_safe", lambda planned, *_: proved.append(planned.schedule))
    monkeypatch.setattr(submission, "read_loops", lambda cubin: ())
    monkeypatch.setattr(submission.machine_code, "build", lambda source, options: (b"a cubin", ""))
    assert "def attention_kernel():" in submission.pack("best", shipped()["best"])
    assert derived == proved == [shipped()["best"]]


def test_what_is_planned_is_its_schedule() -> None:
    best = shipped()["best"]
    assert Planned(best) == Planned(best) and len({Planned(best), Planned(best), Planned(shipped()["seed"])}) == 2
    assert Planned(best).program == derivation.derive(best) != derivation.derive(best, "synchronous")
    assert Planned(resolve("inferred").schedule).program is None
