"""This module compiles candidates: one, many in parallel as they come, or many ahead of the calls that take them."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal

from pebble import ProcessExpired, ProcessPool

from tl_attention.compiler import toolchain
from tl_attention.compiler.compile import StaticReport, compile_kernel, is_finished
from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.lowering.preflight import refuse_unless_safe
from tl_attention.lowering.registry import lowering_of
from tl_attention.measure.candidate import Candidate


@dataclass(frozen=True)
class Compiled:
    """A `Compiled` is what the compiler made of a candidate, in how many seconds.

    If the compiler made nothing, `status` and `error` say why.
    """

    fingerprint: str | None = None
    report: StaticReport | None = None
    status: Literal["ok", "refused", "compile_error"] = "ok"
    error: str = ""
    seconds: float = 0.0

    @property
    def row_fields(self) -> dict[str, Any]:
        """Returns the fields of a row that a compilation fills."""
        if self.report is None:
            return {"status": self.status, "reason": self.error}
        return {
            "fingerprint": self.fingerprint,
            "registers": self.report.registers,
            "stack_bytes": self.report.stack_bytes,
            "shared_bytes": self.report.shared_bytes,
            "loops": self.report.loops,
            "machine_code": self.report.machine_code,
        }


def refusal_of(candidate: Candidate) -> str:
    """Says why the candidate is refused before it is compiled, "" if it is not."""
    if candidate.planned is not None:
        try:
            lowering_of(candidate.planned.schedule).check_lengths(candidate.planned.schedule, candidate.shape)
            refuse_unless_safe(candidate.planned, candidate.shape.head_size, candidate.variant.card)
        except InputError as refusal:
            return str(refusal)
    return ""


def compile_candidate(candidate: Candidate, with_report: bool = True) -> Compiled:
    """Compiles a candidate into the store and reads its machine code if asked.

    Other processes take the kernel from the store.
    """
    assert candidate.schedule is not None, f"{candidate} is a peer, which is not compiled here"
    started = time.monotonic()
    try:
        kernel = compile_kernel(candidate.schedule, candidate.variant)
        report = kernel.report if with_report else None
        return Compiled(kernel.fingerprint, report, seconds=time.monotonic() - started)
    except ScheduleRefused as refusal:
        return Compiled(status="refused", error=str(refusal))
    except ValueError as error:
        return Compiled(status="compile_error", error=str(error))


def finish_candidate(candidate: Candidate) -> Compiled:
    """Compiles a candidate into the store, and reads no machine code."""
    return compile_candidate(candidate, with_report=False)


COMPILE_TIMEOUT_S = 300.0
# One compilation keeps a core busy and takes 1 to 2 GB.
MAX_PROCESSES = 16
# How often a candidate is tried that waited in a pool that broke.
TRIES = 3


class CompilePool:
    """A pool has processes that compile. A compiler that hangs or dies costs one candidate.

    The processes start with the first candidate. `most` is how many candidates there will be, where that is known.
    `submit` may be called from any thread.
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
        """Compiles a candidate when a process is free.

        `done` is called once, in another thread, with what became of the candidate.
        """
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
        # A process that dies before pebble knows its candidate breaks the pool, and with it all that waits there.
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
        """Ends the processes once all that was submitted is compiled; nothing can be submitted afterwards."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending)
            self._open = False
            self._pool.close()
        self._pool.join()

    def stop(self) -> None:
        """Ends the processes at once, whatever they compile."""
        with self._changed:
            self._open = False
        _end(self._pool)


def compile_each(candidates: Sequence[Candidate], **options: Any) -> Iterator[tuple[Candidate, Compiled]]:
    """Yields each candidate with what became of it, as the processes of a pool end it. The pool has these options."""
    ended: SimpleQueue[tuple[Candidate, Compiled]] = SimpleQueue()
    pool = CompilePool(len(candidates), **options)

    def end(candidate: Candidate, compiled: Compiled) -> None:
        ended.put((candidate, compiled))

    try:
        for candidate in candidates:
            pool.submit(candidate, partial(end, candidate))
        for _ in candidates:
            yield ended.get()
    finally:
        pool.stop()


def compile_all(candidates: Sequence[Candidate]) -> dict[Candidate, Compiled]:
    """Compiles the candidates and returns what became of each."""
    return dict(compile_each(candidates))


def _is_active(pool: ProcessPool) -> bool:
    """Says whether the pool takes candidates. The first call starts the pool's processes.

    It asks in a thread, as a signal that ends the command raises in the main thread: a process that is half started
    would print a traceback.
    """
    found: list[bool] = []
    asking = threading.Thread(target=lambda: found.append(pool.active))
    asking.start()
    asking.join()
    return found[0]


def _end(pool: ProcessPool) -> None:
    """Ends a pool's processes at once."""
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


ANOTHER = "expected a cache that can be filled: TILELANG_CACHE_DIR names another folder"


def check_can_be_filled() -> None:
    """Raises InputError where no compiled kernel would be kept."""
    folder = toolchain.cache_folder()
    if not toolchain.cache_enabled():
        raise InputError(f"TILELANG_DISABLE_CACHE is set, so nothing is kept in {folder}, expected it unset")
    if not toolchain.can_be_written(folder):
        raise InputError(f"{folder}: cannot be written, {ANOTHER}")


def fill(candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, Compiled | None]]:
    """Yields each candidate with what became of its compilation, or with None if its kernel was there before.

    Parallel processes compile the others, which come as their compilations end.
    """
    missing = [candidate for candidate in candidates if not _is_kept(candidate)]
    yield from ((candidate, None) for candidate in candidates if candidate not in missing)
    for candidate, compiled in compile_each(missing, compile=finish_candidate):
        # The disk may be full, for one.
        if compiled.status == "ok" and not _is_kept(candidate):
            error = f"it could not be kept in {toolchain.cache_folder()}, {ANOTHER}"
            yield candidate, Compiled(status="compile_error", error=error)
        else:
            yield candidate, compiled


def _is_kept(candidate: Candidate) -> bool:
    assert candidate.schedule is not None, f"{candidate} is a peer, which is not compiled here"
    return is_finished(candidate.schedule, candidate.variant)
