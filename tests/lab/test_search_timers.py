"""Candidates race with the incumbent, and what cannot win is left out with a reason. A stand-in plays the GPU."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from search_jobs import SHAPE, InTurn, opened, proposals, schedules
from stand_in import BROKEN, Gpu

from tl_attention.lab.machine_code.sass import StaticReport
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.compilation import Compiled
from tl_attention.lab.measure.pool import CallFailed
from tl_attention.lab.oracle.reference import ErrorReport
from tl_attention.lab.search import broods
from tl_attention.lab.search import search as search_module
from tl_attention.lab.search.broods import Brood
from tl_attention.lab.search.proposals import Proposals
from tl_attention.lab.search.race import LOOKS
from tl_attention.lab.search.search import SERIALISED, Search
from tl_attention.lab.search.study import DRAWN, Result, Study
from tl_attention.lab.search.timers import (
    FAILURES,
    LEVEL_AFTER,
    ByPrediction,
    CandidateFailed,
    Incumbent,
    OnGpu,
    Raced,
    Timer,
)
from tl_attention.program.planned import Planned


def candidate(name: str) -> Candidate:
    return Candidate(name, SHAPE, Planned(schedules()[0]))


BEST = Incumbent(candidate("best"), Result(0, DRAWN, {}, ms=2.0, verdict="first"))


def raced(timer: OnGpu, name: str = "other", incumbent: Incumbent | None = BEST) -> Raced:
    return timer(candidate(name), Compiled(), incumbent)


def timed(*ms: float) -> Callable[[Candidate], float]:
    """Gives the incumbent's times, the next one at each call, and another one's, which are always the same."""
    times = [2.0, *ms] if len(ms) == 1 else [*ms]
    return lambda candidate: times[0] if candidate.name == "best" else times[-1]


@pytest.mark.parametrize(
    "ms, rounds, verdict",
    [
        (1.98, LOOKS[0], "faster"),
        (2.02, LOOKS[0], "slower"),
        (2.2, 1, "slower"),
        (2.06, 3, "slower"),
        (2.0, LEVEL_AFTER, "level"),
    ],
)
def test_a_race_is_as_long_as_it_must(ms, rounds, verdict) -> None:
    found = raced(OnGpu(Gpu(ms=timed(ms)), 1))
    assert (len(found.ratios), found.verdict, found.ms) == (rounds, verdict, ms)
    assert found.ratios == pytest.approx([math.log(2.0 / ms)] * rounds)


def test_noise_as_large_as_the_difference_is_raced_to_the_end() -> None:
    rng = random.Random(2)
    ahead = {"best": 0.01, "other": 0.0}
    found = raced(OnGpu(Gpu(ms=lambda candidate: 2.0 * math.exp(rng.gauss(ahead[candidate.name], 0.02))), 1))
    assert len(found.ratios) == LOOKS[-1] and found.verdict == "level"


def test_the_order_alternates_and_the_first_has_nobody_to_race_with() -> None:
    gpu = Gpu(ms=timed(1.98))
    timer = OnGpu(gpu, 1)
    assert raced(timer, "best", None) == Raced([], "first", 2.0) and gpu.named("sample") == ["best"]
    raced(timer)
    assert gpu.named("sample")[1:6] == ["other", "best", "other", "other", "best"]
    assert gpu.named("load") == ["best", "other"], "what was first stays loaded"


@pytest.mark.parametrize("ms, loser", [(1.98, "best"), (2.02, "other"), (2.0, "other")])
def test_the_loser_is_forgotten(ms, loser) -> None:
    gpu = Gpu(ms=timed(ms))
    raced(OnGpu(gpu, 1))
    assert gpu.named("forget") == [loser]


def test_what_is_wrong_is_not_timed() -> None:
    gpu = Gpu({("verify_some_rows", "other"): ErrorReport(1.0, 1.0, 2e-4, 2e-4, True)})
    with pytest.raises(CandidateFailed, match="^wrong: "):
        raced(OnGpu(gpu, 1))
    assert gpu.named("sample") == []


@pytest.mark.parametrize("call", ["verify_some_rows", "load", "sample"])
def test_one_that_hangs_costs_itself_and_the_incumbent_is_loaded_again(call) -> None:
    gpu = Gpu({(call, "other"): CallFailed("timeout", "no answer within 20 s: killed")}, timed(1.98))
    timer = OnGpu(gpu, 1)
    with pytest.raises(CandidateFailed, match="^timeout: no answer within 20 s: killed$"):
        raced(timer)
    assert raced(timer, "third").verdict == "faster"
    assert [name for name in gpu.named("load") if name != "other"] == ["best", "best", "third"]


def test_an_incumbent_that_cannot_be_loaded_is_the_machines_failure() -> None:
    with pytest.raises(CallFailed, match="gone"):
        raced(OnGpu(Gpu({("load", "best"): CallFailed("crashed", "gone")}), 1))


def test_many_that_fail_one_after_another_are_the_machines_failure() -> None:
    gpu = Gpu({("sample", "other"): CallFailed("crashed", "gone")}, timed(2.02))
    timer = OnGpu(gpu, 1)
    almost = ["other"] * (FAILURES - 1)
    for name in (*almost, "third", *almost):
        with suppress(CandidateFailed):
            raced(timer, name)
    with pytest.raises(CallFailed, match=f"^{FAILURES} candidates failed, the last one: gone$"):
        raced(timer)


def test_without_a_gpu_predictions_rank() -> None:
    found = [ByPrediction()(candidate("other"), Compiled(predicted_ms=ms), BEST) for ms in (1.0, 2.0, 4.0)]
    assert [(one.verdict, one.ms) for one in found] == [("faster", 1.0), ("slower", 2.0), ("slower", 4.0)]
    assert [one.ratios for one in found] == [[math.log(2)], [0.0], [-math.log(2)]]
    assert ByPrediction()(candidate("other"), Compiled(predicted_ms=3.0), None) == Raced([], "first", 3.0)
    with pytest.raises(CandidateFailed, match="nothing is predicted"):
        ByPrediction()(candidate("other"), Compiled(), BEST)


class Ready(Proposals):
    """These proposals are given points of this study, as many as there are outcomes."""

    def __init__(self, study: Study, count: int) -> None:
        super().__init__(study, SHAPE, schedules()[:count], random.Random(1))
        self._left = count

    def next(self) -> Brood:
        self._left -= 1
        self.is_done = not self._left
        return super().next()


def searched(monkeypatch: Any, study: Study, made: list[Compiled], timer: Timer) -> Search:
    """Has a search end as many trials as outcomes are given, trial 0 and so on."""
    monkeypatch.setattr(search_module, "Compilers", InTurn)
    monkeypatch.setattr(search_module, "POLL_S", 0.0)
    outcomes = iter(made)
    search = Search(
        study, SHAPE, timer, Ready(study, len(made)), lambda brood: broods.bred(brood, lambda one: next(outcomes))
    )
    search.run(600, lambda passed: None)
    assert len(study.results) == len(made)
    return search


def machine_code(name: str, predicted_ms: float | None = 1.0, stack_bytes: int = 0) -> Compiled:
    return Compiled(name, StaticReport(200, stack_bytes, 1024, machine_code=name), predicted_ms=predicted_ms)


def test_what_cannot_win_is_left_out_with_its_reason(tmp_path, monkeypatch) -> None:
    made = [
        machine_code("a"),
        machine_code("b", stack_bytes=1000),
        machine_code("a"),
        BROKEN["unbuildable"],
        Compiled(status="refused", error=f"{SERIALISED} (C7510)"),
        machine_code("d", None),
    ]
    study = opened(tmp_path)
    searched(monkeypatch, study, made, lambda *of: Raced([-0.1], "slower" if of[2] else "first", 1.0))
    assert [(result.reason, result.failed) for result in sorted(study.results, key=lambda one: one.number)] == [
        ("", False),
        ("spills", False),
        ("machine code already seen", False),
        ("compile_error when compiled: nvcc said no", True),
        (f"{SERIALISED}: {SERIALISED} (C7510)", True),
        ("", False),
    ]
    assert [result.registers for result in study.results if result.machine_code] == [200] * 4
    assert all(result.guessed_ms for result in study.results)
    assert search_module.Search(study, SHAPE, ByPrediction(), proposals(study))._seen >= {*"abd"}


def test_values_are_chained_over_the_incumbents(tmp_path, monkeypatch) -> None:
    study = opened(tmp_path)
    races = [([], "first"), ([0.2, 0.1, 0.3], "faster"), ([-0.1], "slower"), ([0.1], "level"), ([0.4], "faster")]
    next_race = iter(races)
    search = searched(
        monkeypatch, study, [machine_code(name) for name in "abcde"], lambda *_: Raced(*next(next_race), 1.0)
    )
    assert [result.value for result in study.results] == pytest.approx([0.0, 0.2, 0.1, 0.2, 0.6])
    assert [result.against for result in study.results] == [None, 0, 1, 1, 1]
    assert [result.name for result in study.timed] == [f"trial {n}" for n in (4, 1, 3, 2, 0)]
    assert search.incumbent and search.incumbent.result == study.results[4]
    again = Search(opened(tmp_path), SHAPE, ByPrediction(), proposals(study))
    assert again.incumbent and again.incumbent.result == search.incumbent.result


def test_a_candidate_that_fails_in_its_race_has_failed(tmp_path, monkeypatch) -> None:
    gpu = Gpu({("sample", "b"): CallFailed("crashed", "gone")})
    study = opened(tmp_path)
    searched(monkeypatch, study, [machine_code(name) for name in "abc"], OnGpu(gpu, 1))
    assert [(result.reason, result.failed, result.verdict) for result in study.results] == [
        ("", False, "first"),
        ("crashed: gone", True, ""),
        ("", False, "level"),
    ]


def test_a_machine_that_fails_ends_the_search_and_nothing_told_is_lost(tmp_path, monkeypatch) -> None:
    study = opened(tmp_path)
    faults = {("sample", f"{number}"): CallFailed("crashed", "gone") for number in range(1, 13)}
    with pytest.raises(CallFailed, match="12 candidates failed"):
        searched(monkeypatch, study, [machine_code(f"{number}") for number in range(14)], OnGpu(Gpu(faults), 1))
    study.leases.leave({})
    again = opened(tmp_path)
    assert again.results == study.results and len(again.results) == FAILURES
    assert len([*again.orphaned()]) == 14 - FAILURES, "the last one did not fail by itself"


def test_a_process_that_dies_costs_what_it_was_given(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(search_module, "Compilers", InTurn)
    study, died = opened(tmp_path), Compiled(status="compile_error", error="the compiler died with exit code -9")
    Search(study, SHAPE, ByPrediction(), Ready(study, 2), lambda brood: died).run(60, lambda passed: None)
    assert [(one.reason, one.failed) for one in study.results] == [
        (f"compile_error when compiled: {died.error}", True)
    ] * 2
