"""The scripts of tools/ share what is here: a checkout, processes that run its package only, and lines of progress."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from pebble import ProcessExpired, ProcessFuture, ProcessPool

SECONDS_BETWEEN_LINES = 20


@dataclass(frozen=True)
class Checkout:
    """A checkout is the folder that holds tl_attention/ and schedules/; its path is absolute."""

    folder: Path

    @contextmanager
    def processes(self, jobs: int, *more: str) -> Iterator[ProcessPool]:
        """Yields processes that import the package from this checkout, and other modules from its folders `more`.

        The processes work in an empty folder, where TileLang's cache is too, and what they print is lost. All end with
        the context, also where this process is told to end.
        """
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        folders = [str(self.folder / part) for part in ("", *more)]
        with tempfile.TemporaryDirectory() as empty:
            pool = ProcessPool(
                jobs, context=multiprocessing.get_context("spawn"), initializer=_enter, initargs=[folders, empty]
            )
            try:
                yield pool
            finally:
                pool.stop()
                pool.join()


HERE = Checkout(Path(__file__).parents[1])


def _enter(folders: list[str], empty: str) -> None:
    os.chdir(empty)
    sys.dont_write_bytecode = True
    sys.path[:0] = folders
    os.environ |= {"PYTHONPATH": os.pathsep.join(folders), "TILELANG_CACHE_DIR": empty}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def check_home(checkout: Path) -> None:
    """Raises ImportError unless this process has the package from the checkout."""
    import tl_attention

    if not Path(tl_attention.__file__).is_relative_to(checkout):
        raise ImportError(f"tl_attention comes from {tl_attention.__file__}, expected it from {checkout}")


def failure(future: ProcessFuture, timeout_s: float) -> str:
    """Says why a future has no result; empty where it has one. Raises what the process raised by itself."""
    error = future.exception()
    if isinstance(error, ProcessExpired):
        return f"the process died with exit code {error.exitcode}"
    if isinstance(error, TimeoutError):
        return f"it took more than {timeout_s:.0f} s"
    if error:
        raise error
    return ""


def outcomes(
    what: str, pool: ProcessPool, work: Callable[..., Any], jobs: Sequence[Sequence[Any]], timeout_s: float
) -> Iterator[tuple[ProcessFuture, str]]:
    """Calls `work` with each job's arguments, and yields its future and why it has no result, in the jobs' order."""
    progress = Progress(what, len(jobs))
    for future in [pool.schedule(work, job, timeout=timeout_s) for job in jobs]:
        why = failure(future, timeout_s)
        progress.advance()
        yield future, why


def options(timeout: float, of: str = "case") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a decorator that adds the options on processes, with this many seconds for one piece of the work."""
    jobs = click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="processes at a time")
    seconds = click.option("--timeout", default=timeout, show_default=True, help=f"of one {of}, in seconds")
    return lambda command: jobs(seconds(command))


class Progress:
    """A progress prints a line on stderr now and then, which says how much of the work is done."""

    def __init__(self, what: str, total: int):
        self.what, self.total, self.done = what, total, 0
        self.start = self.said = time.monotonic()

    def advance(self, by: int = 1) -> None:
        """Counts `by` more pieces of the work as done, and prints a line if 20 s have passed or all is done."""
        self.done += by
        now = time.monotonic()
        if self.done == self.total or now - self.said >= SECONDS_BETWEEN_LINES:
            self.said = now
            click.echo(f"{self.what}: {self.done:,} of {self.total:,}, {now - self.start:.0f} s", err=True)
