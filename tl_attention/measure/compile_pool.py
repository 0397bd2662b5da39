"""Compiles candidates in parallel processes, one by one as they come."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from functools import partial

from pebble import ProcessExpired, ProcessPool

from tl_attention.measure.candidate import Candidate
from tl_attention.measure.compilation import Compiled, compile_candidate

COMPILE_TIMEOUT_S = 300.0
# One compilation keeps a core busy and takes 1 to 2 GB.
MAX_PROCESSES = 16
# Of a candidate that waited in a pool that broke.
TRIES = 3


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
        self._processes = max(1, min(os.cpu_count() or 1, MAX_PROCESSES, most))
        self._changed = threading.Condition()
        self._pending, self._open = 0, True
        self._pool = self._started()

    def _started(self) -> ProcessPool:
        return ProcessPool(max_workers=self._processes, context=multiprocessing.get_context("spawn"))

    def submit(self, candidate: Candidate, done: Callable[[Compiled], None]) -> None:
        """Compile it when a process is free. `done` is called once, in another thread, with what became of it."""
        with self._changed:
            self._pending += 1
        self._schedule(candidate, done, TRIES)

    def _schedule(self, candidate: Candidate, done: Callable[[Compiled], None], tries: int) -> None:
        try:
            with self._changed:
                if self._open and not _is_active(self._pool):
                    # In a thread: this one may be the pool's own, which its end waits for.
                    threading.Thread(target=_end, args=[self._pool]).start()
                    self._pool = self._started()
                future = self._pool.schedule(self._compile, args=[candidate], timeout=self._timeout_s)
        except RuntimeError as broken:
            self._tell(done, Compiled(status="compile_error", error=f"the compilers' processes are gone: {broken}"))
            return
        future.add_done_callback(lambda future: self._ended(future, candidate, done, tries - 1))

    def _ended(
        self, future: Future[Compiled], candidate: Candidate, done: Callable[[Compiled], None], tries: int
    ) -> None:
        # A process that died with no candidate that it is known to have takes pebble's pool, and all that waits in it.
        if tries and self._open and not future.cancelled() and isinstance(future.exception(), BrokenProcessPool):
            self._schedule(candidate, done, tries)
        else:
            self._tell(done, _outcome(future, self._timeout_s))

    def _tell(self, done: Callable[[Compiled], None], compiled: Compiled) -> None:
        try:
            done(compiled)
        finally:
            with self._changed:
                self._pending -= 1
                self._changed.notify_all()

    def finish(self) -> None:
        """End the processes once all that was submitted is compiled; nothing can be submitted afterwards."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending)
            self._open = False
            self._pool.close()
        self._pool.join()

    def stop(self) -> None:
        """End the processes at once, whatever they compile."""
        with self._changed:
            self._open = False
        _end(self._pool)


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


def _is_active(pool: ProcessPool) -> bool:
    """Whether it takes candidates. The first to ask starts its processes.

    In a thread, as a signal that ends the command raises in the main one: a process that is half started would print a
    traceback.
    """
    found: list[bool] = []
    asking = threading.Thread(target=lambda: found.append(pool.active))
    asking.start()
    asking.join()
    return found[0]


def _end(pool: ProcessPool) -> None:
    """End a pool's processes at once."""
    pool.stop()
    pool.join()


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
