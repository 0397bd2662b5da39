"""Compiles candidates in parallel processes, one by one as they come."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial

from pebble import ProcessExpired, ProcessPool

from tl_attention.measure.candidate import Candidate
from tl_attention.measure.compilation import Compiled, compile_candidate

COMPILE_TIMEOUT_S = 300.0
# One compilation keeps a core busy and takes 1 to 2 GB.
MAX_PROCESSES = 16


class CompilePool:
    """Processes that compile; they start with the first candidate. A compiler that hangs or dies costs one candidate.

    `most` is how many candidates there will be, where that is known. `submit` may be called from any thread.
    """

    def __init__(
        self,
        most: int = MAX_PROCESSES,
        *,
        compile: Callable[[Candidate], Compiled] = compile_candidate,
        timeout_s: float = COMPILE_TIMEOUT_S,
    ):
        self._compile, self._timeout_s = compile, timeout_s
        processes = max(1, min(os.cpu_count() or 1, MAX_PROCESSES, most))
        self._pool = ProcessPool(max_workers=processes, context=multiprocessing.get_context("spawn"))

    def submit(self, candidate: Candidate, done: Callable[[Compiled], None]) -> None:
        """Compile it when a process is free. `done` is called once, in another thread, with what became of it."""
        try:
            future = self._pool.schedule(self._compile, args=[candidate], timeout=self._timeout_s)
        except RuntimeError as broken:  # Pebble's, where all its processes were killed while none had work.
            done(Compiled(status="compile_error", error=f"the compilers' processes are gone: {broken}"))
            return
        future.add_done_callback(lambda future: done(_outcome(future, self._timeout_s)))

    def finish(self) -> None:
        """End the processes once all that was submitted is compiled; nothing can be submitted afterwards."""
        self._pool.close()
        self._pool.join()

    def stop(self) -> None:
        """End the processes at once, whatever they compile."""
        self._pool.stop()
        self._pool.join()


def compile_all(candidates: Sequence[Candidate]) -> dict[Candidate, Compiled]:
    """What became of each candidate."""
    results: dict[Candidate, Compiled] = {}
    pool = CompilePool(len(candidates))
    try:
        for candidate in candidates:
            pool.submit(candidate, partial(results.__setitem__, candidate))
        pool.finish()
    finally:
        pool.stop()
    return results


def _outcome(future: Future[Compiled], timeout_s: float) -> Compiled:
    try:
        return future.result()
    except FutureTimeout:
        error = f"the compiler took more than {timeout_s:.0f} s"
    except ProcessExpired as died:
        error = f"the compiler died with exit code {died.exitcode}"
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    return Compiled(status="compile_error", error=error)
