"""NVIDIA's ncu counts how busy the tensor pipe is while a traced kernel runs: a witness for what the marks say.

`python -m tl_attention.lab.trace.counted JOB` is the process that ncu profiles.
"""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from pathlib import Path

from tl_attention.compiler.scratch import scratch_file
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.counters import TENSOR_PIPE, Ncu
from tl_attention.lab.trace.about import Counted
from tl_attention.lab.trace.recording import Traced, record, values_of
from tl_attention.lab.trace.timeline import Timeline, Window

TIMEOUT_S = 180.0


def record_and_count(candidate: Candidate, kinds: frozenset[str], window: Window, seed: int | None = None) -> Timeline:
    """Records a timeline as `record` does, and has ncu count one launch of the same kernel with marks.

    `about.ncu` says in how many percent of their active cycles the SMs' tensor pipes were busy. Raises InputError where
    there is no ncu, or it fails, and as `record` does.
    """
    ncu = Ncu()
    found = record(candidate, kinds, window, seed)
    with scratch_file("job", pickle.dumps((candidate, kinds, window, found.about.seed))) as job:
        (launch,) = ncu.profile([sys.executable, "-m", __name__, str(job)], [TENSOR_PIPE], TIMEOUT_S)
    counted = Counted(TENSOR_PIPE, launch.metrics[TENSOR_PIPE], ncu.version())
    return replace(found, about=replace(found.about, ncu=counted))


def main(path: str) -> None:
    """Runs the traced kernel of a file's pickled (candidate, kinds, window, seed) twice, the second time profiled."""
    import torch

    candidate, kinds, window, seed = pickle.loads(Path(path).read_bytes())
    traced, values = Traced(candidate, kinds), values_of(candidate, seed)
    traced.timeline(window, values)
    torch.cuda.profiler.start()
    traced.kernel(**values, Trace=traced.buffer)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(sys.argv[1])
