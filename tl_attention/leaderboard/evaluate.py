"""Run a submission under the contract of the class leaderboard; the file itself is executed in child processes only."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from pebble import ProcessExpired, ProcessPool

from tl_attention.errors import InputError
from tl_attention.leaderboard.contract import TestLine, violations
from tl_attention.leaderboard.results import Evaluation, Outcome, Row
from tl_attention.leaderboard.stop_rule import MAX_REPEATS, Timing
from tl_attention.leaderboard.worker import Plan, group_file, import_once, run_test

MODES = ("test", "benchmark")
DEVICES = ("cuda", "cpu")
TEST_TIMEOUT_S = 30.0
IMPORT_TIMEOUT_S = 120.0
SERVER_FILES = ("task.py", "utils.py", "reference.py")
LOG_CHARACTERS = 4000


def evaluate(
    submission: Path,
    lines: Sequence[TestLine],
    *,
    mode: str = "benchmark",
    device: str = "cuda",
    timeout_s: float = TEST_TIMEOUT_S,
    import_timeout_s: float = IMPORT_TIMEOUT_S,
    max_repeats: int = MAX_REPEATS,
) -> Evaluation:
    """Import a submission twice and run each test line in a fresh process, as the leaderboard does.

    A time-out, a crash, an exception and a wrong output are rows with a status and a reason. The rules that the file
    breaks (`Evaluation.violations`) are reported beside the rows, and do not keep the file from running.

    Args:
        submission: the file, copied as submission.py into a folder with task.py, utils.py and reference.py.
        lines: the tests, run one after another.
        mode: "test" checks; "benchmark" checks and times.
        device: "cuda", or "cpu" for tests of the harness itself.
        timeout_s: limit of one test in seconds: start, import, compilation, checks and timing together.
        import_timeout_s: limit of the first import in seconds.
        max_repeats: the most runs that are timed.

    Raises:
        InputError: an unknown mode or device, no test lines, a file that cannot be read, or no GPU for "cuda".
    """
    _check(mode, device, lines)
    try:
        source = submission.read_bytes()
    except OSError as error:
        raise InputError(f"{submission}: cannot be read, expected a submission file: {error.strerror}") from None

    with tempfile.TemporaryDirectory(prefix="leaderboard-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "submission.py").write_bytes(source)
        for server_file in SERVER_FILES:
            shutil.copyfile(Path(__file__).with_name(server_file), folder / server_file)
        plan = Plan(folder=name, log="import.log", device=device, mode=mode, max_repeats=max_repeats)
        parent_import, found = _call(import_once, plan, timeout_s=import_timeout_s)
        if parent_import.status == "no device":
            raise InputError("device 'cuda': torch sees no CUDA GPU, expected one; device 'cpu' tests the harness only")
        rows = []
        for number, line in enumerate(lines):
            if parent_import.status == "pass":
                log = f"test.{number}.log"
                rows.append(_row(line, *_call(run_test, replace(plan, log=log), line, timeout_s=timeout_s)))
            else:
                reason = f"the import in the parent process failed: {parent_import.reason}"
                rows.append(Row(line, Outcome("not run", reason, 0.0)))

    return Evaluation(
        submission=submission.name,
        sha256=hashlib.sha256(source).hexdigest(),
        mode=mode,
        device=device,
        environment=found.get("environment", {}),
        violations=tuple(violations(source)),
        parent_import=parent_import,
        rows=tuple(rows),
    )


def _check(mode: str, device: str, lines: Sequence[TestLine]) -> None:
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is unknown, expected one of {', '.join(MODES)}")
    if device not in DEVICES:
        raise InputError(f"device {device!r} is unknown, expected one of {', '.join(DEVICES)}")
    if not lines:
        raise InputError("no test lines, expected at least one")


def _call(function: Callable[..., dict], plan: Plan, *arguments: object, timeout_s: float) -> tuple[Outcome, dict]:
    """Run a function of the worker in a spawned process, and end all that it started.

    Returns how it ended, and what it returned ({} when it did not return).
    """
    started = time.monotonic()
    found: dict = {}
    pool = ProcessPool(max_workers=1, max_tasks=1, context=get_context("spawn"))
    try:
        # The limit is that of the waiting, not of the pool's task, whose clock starts only when the process is up.
        found = pool.schedule(function, args=(plan, *arguments)).result(timeout_s)
        status, reason = found["status"], found["reason"]
    except FutureTimeout:
        status, reason = "timeout", f"killed at the limit of {timeout_s:g} s, start and compilation included"
    except ProcessExpired as error:
        status, reason = "crash", _exit_reason(error.exitcode)
    finally:
        _end_group(plan)
        pool.stop()
        pool.join()
    log = _log_tail(plan)
    if status == "crash" and log:
        reason = f"{reason}: {log.splitlines()[-1]}"
    return Outcome(status, reason, time.monotonic() - started, log), found


def _row(line: TestLine, outcome: Outcome, found: dict) -> Row:
    timing = found.get("timing")
    return Row(
        line=line,
        outcome=outcome,
        accepted=found.get("accepted", False),
        tight=found.get("tight", False),
        max_abs_error=found.get("max_abs_error"),
        kept_mib=found.get("kept_mib"),
        timing=Timing(**timing) if timing else None,
    )


def _exit_reason(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"killed by {signal.Signals(-exitcode).name}"
    return f"exit code {exitcode}"


def _end_group(plan: Plan) -> None:
    """Kill what the process left behind, a compiler for instance, which would disturb the next test."""
    try:
        os.killpg(int(group_file(Path(plan.folder), plan.log).read_text(encoding="ascii")), signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        # It ended before it could write the file, or nothing is left.
        pass


def _log_tail(plan: Plan) -> str:
    try:
        text = (Path(plan.folder) / plan.log).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return text[-LOG_CHARACTERS:].strip()
