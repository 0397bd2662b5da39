"""`measure` profiles kernels: it compiles all, then runs each once under ncu in one process, and reads the counters.

`python -m tl_attention.lab.measure.profile JOBS` is the process that ncu profiles.
"""

from __future__ import annotations

import pickle
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tl_attention.compiler.scratch import scratch_file
from tl_attention.errors import InputError
from tl_attention.lab.measure.candidate import Candidate, tiling_of
from tl_attention.lab.measure.compilation import compile_all
from tl_attention.lab.measure.counters import DURATION, METHOD, SECTOR_BYTES, Ncu, split_by_job
from tl_attention.lab.measure.machine import gpu_fields
from tl_attention.lab.measure.records import Measured, SizesKnown, problem_of
from tl_attention.lab.measure.traffic import Tiling
from tl_attention.program.planned import Planned
from tl_attention.schedule.schedule import Schedule

if TYPE_CHECKING:
    # Imports torch, which a record and the theory need not.
    from tl_attention.lab.measure.trials import Progress


@dataclass(frozen=True)
class ProfileRow(Measured):
    """A `ProfileRow` records what ncu counted for one kernel on one problem."""

    name: str
    label: str
    sizes: SizesKnown
    problem: dict[str, Any]
    kernel: str = ""  # its name in the generated code; of several that a peer launches, the one that took longest
    launches: int = 0
    # In base units: ns, bytes, sectors, cycles, percent. A row without metrics has only what theory says.
    metrics: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_candidate(cls, candidate: Candidate, **fields: Any) -> ProfileRow:
        """Makes the row of a candidate, with its name, label, sizes and problem and these other fields."""
        return cls(candidate.name, candidate.label, candidate.sizes, problem_of(candidate.shape), **fields)

    def check(self) -> None:
        if self.sizes != "peer":
            Schedule.from_label(self.label)

    @cached_property
    def tiling(self) -> Tiling | None:
        """Returns how the kernel of the row's label cuts the problem into tiles, None for a peer."""
        return None if self.sizes == "peer" else tiling_of(Planned(Schedule.from_label(self.label)))

    def bytes_of(self, metric: str) -> float | None:
        """Returns a counter's value in bytes, converted if it counts sectors; None if it was not counted."""
        value = self.metrics.get(metric)
        return value if value is None or "sectors" not in metric else value * SECTOR_BYTES


def is_profile(values: Mapping[str, Any]) -> bool:
    """Says whether the object of a line of results has the key `metrics`, as what ncu counted has."""
    return "metrics" in values


# The kernel of torch.cuda._sleep, launched before each job: a peer may launch any number of kernels.
MARKER = "spin_kernel"


def main(path: str) -> None:
    """Runs each candidate of a file of pickled (candidates, seed) once, with the CUDA profiler on."""
    import torch

    from tl_attention.lab.measure import gpu_worker

    candidates, seed = pickle.loads(Path(path).read_bytes())
    for candidate in candidates:
        gpu_worker.load(candidate, seed)
    torch.cuda.profiler.start()
    for candidate in candidates:
        torch.cuda._sleep(1)
        gpu_worker.call(candidate)
    torch.cuda.profiler.stop()


# ncu runs a kernel once for each of its passes, and saves and restores gigabytes around each.
START_TIMEOUT_S, JOB_TIMEOUT_S = 120.0, 60.0


def measure(
    candidates: Sequence[Candidate],
    record: Callable[[ProfileRow], object],
    progress: Progress,
    *,
    seed: int | None = None,
) -> list[ProfileRow]:
    """Compiles the candidates, runs each under ncu, and returns a row of counters for each.

    All rows are recorded when ncu has counted all. Raises InputError where there is no known GPU, no ncu, no nvcc, or a
    kernel that cannot be compiled; where ncu may not read the counters, fails, or takes too long.
    """
    # Asked before minutes of compiling.
    common, ncu = gpu_fields("profile"), Ncu()
    seed = secrets.randbelow(2**31) if seed is None else seed
    metrics = ncu.known_metrics()
    _compile(candidates, progress)
    progress.phase("profile", len(candidates))
    limit = START_TIMEOUT_S + JOB_TIMEOUT_S * len(candidates)
    with scratch_file("jobs", pickle.dumps((candidates, seed))) as jobs:
        launches = ncu.profile([sys.executable, "-m", __name__, str(jobs)], metrics, limit)
    common |= {"versions": {**common["versions"], "ncu": ncu.version()}, "seed": seed, "method": METHOD}
    rows = []
    for candidate, of_job in zip(candidates, split_by_job(launches, MARKER, len(candidates))):
        longest = max(of_job, key=lambda launch: launch.metrics.get(DURATION, 0))
        counted = {"kernel": longest.kernel, "launches": len(of_job), "metrics": longest.metrics}
        rows.append(ProfileRow.from_candidate(candidate, **counted, **common))
        record(rows[-1])
        progress.advance(str(candidate))
    return rows


def _compile(candidates: Sequence[Candidate], progress: Progress) -> None:
    """Compiles the candidates that are no peers into the store, from which the process under ncu takes the kernels."""
    ours = [candidate for candidate in candidates if candidate.schedule]
    progress.phase("compile", len(ours))
    for candidate, compiled in compile_all(ours).items():
        if compiled.error:
            raise InputError(f"{candidate}: {compiled.status}: {compiled.error}")
        progress.advance(str(candidate))


if __name__ == "__main__":
    main(sys.argv[1])
