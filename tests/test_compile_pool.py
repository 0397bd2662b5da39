"""Candidates are compiled by processes of their own: what goes wrong in one costs one candidate."""

from __future__ import annotations

import threading
from queue import Queue

import pool_jobs
import pytest
from mutations import shipped

from tl_attention.measure import compile_pool
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.compile_pool import CompilePool, compile_all
from tl_attention.problem.shape import AttentionShape

SHAPE = AttentionShape(1, 2, 256, 256, 128)


def candidate(name: str) -> Candidate:
    return Candidate(name, SHAPE, shipped()["seed"])


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
        compile_pool.CompilePool.__init__, "__kwdefaults__", {"compile": pool_jobs.compile_by_name, "timeout_s": 60}
    )
    candidates = [candidate("good a"), candidate("good b")]
    assert {c.name: made.fingerprint for c, made in compile_all(candidates).items()} == {
        n: n for n in ("good a", "good b")
    }
    assert compile_all([]) == {}
