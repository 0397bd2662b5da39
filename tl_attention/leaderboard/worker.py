"""This script runs a submission in a process of its own. It stands beside the submission, as the servers' eval.py does.

Nothing else of this package is in the process. The script writes the outputs' bytes to files, which evaluate.py checks,
and one JSON message to the descriptor that its plan names.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Writing a buffer of several times the cache's size leaves nothing of the last call in it.
L2_MULTIPLE = 4
# The stop rule.
MAX_REPEATS = 100
# The public harness looks at its samples from the third on.
MIN_REPEATS = 3
MAX_RELATIVE_ERROR = 0.001
MAX_RUNS_MS = 10_000.0
MAX_ELAPSED_S = 120.0
FOLDER = str(Path(__file__).parent)


def main() -> None:
    """Imports the submission, tests it if the plan in the first argument has a line, reports, and exits.

    The report goes to the descriptor that the plan names.
    """
    plan = json.loads(sys.argv.pop(1))
    os.set_inheritable(plan["message"], False)
    if FOLDER not in sys.path:
        # Python's option -P and PYTHONSAFEPATH leave this folder out.
        sys.path.insert(0, FOLDER)
    # The servers do not have this package, so an import of it fails here as it does there.
    sys.modules["tl_attention"] = None  # type: ignore[assignment]  # None is how an import is forbidden
    message: dict[str, Any] = {"error": ""}
    try:
        if plan["line"]:
            sys.stdout = None
        import submission

        if not callable(getattr(submission, "custom_kernel", None)):
            raise TypeError("submission.py defines no custom_kernel that can be called")
        message |= _test(submission.custom_kernel, **plan) if plan["line"] else {}
    # SystemExit included: a submission that leaves is a row of the table, with the reason.
    except BaseException as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}".encode(errors="replace").decode()
        message = {"error": " ".join(text.split())[:300]}
    for file in filter(None, (sys.stdout, sys.stderr)):
        file.flush()
    os.write(plan["message"], json.dumps(message).encode())
    # What the submission would do at exit does not count.
    os._exit(0)


def _test(kernel: Callable, line: dict, outputs: list[str], device: str, mode: str, **_: object) -> dict[str, Any]:
    """Calls the submission on inputs of two seeds, writes both outputs to files and, for "benchmark", times calls."""
    import reference

    data = reference.generate_input(**line, device=device)
    _call(kernel, data, outputs[0])
    timed = _time_calls(kernel, data) if mode == "benchmark" else {}
    # Other inputs at the same addresses: what recognises inputs by address, or replays an output, is wrong now.
    for tensor, other in zip(data, reference.generate_input(**line | {"seed": line["seed"] + 1}, device=device)):
        tensor.copy_(other)
    _call(kernel, data, outputs[1])
    return timed


def _call(kernel: Callable, data: tuple, path: str) -> None:
    """Calls the submission once, checks its output's shape, dtype and device, and writes the output to a file.

    Raises TypeError for another output.
    """
    import torch

    # The allocator hands this memory out next, so values that are never written do not look right.
    torch.full_like(data[0], float("nan"))
    output = kernel(data)
    if not isinstance(output, torch.Tensor):
        raise TypeError(f"custom_kernel returned {type(output).__name__}, expected a tensor")
    for name in ("shape", "dtype", "device"):
        found, expected = getattr(output, name), getattr(data[0], name)
        if found != expected:
            raise TypeError(f"the output's {name} is {found}, expected {expected}")
    output.detach().cpu().contiguous().numpy().tofile(path)


def _time_calls(kernel: Callable, data: tuple) -> dict[str, Any]:
    """Times calls of the submission until the contract's stop rule holds, and returns times and elapsed seconds.

    On a GPU each time is {synchronise, clear L2, event, call, event}.
    """
    import torch

    if data[0].is_cuda:
        size = L2_MULTIPLE * torch.cuda.get_device_properties(data[0].device).L2_cache_size
        cache = torch.empty(size, dtype=torch.uint8, device=data[0].device)
    samples_ms: list[float] = []
    started = time.perf_counter()
    while not stop_reason(samples_ms, elapsed_s := time.perf_counter() - started):
        if data[0].is_cuda:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            cache.zero_()
            begin.record()
            # Held to the end, so that its memory is not freed in the time that counts.
            output = kernel(data)
            end.record()
            end.synchronize()
            del output
            samples_ms.append(begin.elapsed_time(end))
        else:
            called = time.perf_counter()
            kernel(data)
            samples_ms.append((time.perf_counter() - called) * 1e3)
    return {"samples_ms": samples_ms, "elapsed_s": elapsed_s}


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
    if statistics.stdev(samples_ms) / math.sqrt(n) < MAX_RELATIVE_ERROR * mean:
        return f"err/mean < {MAX_RELATIVE_ERROR}"
    if mean * n > MAX_RUNS_MS:
        return f"mean x runs > {MAX_RUNS_MS / 1000:.0f} s"
    return f"{MAX_ELAPSED_S:.0f} s have gone" if elapsed_s > MAX_ELAPSED_S else ""


# Processes that the submission spawns load this file again.
if __name__ == "__main__":
    main()
