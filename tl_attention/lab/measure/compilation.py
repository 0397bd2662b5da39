"""This module compiles candidates: one, many in parallel, or many ahead of the calls that take them."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pebble import ProcessExpired, ProcessPool

from tl_attention.compiler import toolchain
from tl_attention.compiler.compile import compile_kernel, is_finished
from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.kernels.registry import lowering_of
from tl_attention.lab.machine_code.sass import StaticReport
from tl_attention.lab.measure.candidate import Candidate


@dataclass(frozen=True)
class Compiled:
    """A `Compiled` holds what was compiled of a candidate, or why it failed to compile."""

    fingerprint: str | None = None
    report: StaticReport | None = None
    # With `error`, why the compiler made nothing.
    status: Literal["ok", "refused", "compile_error"] = "ok"
    error: str = ""
    seconds: float = 0.0
    predicted_ms: float | None = None

    @property
    def row_fields(self) -> dict[str, Any]:
        """Returns the fields of a `Row` that compiling fills, only `status` and `reason` where there is no report."""
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
    """Returns why the lengths or the proof of safety refuse a candidate before compiling, "" if they do not."""
    if candidate.planned is not None:
        try:
            lowering_of(candidate.planned.schedule).check_lengths(candidate.planned.schedule, candidate.shape)
            refuse_unless_safe(candidate.planned, candidate.shape.head_size, candidate.variant.card)
        except InputError as refusal:
            return str(refusal)
    return ""


def compile_candidate(candidate: Candidate, with_report: bool = True) -> Compiled:
    """Compiles a candidate into the store and returns the outcome, with a report on its machine code if asked.

    What fails to compile is returned, not raised. Other processes take the kernel from the store.
    """
    # Late: it reads generated code, which takes NumPy, and rows are shown without.
    from tl_attention.lab.machine_code.of_kernel import MachineCode

    started = time.monotonic()
    try:
        kernel = compile_kernel(candidate.ours.schedule, candidate.variant)
        report = MachineCode(kernel).report if with_report else None
        return Compiled(kernel.fingerprint, report, seconds=time.monotonic() - started)
    except ScheduleRefused as refusal:
        return Compiled(status="refused", error=str(refusal))
    except ValueError as error:
        return Compiled(status="compile_error", error=str(error))


def finish_candidate(candidate: Candidate) -> Compiled:
    """Compiles a candidate into the store and returns the outcome, without a report on its machine code."""
    return compile_candidate(candidate, with_report=False)


# What a process compiles: a candidate, or what finds one.
Work = TypeVar("Work")
COMPILE_TIMEOUT_S = 300.0
# One compilation keeps a core busy and takes 1 to 2 GB.
MAX_PROCESSES = 16
# How often a candidate is tried that waited in a pool that broke.
TRIES = 3


class Compilers(Generic[Work]):
    """`Compilers` are parallel processes that compile candidates, each as soon as a process is free.

    A compiler that hangs or dies costs one candidate. The processes end with the `with` block.
    """

    def __init__(
        self,
        compile: Callable[[Work], Compiled] = compile_candidate,  # type: ignore[assignment]
        timeout_s: float = COMPILE_TIMEOUT_S,
        processes: int = MAX_PROCESSES,
    ) -> None:
        self._compile, self._timeout_s = compile, timeout_s
        self.processes = min(processes, os.cpu_count() or 1, MAX_PROCESSES)
        self._pool: ProcessPool | None = None
        # (the candidate, how often its pool may still break) of what is being compiled.
        self._futures: dict[Future[Compiled], tuple[Work, int]] = {}

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool:
            self._pool.stop()
            self._pool.join()
            self._pool = None

    @property
    def waiting(self) -> int:
        """Returns how many candidates were submitted and not yet taken."""
        return len(self._futures)

    def submit(self, candidate: Work, tries_left: int = TRIES - 1) -> None:
        """Has a candidate compiled."""
        self._pool = self._pool or _started(self.processes)
        future = _submitted(self._pool, self._compile, candidate, self._timeout_s)
        self._futures[future] = candidate, tries_left

    def take(self, timeout_s: float | None = None) -> Iterator[tuple[Work, Compiled]]:
        """Waits until a compilation ends, or for so long, and yields (candidate, outcome) of each that has ended."""
        done = wait(self._futures, timeout_s, FIRST_COMPLETED).done
        # A process that dies before pebble knows its candidate breaks the pool, and all that waits there.
        if any(isinstance(future.exception(), BrokenProcessPool) for future in done):
            self.__exit__()
            done = {*self._futures}
        again = []
        for future in done:
            candidate, tries_left = self._futures.pop(future)
            if tries_left and _is_lost(future):
                again.append((candidate, tries_left - 1))
            else:
                yield candidate, _outcome(future, self._timeout_s)
        for candidate, tries_left in again:
            self.submit(candidate, tries_left)


def compile_each(
    candidates: Sequence[Candidate],
    compile: Callable[[Candidate], Compiled] = compile_candidate,
    timeout_s: float = COMPILE_TIMEOUT_S,
) -> Generator[tuple[Candidate, Compiled], None, None]:
    """Compiles candidates in parallel processes, and yields (candidate, outcome) as each compilation ends.

    The processes end with the last candidate, or when this generator is closed.
    """
    with Compilers(compile, timeout_s, len(candidates)) as compilers:
        for candidate in candidates:
            compilers.submit(candidate)
        while compilers.waiting:
            yield from compilers.take()


def compile_all(candidates: Sequence[Candidate]) -> dict[Candidate, Compiled]:
    """Compiles candidates in parallel processes, and returns the outcome of each by candidate."""
    return dict(compile_each(candidates))


def _started(processes: int) -> ProcessPool:
    """Starts a pool of so many spawned processes, and returns the pool."""
    pool = ProcessPool(max_workers=processes, context=multiprocessing.get_context("spawn"))
    # A signal that ends the command raises in the main thread: a process half started there would print a traceback.
    starting = threading.Thread(target=lambda: pool.active)
    starting.start()
    starting.join()
    return pool


def _submitted(
    pool: ProcessPool, compile: Callable[[Work], Compiled], candidate: Work, timeout_s: float
) -> Future[Compiled]:
    try:
        return pool.schedule(compile, args=[candidate], timeout=timeout_s)
    except RuntimeError as error:
        # Pebble raises this for a pool that has broken.
        broken: Future[Compiled] = Future()
        broken.set_exception(BrokenProcessPool(str(error)))
        return broken


def _is_lost(future: Future[Compiled]) -> bool:
    """Says whether a future of a pool that broke, and was ended, has no outcome of its own candidate."""
    return not future.done() or future.cancelled() or isinstance(future.exception(), BrokenProcessPool)


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
    """Raises InputError where TileLang's cache is disabled or its folder cannot be written.

    No compiled kernel would be kept there.
    """
    folder = toolchain.cache_folder()
    if not toolchain.cache_enabled():
        raise InputError(f"TILELANG_DISABLE_CACHE is set, so nothing is kept in {folder}, expected it unset")
    if not toolchain.can_be_written(folder):
        raise InputError(f"{folder}: cannot be written, {ANOTHER}")


def fill(candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, Compiled | None]]:
    """Compiles the kernels that the store lacks, and yields each candidate with its outcome, None if kept already.

    Those that were there before come first. Parallel processes compile the others, which come as their compilations
    end.
    """
    missing = [candidate for candidate in candidates if not _is_kept(candidate)]
    yield from ((candidate, None) for candidate in candidates if candidate not in missing)
    for candidate, compiled in compile_each(missing, finish_candidate):
        # The disk may be full, for one.
        if compiled.status == "ok" and not _is_kept(candidate):
            error = f"it could not be kept in {toolchain.cache_folder()}, {ANOTHER}"
            yield candidate, Compiled(status="compile_error", error=error)
        else:
            yield candidate, compiled


def _is_kept(candidate: Candidate) -> bool:
    return is_finished(candidate.ours.schedule, candidate.variant)
