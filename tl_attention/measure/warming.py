"""Fills the store of finished kernels ahead of the calls that take them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from queue import SimpleQueue

from tl_attention.build import toolchain
from tl_attention.build.compile import is_finished
from tl_attention.errors import InputError
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.compilation import Compiled, finish_candidate
from tl_attention.measure.compile_pool import CompilePool

ANOTHER = "expected a cache that can be filled: TILELANG_CACHE_DIR names another folder"


def check_can_be_filled() -> None:
    """Raise InputError where no kernel would be kept."""
    folder = toolchain.cache_folder()
    if not toolchain.cache_enabled():
        raise InputError(f"TILELANG_DISABLE_CACHE is set, so nothing is kept in {folder}, expected it unset")
    if not toolchain.can_be_written(folder):
        raise InputError(f"{folder}: cannot be written, {ANOTHER}")


def fill(candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, Compiled | None]]:
    """Each candidate with what became of its compilation, as parallel processes end it; None if it was there before."""
    missing = []
    for candidate in candidates:
        assert candidate.schedule is not None, f"{candidate} is a peer, which is not compiled here"
        if is_finished(candidate.schedule, candidate.variant):
            yield candidate, None
        else:
            missing.append(candidate)
    ended: SimpleQueue[tuple[Candidate, Compiled]] = SimpleQueue()

    def end(candidate: Candidate, compiled: Compiled) -> None:
        ended.put((candidate, compiled))

    pool = CompilePool(len(missing), compile=finish_candidate)
    try:
        for candidate in missing:
            pool.submit(candidate, partial(end, candidate))
        for _ in missing:
            yield _kept(*ended.get())
    finally:
        pool.stop()


def _kept(candidate: Candidate, compiled: Compiled) -> tuple[Candidate, Compiled]:
    """As it is, unless the kernel was compiled and is not there, as where the disk is full."""
    assert candidate.schedule is not None
    if compiled.status == "ok" and not is_finished(candidate.schedule, candidate.variant):
        folder = toolchain.cache_folder()
        return candidate, Compiled(status="compile_error", error=f"it could not be kept in {folder}, {ANOTHER}")
    return candidate, compiled
