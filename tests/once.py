"""Does work once in a run of the tests, for all of its processes: generated code, and the proof's verdict on the code.

The first process to ask does the work, under a lock, and keeps the result in the run's folder. Nothing outlives the
run.
"""

import fcntl
import functools
import hashlib
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import golden
from code_mutants import kernels, reading
from code_mutants.reading import Code, Verdict
from conftest import EXHAUSTIVE, SHARED

from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

Result = TypeVar("Result")


class Kernel(Protocol):
    """Code is generated of a kernel: a schedule and a variant."""

    @property
    def schedule(self) -> Schedule: ...

    @property
    def variant(self) -> Variant: ...


@dataclass(frozen=True)
class Given:
    """This kernel is given by any schedule and variant."""

    schedule: Schedule
    variant: Variant


@functools.cache
def lowered(kernel: Kernel) -> Code:
    """Returns the code that TileLang generates of a kernel, the same text as `compile_kernel` has.

    The text is read from the golden code. Only tests of `make test-all` may ask for a kernel that is not there.
    """
    name = golden.names().get((kernel.schedule, kernel.variant))
    if name is not None:
        return golden.code(name)
    assert EXHAUSTIVE in os.environ, f"{kernel.variant} of {kernel.schedule.label} is not in tests/golden_kernels.py"
    return shared("code", kernel, lambda: kernels.lowered(kernel))


@functools.cache
def proved(kernel: Kernel) -> Verdict:
    """Returns the proof's verdict on a kernel's generated code. Raises ScheduleRefused."""
    return shared("verdict", kernel, lambda: reading.prove(kernel.schedule, lowered(kernel)))


def shared(what: str, kernel: Kernel | None, make: Callable[[], Result]) -> Result:
    """Returns what `make` returns, of a kernel or of none, here or in the process that came first."""
    of = kernel and (kernel.schedule, kernel.variant)
    name = hashlib.sha256(repr((what, of)).encode()).hexdigest()
    file = Path(os.environ[SHARED], name)
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if file.exists():
            return pickle.loads(file.read_bytes())
        made = make()
        file.write_bytes(pickle.dumps(made))
        return made
