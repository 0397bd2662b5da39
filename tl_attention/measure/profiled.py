"""The process that ncu profiles: `python -m tl_attention.measure.profiled JOBS.json` runs each job once as a warm-up, and
then each once more between cudaProfilerStart and cudaProfilerStop, in their order."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tl_attention.measure.candidate import Candidate
from tl_attention.measure.records import problem_of, shape_of
from tl_attention.program.planned import Planned
from tl_attention.schedule.schedule import Schedule

# The kernel of torch.cuda._sleep, launched before each job: a peer may launch any number of kernels.
MARKER = "spin_kernel"


def written(candidates: Sequence[Candidate], seed: int) -> str:
    """The jobs as JSON."""
    jobs = [
        {
            "name": candidate.name,
            "label": candidate.schedule.label if candidate.schedule else None,
            "problem": problem_of(candidate.shape),
            "fixed": candidate.fixed,
        }
        for candidate in candidates
    ]
    return json.dumps({"seed": seed, "jobs": jobs})


def read(text: str) -> tuple[list[Candidate], int]:
    """(candidates, seed) of what `written` wrote, for the GPU at hand."""
    given = json.loads(text)
    candidates = [
        Candidate(
            job["name"],
            shape_of(job["problem"]),
            Planned(Schedule.from_label(job["label"])) if job["label"] else None,
            job["fixed"],
        )
        for job in given["jobs"]
    ]
    return candidates, given["seed"]


def main(path: str) -> None:
    """Run the jobs of a file."""
    import torch

    from tl_attention.measure import gpu_worker

    candidates, seed = read(Path(path).read_text())
    for candidate in candidates:
        gpu_worker.load(candidate, seed)
    torch.cuda.profiler.start()
    for candidate in candidates:
        torch.cuda._sleep(1)
        gpu_worker.call(candidate)
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(sys.argv[1])
