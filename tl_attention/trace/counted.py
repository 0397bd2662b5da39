"""NVIDIA's ncu counts how busy the tensor pipe is while a traced kernel runs: a witness for what the marks say.

`python -m tl_attention.trace.counted JOB` is the process that ncu profiles.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

from tl_attention.measure.candidate import Candidate
from tl_attention.measure.counters import Ncu
from tl_attention.trace.timeline import Window

TENSOR_PIPE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
TIMEOUT_S = 180.0


def count(ncu: Ncu, candidate: Candidate, kinds: frozenset[str], window: Window, seed: int) -> dict[str, Any]:
    """Returns what ncu counts for one launch of a candidate's kernel with marks of these kinds, compiled before.

    `percent` of the SMs' active cycles are those in which their tensor pipe was busy. Raises InputError where ncu fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        job.write_bytes(pickle.dumps((candidate, kinds, window, seed)))
        (launch,) = ncu.profile([sys.executable, "-m", __name__, str(job)], [TENSOR_PIPE], TIMEOUT_S)
    return {"counter": TENSOR_PIPE, "percent": launch.metrics[TENSOR_PIPE], "version": ncu.version()}


def main(path: str) -> None:
    """Runs the traced kernel of a file of pickled (candidate, kinds, window, seed), the second time with the profiler on."""
    import torch

    from tl_attention.trace.recording import Traced, values_of

    candidate, kinds, window, seed = pickle.loads(Path(path).read_bytes())
    traced, values = Traced(candidate, kinds), values_of(candidate, seed)
    traced.timeline(window, values)
    torch.cuda.profiler.start()
    traced.kernel(**values, Trace=traced.buffer)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(sys.argv[1])
