"""Runs a submission in a process of its own: a script, which stands beside it as the servers' eval.py does.

Nothing else of this package is in the process. What happened is told on a socket, as JSON of plain values
(messages.py), and the outputs' bytes go to files: the submission can forge either, so neither is believed. What the
outputs are worth is found elsewhere (check.py).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 2**20
FOLDER = str(Path(__file__).parent)


def main() -> None:
    """Do what the plan in the first argument says (trial.py): `line` null imports the submission, else tests it."""
    plan = json.loads(sys.argv.pop(1))
    os.set_inheritable(plan["channel"], False)
    if FOLDER not in sys.path:
        # Python's option -P and PYTHONSAFEPATH leave it out.
        sys.path.insert(0, FOLDER)
    # The servers do not have this package, so an import of it fails here as it does there.
    sys.modules["tl_attention"] = None  # type: ignore[assignment]  # None is how an import is forbidden
    with socket.socket(fileno=plan["channel"]) as channel:
        try:
            last = _test(plan, channel) if plan["line"] else _import_once()
        # SystemExit included: a submission that leaves is a row of the table, with the reason.
        except BaseException as error:
            traceback.print_exc()
            message = f"{type(error).__name__}: {error}".encode(errors="replace").decode()
            last = {"kind": "failed", "reason": " ".join(message.split())[:300]}
        for file in (sys.stdout, sys.stderr):
            if file is not None:
                # The process is killed once it has told its last.
                file.flush()
        _tell(channel, last)


def _tell(channel: socket.socket, message: dict) -> None:
    channel.send(json.dumps(message).encode())


def _import_once() -> dict:
    """The first of the two imports, as in the server's parent process, where sys.stdout is a file."""
    _imported()
    return {"kind": "imported"}


def _imported() -> Callable:
    import submission

    kernel = getattr(submission, "custom_kernel", None)
    if not callable(kernel):
        raise TypeError("submission.py defines no custom_kernel that can be called")
    return kernel


def _test(plan: dict, channel: socket.socket) -> dict:
    """The second import, with sys.stdout None, and one test."""
    import reference
    import torch
    import utils

    device, line = plan["device"], plan["line"]
    on_gpu = device == "cuda"
    sys.stdout = None
    kernel = _imported()
    data = reference.generate_input(**line, device=device)

    def call(path: str) -> dict:
        """One call, its output described and, where it is what was asked for, written to a file."""
        utils.poison_like(data[0])
        before = torch.cuda.memory_allocated() if on_gpu else 0
        output = kernel(data)
        utils.synchronize(device)
        told: dict[str, Any] = {
            "type": type(output).__name__[:80],
            "shape": [],
            "dtype": "",
            "device": "",
            "kept_mib": None,
        }
        if not isinstance(output, torch.Tensor):
            return told
        if on_gpu:
            own = output.numel() * output.element_size()
            told["kept_mib"] = (torch.cuda.memory_allocated() - before - own) / MIB
        told |= {"shape": list(output.shape), "dtype": str(output.dtype), "device": str(output.device)}
        if (output.shape, output.dtype, output.device) == (data[0].shape, data[0].dtype, data[0].device):
            output.detach().cpu().contiguous().numpy().tofile(path)
        return told

    first, second = plan["outputs"]
    _tell(channel, {"kind": "first", "output": call(first)})
    if not channel.recv(1):
        raise EOFError("nobody waits for the test's end")
    timed = _time_calls(kernel, data, device, plan["max_repeats"]) if plan["mode"] == "benchmark" else None
    # Other inputs at the same addresses: what recognises inputs by address, or replays an output, is wrong now.
    for tensor, other in zip(data, reference.generate_input(**line | {"seed": line["seed"] + 1}, device=device)):
        tensor.copy_(other)
    return {"kind": "second", "output": call(second), "timed": timed}


def _time_calls(kernel: Callable, data: tuple, device: str, max_repeats: int) -> dict:
    """The contract's timing: {synchronise, clear L2, event, call, event} until the stop rule holds."""
    import stop_rule
    import utils

    once = _once_by_events if device == "cuda" else _once_by_clock
    clear_l2 = utils.l2_clearer(device)
    samples_ms: list[float] = []
    started = time.perf_counter()
    while True:
        utils.synchronize(device)
        clear_l2()
        samples_ms.append(once(kernel, data))
        elapsed_s = time.perf_counter() - started
        if stop_rule.finished(samples_ms, elapsed_s, max_repeats):
            return {"samples_ms": samples_ms, "elapsed_s": elapsed_s}


def _once_by_events(kernel: Callable, data: tuple) -> float:
    """Milliseconds of one call between two events."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    output = kernel(data)
    end.record()
    end.synchronize()
    del output
    return begin.elapsed_time(end)


def _once_by_clock(kernel: Callable, data: tuple) -> float:
    """Milliseconds of one call on the CPU."""
    begin = time.perf_counter()
    kernel(data)
    return (time.perf_counter() - begin) * 1e3


# Processes that the submission spawns load this file again.
if __name__ == "__main__":
    main()
