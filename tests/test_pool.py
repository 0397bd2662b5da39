"""The watchdog: what a call may do to its process, and what the next call finds."""

import os
import signal
import time

import pool_jobs
import pytest

from tl_attention.measure.pool import CallFailed, Worker


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
