"""Profiles kernels: compiles all, then runs each once under ncu in one process, and reads their counters."""

from __future__ import annotations

import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tl_attention.errors import InputError
from tl_attention.measure import profiled
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.compile_pool import compile_all
from tl_attention.measure.counters import Launch, of_jobs
from tl_attention.measure.machine import gpu_fields
from tl_attention.measure.ncu import METHOD, Ncu
from tl_attention.measure.profile_records import ProfileRow
from tl_attention.measure.progress import Progress
from tl_attention.measure.records import problem_of

# ncu runs a kernel once for each of its passes, and saves and restores gigabytes around each.
START_TIMEOUT_S, JOB_TIMEOUT_S = 120.0, 60.0


def measure(
    candidates: Sequence[Candidate],
    record: Callable[[ProfileRow], object],
    progress: Progress,
    *,
    seed: int | None = None,
    timeout_s: float | None = None,
) -> list[ProfileRow]:
    """A row for each candidate, all recorded when ncu has counted all.

    Raises InputError: there is no GPU that is known, no ncu, no nvcc, or a kernel that cannot be compiled; ncu may not read
    the counters, failed, or took longer than `timeout_s`.
    """
    # Asked before minutes of compiling.
    common, ncu = gpu_fields("profile"), Ncu()
    seed = secrets.randbelow(2**31) if seed is None else seed
    metrics = ncu.known_metrics()
    _compile(candidates, progress)
    progress.phase("profile", len(candidates))
    limit = timeout_s or START_TIMEOUT_S + JOB_TIMEOUT_S * len(candidates)
    with tempfile.TemporaryDirectory() as folder:
        jobs = Path(folder) / "jobs.json"
        jobs.write_text(profiled.written(candidates, seed))
        launches = ncu.profile([sys.executable, "-m", profiled.__name__, str(jobs)], metrics, limit)
    common["versions"] = {**common["versions"], "ncu": ncu.version()}
    rows = []
    for candidate, of_job in zip(candidates, of_jobs(launches, profiled.MARKER, len(candidates))):
        row = _row(candidate, of_job, {**common, "seed": seed, "method": METHOD})
        record(row)
        rows.append(row)
        progress.advance(str(candidate))
    return rows


def theory(candidates: Sequence[Candidate]) -> Iterator[ProfileRow]:
    """A row without metrics for each: what theory says needs no GPU."""
    for candidate in candidates:
        yield ProfileRow(candidate.name, candidate.label, candidate.sizes, problem_of(candidate.shape))


def _compile(candidates: Sequence[Candidate], progress: Progress) -> None:
    """Into the store, from which the process under ncu takes them."""
    ours = [candidate for candidate in candidates if candidate.schedule]
    progress.phase("compile", len(ours))
    for candidate, compiled in compile_all(ours).items():
        if compiled.error:
            raise InputError(f"{candidate}: {compiled.status}: {compiled.error}")
        progress.advance(str(candidate))


def _row(candidate: Candidate, launches: Sequence[Launch], common: dict[str, Any]) -> ProfileRow:
    longest = max(launches, key=lambda launch: launch.duration_ns)
    return ProfileRow(
        candidate.name,
        candidate.label,
        candidate.sizes,
        problem_of(candidate.shape),
        longest.kernel,
        len(launches),
        longest.metrics,
        **common,
    )
