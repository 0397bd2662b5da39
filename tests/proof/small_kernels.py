"""Makes small kernels in the form of generated ones, for tests of how generated kernels are read and run."""

from collections.abc import Iterable

import numpy as np

from tl_attention.codeproof.read.calls import CALLS
from tl_attention.codeproof.read.text import Kernel, read
from tl_attention.codeproof.run.run import Observation, Run
from tl_attention.codeproof.run.threads import Threads

WHOLE = 1 << 62


def kernel(body: str, sizes: Iterable[str] = ("n", "m")) -> Kernel:
    """Makes a kernel with this body, which takes these integers."""
    given = ", ".join(f"int {size}" for size in sizes)
    signature = f'extern "C" __global__ void __launch_bounds__(64, 1) small({given}) {{'
    return read("\n".join([signature, body.strip("\n"), "}"]), CALLS)


def line_of(body: str, text: str) -> int:
    """Returns the number, from 0, of the only line with this text in a kernel with this body."""
    (found,) = [number for number, line in enumerate(body.strip("\n").splitlines(), 1) if text in line]
    return found


def ran(body: str, tiles: int = WHOLE, blocks: int = 1, ys: int = 1, warps: int = 2, **names: int) -> Run:
    """Runs a kernel with this body by all threads of some blocks of one cluster."""
    small = kernel(body, names or ("unused",))
    threads = Threads(np.arange(blocks), ys, tuple(range(warps)))
    found = Run(small, threads, names, tiles, blocks)
    found.go()
    return found


def synced(run: Run) -> list[tuple[int, list[int]]]:
    """Returns (named barrier, threads) of each sync; all threads of a sync have one barrier."""
    return [(seen.values["index"], seen.threads.tolist()) for seen in _syncs(run)]


def _syncs(run: Run) -> list[Observation]:
    return [seen for seen in run.seen if seen.kind == "sync"]


def barriers(run: Run, thread: int) -> list[int]:
    """Returns the named barriers that one thread syncs on, in order."""
    found = []
    for seen in _syncs(run):
        here = np.flatnonzero(seen.threads == thread)
        if len(here):
            found.append(int(np.broadcast_to(seen.values["index"], seen.threads.shape)[here[0]]))
    return found
