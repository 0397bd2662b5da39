"""Compiles many candidates in parallel processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Literal

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from tl_attention.build.compile import StaticReport, compile_kernel
from tl_attention.errors import ScheduleRefused
from tl_attention.measure.candidate import Candidate

COMPILE_TIMEOUT_S = 300
# One compilation keeps a core busy and takes 1 to 2 GB.
MAX_WORKERS = 16


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a candidate; without it `status` and `error` say why."""

    fingerprint: str | None = None
    report: StaticReport | None = None
    status: Literal["ok", "refused", "compile_error"] = "ok"
    error: str = ""


def _compile(candidate: Candidate) -> Compiled:
    assert candidate.schedule is not None
    shape = candidate.shape
    try:
        kernel = compile_kernel(
            candidate.schedule, head_dim=shape.head_dim, dtype=shape.dtype, causal=shape.causal, sizes=candidate.sizes
        )
        return Compiled(kernel.fingerprint, kernel.report)
    except ScheduleRefused as refusal:
        return Compiled(status="refused", error=str(refusal))
    except ValueError as error:
        return Compiled(status="compile_error", error=str(error))


def compile_all(
    candidates: Sequence[Candidate], progress: Callable[[Candidate], None] = lambda candidate: None
) -> dict[Candidate, Compiled]:
    """Compile every candidate into TileLang's disk cache. A compiler that hangs or dies costs one candidate."""
    workers = max(1, min(os.cpu_count() or 1, MAX_WORKERS, len(candidates)))
    results: dict[Candidate, Compiled] = {}
    with ProcessPool(max_workers=workers, context=multiprocessing.get_context("spawn")) as pool:
        futures = {c: pool.schedule(_compile, args=[c], timeout=COMPILE_TIMEOUT_S) for c in candidates}
        for candidate, future in futures.items():
            results[candidate] = _result(future)
            progress(candidate)
    return results


def _result(future: ProcessFuture) -> Compiled:
    try:
        return future.result()
    except FutureTimeout:
        error = f"the compiler took more than {COMPILE_TIMEOUT_S} s"
    except ProcessExpired as died:
        error = f"the compiler died with exit code {died.exitcode}"
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    return Compiled(status="compile_error", error=error)
