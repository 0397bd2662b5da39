"""The spawned side of an evaluation: each function here runs in a fresh process, inside the folder of the submission.

The parent never executes a submission. Results travel back as dicts of plain values, since this package is out of a
submission's reach by then.
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
from tl_attention.leaderboard.stop_rule import stop_reason, summarize

MIB = 2**20
METHODS = {"cuda": "cuda, events, L2 cleared", "cpu": "cpu, perf_counter"}


@dataclass(frozen=True)
class Plan:
    """What a process is to do: `folder` holds the submission, `log` names the file for what it prints."""

    folder: str
    log: str
    device: str
    mode: str = "test"
    max_repeats: int = 100


def import_once(plan: Plan) -> dict:
    """The first of the two imports, as in the server's parent process: its sys.stdout is a file."""
    return _guarded(plan, _import_and_describe)


def run_test(plan: Plan, line: TestLine) -> dict:
    """The second import, with sys.stdout None, and one test."""

    def test(plan: Plan) -> dict:
        sys.stdout = None
        return _test(plan, line)

    return _guarded(plan, test)


def group_file(folder: Path, log: str) -> Path:
    """Where a process writes the id of its process group, for the parent to end what the submission started."""
    return folder / f"{log}.group"


def _guarded(plan: Plan, function: Callable[[Plan], dict]) -> dict:
    """Run a function in the folder of the submission; an exception becomes a status, its traceback goes to the log."""
    _enter(plan)
    try:
        return function(plan)
    # A submission that calls sys.exit or raises anything else is a row of the table, not an end of this process.
    except BaseException as error:
        traceback.print_exc()
        message = " ".join(str(error).split())
        return {"status": "error", "reason": f"{type(error).__name__}: {message}"[:300]}


def _enter(plan: Plan) -> None:
    os.setpgrp()
    group_file(Path(plan.folder), plan.log).write_text(str(os.getpgrp()), encoding="ascii")
    os.chdir(plan.folder)
    sys.path.insert(0, plan.folder)
    log = os.open(plan.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    # By descriptor: compilers and C libraries print there too.
    for descriptor in (1, 2):
        os.dup2(log, descriptor)


def _import_submission() -> Callable:
    # The servers do not have this package, so an import of it fails here as it does there.
    sys.modules["tl_attention"] = None
    kernel = getattr(importlib.import_module("submission"), "custom_kernel", None)
    if not callable(kernel):
        raise TypeError("submission.py defines no custom_kernel that can be called")
    return kernel


def _import_and_describe(plan: Plan) -> dict:
    import torch

    cuda = torch.cuda.is_available()
    environment = {
        "device_name": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "python": platform.python_version(),
    }
    for package in ("torch", "triton", "tilelang"):
        try:
            environment[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            environment[package] = "none"
    if plan.device == "cuda" and not cuda:
        return {"status": "no device", "reason": "torch sees no CUDA GPU", "environment": environment}
    try:
        _import_submission()
    except BaseException as error:
        error.environment = environment
        raise
    return {"status": "pass", "reason": "", "environment": environment}


def _test(plan: Plan, line: TestLine) -> dict:
    from tl_attention.leaderboard import reference, utils

    def fresh(seed: int) -> tuple:
        return reference.generate_input(**asdict(line) | {"seed": seed}, device=plan.device)

    kernel = _import_submission()
    data = fresh(line.seed)
    found, kept = _checked_call(kernel, data, lambda: fresh(line.seed), plan.device)
    result = asdict(found) | {"kept_mib": kept, "status": "pass" if found.accepted else "wrong"}
    if not found.accepted:
        return result
    if plan.mode == "benchmark":
        result["timing"] = asdict(time_calls(kernel, data, plan.device, plan.max_repeats))

    # Other inputs at the same addresses: whatever recognised its inputs by address, or replayed, is wrong now.
    for tensor, other in zip(data, fresh(line.seed + 1), strict=True):
        tensor.copy_(other)
    again, _ = _checked_call(kernel, data, lambda: fresh(line.seed + 1), plan.device)
    if not again.accepted:
        reason = f"right at first, wrong for other inputs at the same addresses: {again.reason}"
        return asdict(again) | {"status": "wrong", "reason": reason, "kept_mib": kept}
    return result
