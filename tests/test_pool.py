"""The processes that compile and that have the GPU: what goes wrong in one costs one candidate, or one call."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from queue import Queue

import pool_jobs
import pytest
from mutations import shipped

from tl_attention.measure import compilation
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.compilation import CompilePool, compile_all
from tl_attention.measure.pool import CallFailed, Worker
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned


def test_state_lasts_from_call_to_call():
    with Worker() as worker:
        assert [worker.call(pool_jobs.count, timeout_s=60) for _ in range(3)] == [1, 2, 3]
        assert worker.generation == 1


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
    with Worker() as worker:
        with pytest.raises(CallFailed) as failed:
            worker.call(job, timeout_s=limit)
        assert failed.value.status == status
        assert words in str(failed.value) and "\n" not in str(failed.value)
        assert worker.call(pool_jobs.count, timeout_s=60) == 1
        assert worker.generation == 2


@pytest.mark.parametrize("noticed", [True, False])
def test_a_process_that_died_between_calls_is_replaced_and_the_next_call_runs(noticed):
    with Worker() as worker:
        os.kill(worker.call(os.getpid, timeout_s=60), signal.SIGKILL)
        while noticed and worker._pool.active:
            time.sleep(0.01)
        assert worker.call(pool_jobs.count, timeout_s=60) == 1
        assert worker.generation == 2


def test_a_process_that_dies_before_each_call_is_a_failure(monkeypatch):
    with Worker() as worker:
        # What the spawned interpreter runs at its start.
        monkeypatch.setattr(
            "multiprocessing.spawn.get_command_line", lambda **_: ["python", "-c", "raise SystemExit(7)"]
        )
        with pytest.raises(CallFailed) as failed:
            worker.call(pool_jobs.count, timeout_s=60)
        assert failed.value.status == "error" and worker.generation == 2


SHAPE = AttentionShape(1, 2, 256, 256, 128)


def candidate(name: str) -> Candidate:
    return Candidate(name, SHAPE, Planned(shipped()["seed"]))


@pytest.fixture
def pool():
    pool = CompilePool(2, compile=pool_jobs.compile_by_name, timeout_s=3)
    yield pool
    pool.stop()


def test_each_candidate_costs_only_itself_and_comes_as_it_ends(pool) -> None:
    found: Queue = Queue()
    for name in ("hangs", "dies", "raises", "good"):
        pool.submit(candidate(name), lambda compiled, name=name: found.put((name, compiled)))
    results = dict(order := [found.get(timeout=30) for _ in range(4)])
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


def test_a_pool_that_breaks_is_replaced_and_what_waited_in_it_is_compiled(pool) -> None:
    """pebble's pool breaks where a process dies before it has said which candidate it took."""
    found: Queue = Queue()
    pool.submit(candidate("hangs"), lambda compiled: found.put(("hangs", compiled.error)))
    pool.submit(candidate("good"), lambda compiled: found.put(("good", compiled.error)))
    manager = pool._pool._pool_manager
    while len(manager.task_manager.tasks) < 2:
        time.sleep(0.01)
    manager.handle_broken_pool(BrokenProcessPool("All workers expired"))
    pool.submit(candidate("later"), lambda compiled: found.put(("later", compiled.error)))
    pool.finish()
    assert not manager.worker_manager.workers, "its processes are ended"
    assert dict(found.get() for _ in range(3)) == {"hangs": "the compiler took more than 3 s", "good": "", "later": ""}


def test_a_candidate_that_breaks_every_pool_is_told_after_so_many(pool, monkeypatch) -> None:
    def schedule(self, *args, **kwargs) -> Future:
        future: Future = Future()
        future.set_exception(BrokenProcessPool("All workers expired"))
        tries.append(self)
        return future

    tries: list = []
    monkeypatch.setattr(compilation.ProcessPool, "schedule", schedule)
    found: list[str] = []
    pool.submit(candidate("good"), lambda compiled: found.append(compiled.error))
    assert found == ["BrokenProcessPool: All workers expired"] and len(tries) == compilation.TRIES


def test_any_thread_submits_and_the_end_waits_for_all(pool) -> None:
    names = [f"good {number}" for number in range(6)]
    found: list[str] = []
    threads = [
        threading.Thread(
            target=lambda name=name: pool.submit(candidate(name), lambda made: found.append(made.fingerprint))
        )
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.finish()
    assert sorted(found) == names
    pool.submit(candidate("late"), lambda compiled: found.append(compiled.error))
    assert found[-1] == "the compilers' processes are gone: The Pool is not active"


def test_all_are_compiled_and_none_without_candidates(monkeypatch) -> None:
    monkeypatch.setattr(
        compilation.CompilePool.__init__, "__kwdefaults__", {"compile": pool_jobs.compile_by_name, "timeout_s": 60}
    )
    candidates = [candidate("good a"), candidate("good b")]
    assert {c.name: made.fingerprint for c, made in compile_all(candidates).items()} == {
        n: n for n in ("good a", "good b")
    }
    assert compile_all([]) == {}
