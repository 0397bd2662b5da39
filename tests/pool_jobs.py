"""The processes of other tests make these calls; a spawned process imports them by name."""

import os
import signal
import time
from pathlib import Path

from tl_attention.compiler import store
from tl_attention.compiler.store import Finished
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.compilation import Compiled

_calls = 0


def count() -> int:
    global _calls
    _calls += 1
    return _calls


def hang() -> None:
    time.sleep(600)


def exit_at_once() -> None:
    os._exit(7)


def segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def fail() -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more lines")


def compile_by_name(candidate: Candidate) -> Compiled:
    """For test_pool.py: the candidate's name says what becomes of it, and is its fingerprint."""
    {"hangs": hang, "dies": exit_at_once, "raises": fail}.get(candidate.name, count)()
    return Compiled(candidate.name)


def failed_reads(file: Path, kernel: Finished) -> int:
    """Counts failed reads for test_store.py. Before each read this process and others wrote the same kernel."""
    failed = 0
    for _ in range(300):
        store.keep(file, kernel)
        failed += store.read(file) != kernel
    return failed
