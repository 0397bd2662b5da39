"""A worker is a process with a watchdog: a hang, a crash or a broken CUDA context costs one call, not the run."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Literal

from pebble import ProcessExpired, ProcessPool


class CallFailed(Exception):
    """This error says that a call in a worker timed out, crashed the process or raised. The message says why."""

    def __init__(self, status: Literal["timeout", "crashed", "error"], reason: str):
        super().__init__(reason)
        self.status = status


class Worker:
    """A worker is one spawned process that runs calls one after another and is replaced when it dies."""

    def __init__(self) -> None:
        self._pool: ProcessPool | None = None

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
        """Returns a function's result from the worker process, or raises CallFailed on timeout, crash or exception.

        A process that died since the last call is replaced: the call runs in a new process.
        """
        try:
            try:
                return self._run(function, arguments, timeout_s)
            except BrokenProcessPool:
                # No call had begun when the process died. One that dies again before the call is a failure.
                self.close()
                return self._run(function, arguments, timeout_s)
        except FutureTimeout:
            self.close()
            raise CallFailed("timeout", f"no answer within {timeout_s:.0f} s: killed") from None
        except ProcessExpired as died:
            self.close()
            raise CallFailed("crashed", f"the worker process died with exit code {died.exitcode}") from None
        except Exception as error:
            # An error of CUDA leaves the context unusable: the next call gets a new process.
            self.close()
            line = next(iter(str(error).strip().splitlines()), "no message")[:300]
            raise CallFailed("error", f"{type(error).__name__}: {line}") from None

    def _run(self, function: Callable[..., Any], arguments: tuple[Any, ...], timeout_s: float) -> Any:
        if self._pool is None:
            self._pool = ProcessPool(max_workers=1, context=multiprocessing.get_context("spawn"))
        try:
            future = self._pool.schedule(function, args=arguments, timeout=timeout_s)
        except RuntimeError as error:
            # Pebble raises this for a pool that lost its process while it was idle.
            raise BrokenProcessPool(str(error)) from error
        return future.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None
