"""The spawned side of an evaluation: `import_once` and `run_test` each run in a fresh process of their own.

The parent never executes a submission. Results travel back as dicts of plain values, since this package is out of
reach in a process that has imported one.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tl_attention.leaderboard.contract import TestLine
from tl_attention.leaderboard.stop_rule import Timing, stop_reason, summarize

MIB = 2**20


@dataclass(frozen=True)
class Plan:
    """What a process is to do.

    `folder` is the absolute path of the folder that holds submission.py, `log` the name of the file there that takes
    what the process prints, `device` cuda or cpu, `mode` test or benchmark, `max_repeats` the most runs to time.
    """

    folder: str
    log: str
    device: str
    mode: str
    max_repeats: int


def import_once(plan: Plan) -> dict:
    """The first of the two imports, as in the server's parent process, where sys.stdout is a file.

    Returns status, reason and `environment`: the GPU's name and versions; status is "no device" without the GPU.
    """
    _enter(plan)
    import torch

    cuda = torch.cuda.is_available()
    device_name = torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine()
    environment = {"device_name": device_name, "python": platform.python_version()}
    environment |= {package: _version(package) for package in ("torch", "triton", "tilelang")}
    if plan.device == "cuda" and not cuda:
        return {"status": "no device", "reason": "torch sees no CUDA GPU", "environment": environment}

    def imported() -> dict:
        _import_submission()
        return {"status": "pass", "reason": ""}

    return _guarded(imported) | {"environment": environment}


def run_test(plan: Plan, line: TestLine) -> dict:
    """The second import, with sys.stdout None, and one test.

    Returns status and reason, and, where the submission returned, the fields of Comparison, kept_mib and timing.
    """
    _enter(plan)
    sys.stdout = None
    return _guarded(lambda: _test(plan, line))


def group_file(folder: Path, log: str) -> Path:
    """Where a process leaves the id of its process group, so that the parent can end what the submission started."""
    return folder / f"{log}.group"


def _enter(plan: Plan) -> None:
    os.setpgrp()
    group_file(Path(plan.folder), plan.log).write_text(str(os.getpgrp()), encoding="ascii")
    os.chdir(plan.folder)
    sys.path.insert(0, plan.folder)
    log = os.open(plan.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    # By descriptor: compilers and C libraries print there too.
    for descriptor in (1, 2):
        os.dup2(log, descriptor)


def _guarded(function: Callable[[], dict]) -> dict:
    """Run a function; an exception becomes a status, and its traceback goes to the log."""
    try:
        return function()
    # SystemExit included: a submission that leaves is a row of the table, with the reason.
    except BaseException as error:
        traceback.print_exc()
        message = " ".join(str(error).split())
        return {"status": "error", "reason": f"{type(error).__name__}: {message}"[:300]}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _import_submission() -> Callable:
    # The servers do not have this package, so an import of it fails here as it does there.
    for name in [name for name in sys.modules if name.split(".")[0] == "tl_attention"] + ["tl_attention"]:
        sys.modules[name] = None
    kernel = getattr(importlib.import_module("submission"), "custom_kernel", None)
    if not callable(kernel):
        raise TypeError("submission.py defines no custom_kernel that can be called")
    return kernel


def _test(plan: Plan, line: TestLine) -> dict:
    import torch

    from tl_attention.leaderboard import reference, utils

    on_gpu = plan.device == "cuda"

    def fresh(seed: int) -> tuple:
        return reference.generate_input(**asdict(line) | {"seed": seed}, device=plan.device)

    def checked_call(seed: int) -> tuple[reference.Comparison, float | None]:
        """One call, checked against inputs drawn anew, which the submission has not touched; and kept_mib."""
        utils.poison_like(data[0])
        before = torch.cuda.memory_allocated() if on_gpu else 0
        output = kernel(data)
        utils.synchronize(plan.device)
        kept_mib = None
        if on_gpu and isinstance(output, torch.Tensor):
            own = output.numel() * output.element_size()
            kept_mib = (torch.cuda.memory_allocated() - before - own) / MIB
        return reference.compare(fresh(seed), output), kept_mib

    kernel = _import_submission()
    data = fresh(line.seed)
    first, kept_mib = checked_call(line.seed)
    found = asdict(first) | {"kept_mib": kept_mib, "status": "pass" if first.accepted else "wrong"}
    if not first.accepted:
        return found
    if plan.mode == "benchmark":
        found["timing"] = asdict(_time_calls(kernel, data, plan.device, plan.max_repeats, utils))

    # Other inputs at the same addresses: what recognises inputs by address, or replays an output, is wrong now.
    for tensor, other in zip(data, fresh(line.seed + 1), strict=True):
        tensor.copy_(other)
    second, _ = checked_call(line.seed + 1)
    if not second.accepted:
        reason = f"right at first, wrong for other inputs at the same addresses: {second.reason}"
        return found | asdict(second) | {"status": "wrong", "reason": reason, "timing": None}
    return found | {
        "tight": first.tight and second.tight,
        "max_abs_error": max(first.max_abs_error, second.max_abs_error),
        "reason": first.reason or second.reason,
    }


def _time_calls(kernel: Callable, data: tuple, device: str, max_repeats: int, utils) -> Timing:
    """The contract's timing: {synchronise, clear L2, event, call, event} until the stop rule holds."""
    once = _once_by_events if device == "cuda" else _once_by_clock
    clear_l2 = utils.l2_clearer(device)
    samples_ms: list[float] = []
    started = time.perf_counter()
    stopped_by = ""
    while not stopped_by:
        utils.synchronize(device)
        clear_l2()
        samples_ms.append(once(kernel, data))
        stopped_by = stop_reason(samples_ms, time.perf_counter() - started, max_repeats)
    method = "cuda, events, L2 cleared" if device == "cuda" else "cpu, perf_counter"
    return summarize(samples_ms, stopped_by=stopped_by, method=method)


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
