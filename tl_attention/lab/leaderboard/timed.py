"""This file times a submission's calls by the leaderboard's rule, and reads every output as soon as its call has ended.

It stands beside the submission. Torch is imported late, as the package takes the stop rule from here.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tl_attention.lab.leaderboard.inputs import Inputs
    from tl_attention.lab.leaderboard.outputs import Outputs

# Writing a buffer of several times the cache's size leaves nothing of the last call in it.
L2_MULTIPLE = 4
# The stop rule.
MAX_REPEATS = 100
# The public harness looks at its samples from the third on.
MIN_REPEATS = 3
MAX_RELATIVE_ERROR = 0.001
MAX_RUNS_MS = 10_000.0
MAX_ELAPSED_S = 120.0


class HostEvent:
    """A host event is a point in time on the CPU, with the methods of torch.cuda.Event that the timer calls."""

    def __init__(self, enable_timing: bool) -> None:
        self.seconds = 0.0

    def record(self) -> None:
        self.seconds = perf_counter()

    def elapsed_time(self, end: HostEvent) -> float:
        return (end.seconds - self.seconds) * 1e3


class Timer:
    """A timer times calls on one device."""

    def __init__(self, device: str) -> None:
        import torch

        # Taken before the submission is imported: what it puts in the places of these later is not called.
        self.clock, self.randrange = perf_counter, random.SystemRandom().randrange
        self.tensor = torch.Tensor
        self.copy, self.part, self.zero = torch.Tensor.copy_, torch.Tensor.__getitem__, torch.Tensor.zero_
        events: Any = torch.cuda.Event if device == "cuda" else HostEvent
        self.event = partial(events, enable_timing=True)
        self.record, self.elapsed_ms = events.record, events.elapsed_time
        self.synchronize: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None

    def time(self, kernel: Callable, inputs: Inputs, outputs: Outputs) -> tuple[dict[str, Any], Any]:
        """Times calls until the stop rule holds, and returns the message's part on them, and the rows that were read.

        A time is that of {synchronise, clear L2, event, call, event}. The inputs change before each call, and the host
        does not wait for that: keys change before L2 is cleared, a few queries after it. So nobody can compute ahead,
        and a call that runs on another stream without waiting for this one has old queries. After the second event the
        output's rows of these queries are read on the same stream, before the host waits for anything: what is not
        there by then is wrong or, where reading waits for it, late.

        `read_ms` has the times of reading, `wall_ms` the host's times from the call to an idle device. One output,
        which a random number picks, is held and copied as a whole.
        """
        like = inputs.data[0]
        rows = like.new_empty((MAX_REPEATS, *like[inputs.rows_from(0)].shape))
        clear = self._clearing(like)
        # For an output, the one that is held and its copy: no memory has to be found while a call is timed.
        outputs.poison(3)
        samples_ms: list[float] = []
        read_ms: list[float] = []
        wall_ms: list[float] = []
        changes: list[Sequence[int]] = []
        kept, read, started = -1, self.event(), self.clock()
        while not stop_reason(samples_ms, elapsed_s := self.clock() - started):
            n, change = len(samples_ms), inputs.draw(self.randrange)
            target, read_rows = rows[n], inputs.rows_from(change.row)
            begin, end = self.event(), self.event()
            self.synchronize()
            inputs.change_keys(change)
            clear()
            inputs.change_queries(change)
            called = self.clock()
            self.record(begin)
            output = kernel(inputs.data)
            self.record(end)
            # A subclass would compute here what it likes. Anything else waits until the rows are read.
            if type(output) is self.tensor:
                self.copy(target, self.part(output, read_rows))
            self.record(read)
            self.synchronize()
            wall_ms.append((self.clock() - called) * 1e3)
            outputs.check(output)
            samples_ms.append(self.elapsed_ms(begin, end))
            read_ms.append(self.elapsed_ms(end, read))
            changes.append(change)
            # The n-th call takes the place of the one that is held with a chance of 1 in n.
            if not self.randrange(n + 1):
                kept = n
                outputs.keep(output)
            # Nothing else holds it, so that its memory can be the next output's.
            del output
        times = {"samples_ms": samples_ms, "read_ms": read_ms, "wall_ms": wall_ms}
        return {**times, "elapsed_s": elapsed_s, "changes": changes, "kept": kept}, rows[: len(samples_ms)]

    def _clearing(self, like: Any) -> Callable[[], object]:
        """Returns a function that clears the L2 cache of the tensor's GPU, and does nothing on the CPU."""
        import torch

        if not like.is_cuda:
            return lambda: None
        size = L2_MULTIPLE * torch.cuda.get_device_properties(like.device).L2_cache_size
        return partial(self.zero, torch.empty(size, dtype=torch.uint8, device=like.device))


def stop_reason(samples_ms: Sequence[float], elapsed_s: float) -> str:
    """Returns why the contract stops timing after these runs, or "" while another run is due.

    `elapsed_s` counts from the start of the first run, clearing and synchronising included.
    """
    n = len(samples_ms)
    if n >= MAX_REPEATS:
        return f"{MAX_REPEATS} runs"
    if n < MIN_REPEATS:
        return ""
    mean = statistics.fmean(samples_ms)
    # A few microseconds, where statistics.stdev takes a tenth of a millisecond, in which a GPU cools down.
    deviation = math.sqrt(math.fsum((sample - mean) ** 2 for sample in samples_ms) / (n - 1))
    if deviation / math.sqrt(n) < MAX_RELATIVE_ERROR * mean:
        return f"err/mean < {MAX_RELATIVE_ERROR}"
    if mean * n > MAX_RUNS_MS:
        return f"mean x runs > {MAX_RUNS_MS / 1000:.0f} s"
    return f"{MAX_ELAPSED_S:.0f} s have gone" if elapsed_s > MAX_ELAPSED_S else ""
