"""Compiles many candidates in parallel processes."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Callable, Sequence

from pebble import ProcessExpired, ProcessPool

from tl_attention.candidate import Candidate
from tl_attention.compile import StaticReport, compile_kernel

COMPILE_TIMEOUT_S = 300
# One compilation keeps a core busy and takes 1 to 2 GB.
MAX_WORKERS = 16


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a candidate; `error` when it failed."""

    fingerprint: str | None = None
    report: StaticReport | None = None
    error: str = ""


def _compile(candidate: Candidate) -> Compiled:
    assert candidate.schedule is not None
    shape = candidate.shape
    try:
        kernel = compile_kernel(
            candidate.schedule, head_dim=shape.head_dim, dtype=shape.dtype, causal=shape.causal, sizes=candidate.sizes
        )
    except ValueError as error:
        return Compiled(error=str(error))
    return Compiled(kernel.fingerprint, kernel.report)


def compile_all(
    candidates: Sequence[Candidate], progress: Callable[[Candidate], None] = lambda candidate: None
) -> dict[Candidate, Compiled]:
    """Compile every candidate into TileLang's disk cache. A compiler that hangs or dies costs one candidate."""
    workers = max(1, min(os.cpu_count() or 1, MAX_WORKERS, len(candidates)))
    results: dict[Candidate, Compiled] = {}
    with ProcessPool(max_workers=workers, context=multiprocessing.get_context("spawn")) as pool:
        futures = {c: pool.schedule(_compile, args=[c], timeout=COMPILE_TIMEOUT_S) for c in candidates}
        for candidate, future in futures.items():
            try:
                results[candidate] = future.result()
            except FutureTimeout:
                results[candidate] = Compiled(error=f"the compiler took more than {COMPILE_TIMEOUT_S} s")
            except ProcessExpired as died:
                results[candidate] = Compiled(error=f"the compiler died with exit code {died.exitcode}")
            except Exception as error:
                results[candidate] = Compiled(error=f"{type(error).__name__}: {error}")
            progress(candidate)
    return results
