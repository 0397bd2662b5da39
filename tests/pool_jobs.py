"""Calls for the worker process of test_pool.py; a spawned process imports them by name."""

import os
import signal
import time

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
