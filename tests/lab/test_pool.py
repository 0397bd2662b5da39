"""The processes that compile and that have the GPU: what goes wrong in one costs one candidate, or one call."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing

import pool_jobs
import pytest
from mutations import shipped
from pebble import ProcessPool

from tl_attention.lab.measure import compilation
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.compilation import Compiled, compile_all, compile_each
from tl_attention.lab.measure.pool import CallFailed, Worker
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned


def test_state_lasts_from_call_to_call():
    with closing(Worker()) as worker:
        assert [worker.call(pool_jobs.count, timeout_s=60) for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    "job,limit,status,words",
    [
        (pool_jobs.hang, 2, "timeout", "no answer within 2 s"),
        (pool_jobs.exit_at_once, 60, "crashed", "exit code 7"),
        (pool_jobs.segfault, 60, "crashed", "exit code -11"),
        (pool_jobs.fail, 60, "error", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ],
)
def test_a_call_that_breaks_its_process_costs_only_itself(job, limit, status, words):
    with closing(Worker()) as worker:
        with pytest.raises(CallFailed) as failed:
            worker.call(job, timeout_s=limit)
        assert failed.value.status == status
        assert words in str(failed.value) and "\n" not in str(failed.value)
        assert worker.call(pool_jobs.count, timeout_s=60) == 1


@pytest.mark.parametrize("noticed", [True, False])
def test_a_process_that_died_between_calls_is_replaced_and_the_next_call_runs(noticed):
    with closing(Worker()) as worker:
        os.kill(worker.call(os.getpid, timeout_s=60), signal.SIGKILL)
        while noticed and worker._pool.active:
            time.sleep(0.01)
        assert worker.call(pool_jobs.count, timeout_s=60) == 1


def test_a_process_that_dies_before_each_call_is_a_failure(monkeypatch):
    with closing(Worker()) as worker:
        # What the spawned interpreter runs at its start.
        monkeypatch.setattr(
            "multiprocessing.spawn.get_command_line", lambda **_: ["python", "-c", "raise SystemExit(7)"]
        )
        with pytest.raises(CallFailed) as failed:
            worker.call(pool_jobs.count, timeout_s=60)
        assert failed.value.status == "error"


SHAPE = AttentionShape(1, 2, 256, 256, 128)


def candidate(name: str) -> Candidate:
    return Candidate(name, SHAPE, Planned(shipped()["seed"]))


def compiled(*names: str, timeout_s: float = 3) -> Iterator[tuple[str, Compiled]]:
    for of, made in compile_each([candidate(name) for name in names], pool_jobs.compile_by_name, timeout_s):
        yield of.name, made


def test_each_candidate_costs_only_itself_and_comes_as_it_ends(monkeypatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    results = dict(order := list(compiled("hangs", "dies", "raises", "good")))
    assert order[-1][0] == "hangs", "the others do not wait for it"
    errors = {name: (compiled.status, compiled.error) for name, compiled in results.items()}
    assert errors == {
        "hangs": ("compile_error", "the compiler took more than 3 s"),
        "dies": ("compile_error", "the compiler died with exit code 7"),
        "raises": (
            "compile_error",
            "RuntimeError: CUDA error: an illegal memory access was encountered\nand more lines",
        ),
        "good": ("ok", ""),
    }


@pytest.fixture
def pools(monkeypatch) -> list[ProcessPool]:
    """Returns the pools that are started, of one process each."""
    started = compilation._started
    found: list[ProcessPool] = []

    def noted(processes: int) -> ProcessPool:
        found.append(started(1))
        return found[-1]

    monkeypatch.setattr(compilation, "_started", noted)
    return found


def test_a_pool_that_breaks_is_replaced_and_what_waited_in_it_is_compiled(pools) -> None:
    """pebble's pool breaks where a process dies before it has said which candidate it took."""
    found = compiled("good", "hangs", "good too")
    assert next(found)[0] == "good"
    manager = pools[0]._pool_manager
    manager.handle_broken_pool(BrokenProcessPool("All workers expired"))
    assert {name: made.error for name, made in found} == {"hangs": "the compiler took more than 3 s", "good too": ""}
    assert len(pools) == 2 and not manager.worker_manager.workers, "its processes are ended"


def test_a_candidate_that_breaks_every_pool_is_told_after_so_many(pools, monkeypatch) -> None:
    def schedule(self, *args, **kwargs) -> Future:
        raise RuntimeError("The Pool is not active")

    monkeypatch.setattr(compilation.ProcessPool, "schedule", schedule)
    assert [made.error for _, made in compiled("good")] == ["BrokenProcessPool: The Pool is not active"]
    assert len(pools) == compilation.TRIES


def test_while_the_caller_is_busy_others_are_compiled(pools) -> None:
    found = compiled("good", "good too", timeout_s=60)
    first = next(found)[0]
    manager = pools[0]._pool_manager
    while manager.task_manager.tasks:
        time.sleep(0.01)
    assert {first, next(found)[0]} == {"good", "good too"}


def test_the_processes_end_where_nobody_asks_for_more(pools) -> None:
    found = compiled("good", "hangs", timeout_s=60)
    next(found)
    found.close()
    assert not pools[0]._pool_manager.worker_manager.workers


def test_all_are_compiled_and_none_without_candidates(monkeypatch) -> None:
    monkeypatch.setattr(compilation.compile_each, "__defaults__", (pool_jobs.compile_by_name, 60))
    candidates = [candidate("good a"), candidate("good b")]
    assert {c.name: made.fingerprint for c, made in compile_all(candidates).items()} == {
        n: n for n in ("good a", "good b")
    }
    assert compile_all([]) == {}
