"""This module runs submissions under the contract of the class leaderboard, and checks their outputs.

A submission runs in processes of its own (worker.py), which write the outputs' bytes to files. This process draws the
inputs anew and compares these bytes with attention in fp64 (checked.py). So nothing of a submission is imported,
executed or unpickled outside its own processes. That is no sandbox: a submission runs as the same user and on its own
clock, so it could change other programs of that user, and report times that are not true.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tl_attention.compiler.scratch import as_input_error, scratch_folder
from tl_attention.errors import InputError, printable
from tl_attention.lab.leaderboard.contract import TestLine, read_device_code
from tl_attention.lab.leaderboard.message import Message
from tl_attention.lab.leaderboard.results import Evaluation, LineResult, Outcome, summarize
from tl_attention.lab.measure.machine import machine_text
from tl_attention.schedule.key_errors import first_error
from tl_attention.schedule.key_words import dotted

# templates/submission.py.in prints this line: it names the form in which a packed file runs.
WAY = re.compile(r"^submission: runs (\w{1,40})$", re.MULTILINE | re.ASCII)
METHODS = {"cuda": "cuda, events, L2 cleared", "cpu": "cpu, perf_counter"}
# What stands beside a submission on a server: an empty utils.py, this task.py, and the harness.
TASK = """\
import torch

input_t = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
output_t = torch.Tensor
"""
BESIDE = ("reference.py", "inputs.py", "outputs.py", "timed.py", "worker.py")
# At most so many bytes are read of what a process prints, and of its message.
LOG_BYTES, MESSAGE_BYTES = 4000, 65_536


def evaluate(
    name: str,
    source: bytes,
    lines: Sequence[TestLine],
    mode: str = "benchmark",
    device: str = "cuda",
    *,
    test_s: float = 30.0,
    import_s: float = 120.0,
) -> Evaluation:
    """Imports a submission, runs each test line in a fresh process as the leaderboard does, and returns the results.

    Each of these processes imports the submission again. The mode "test" checks outputs, "benchmark" times calls as
    well; the device "cpu" is for tests of the harness. `test_s` limits all of a test's process, from its start to the
    writing of outputs, `import_s` the first import. Whatever the submission does, each line is a row with a status and
    a reason. Temporary files hold three outputs, 0.5 GB each for the ranked test.
    Raises InputError for "cuda" where torch sees no GPU.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("torch sees no CUDA GPU, expected one; device 'cpu' tests the harness only")
    with scratch_folder() as folder:
        with as_input_error():
            for beside, content in {"submission.py": source, "utils.py": b"", "task.py": TASK.encode()}.items():
                (folder / beside).write_bytes(content)
            for beside in BESIDE:
                shutil.copyfile(Path(__file__).with_name(beside), folder / beside)
        imported, _ = run(folder, {"line": None}, import_s)
        if imported.status == "pass":
            rows = [_tested(folder, line, mode, device, test_s) for line in lines]
        else:
            not_run = Outcome("not run", f"the first import failed: {imported.reason}", 0.0)
            rows = [LineResult(line, not_run) for line in lines]
    sha256, packed = hashlib.sha256(source).hexdigest(), read_device_code(source)
    return Evaluation(name, sha256, mode, device, machine_text(device), imported, tuple(rows), packed)


def _tested(folder: Path, line: TestLine, mode: str, device: str, test_s: float) -> LineResult:
    """Tests one line: a process of its own imports again, calls and times; the outputs are checked here."""
    import torch

    from tl_attention.lab.leaderboard.checked import check

    with scratch_folder() as outputs:
        plan = {"line": asdict(line), "outputs": str(outputs), "device": device, "mode": mode}
        outcome, message = run(folder, plan, test_s)
        row = LineResult(line, outcome, way=["", *WAY.findall(outcome.log)][-1])
        if outcome.status != "pass":
            return row
        try:
            timing = None
            if mode == "benchmark":
                message.check()
                timing = summarize(message.samples_ms, message.elapsed_s, METHODS[device])
            verdict = check(outputs, line, device, message)
            # The next submission needs the memory.
            torch.cuda.empty_cache()
        except (OSError, ValueError, RuntimeError) as error:
            return replace(row, outcome=replace(outcome, status="error", reason=one_line(f"not judged: {error}")))
    status = "pass" if verdict["accepted"] else "wrong"
    outcome = replace(outcome, status=status, reason=verdict.pop("reason"))
    return replace(row, outcome=outcome, timing=timing if verdict["accepted"] else None, **verdict)


# --- a submission's process ------------------------------------------------------------------------------------------


def run(folder: Path, plan: Mapping[str, Any], timeout_s: float) -> tuple[Outcome, Message]:
    """Runs the folder's worker.py on a plan for `timeout_s` at most, and returns how it ended and its message.

    It runs in a session of its own, and its process group is always killed at the end. The status "pass" says that the
    process did its job; with any other status the message has an error. Log and message are files without names: the
    submission cannot keep their reader waiting.
    """
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as said:
        started = time.monotonic()
        command = [sys.executable, str(folder / "worker.py"), json.dumps({**plan, "message": said.fileno()})]
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        try:
            process = subprocess.Popen(
                command, cwd=folder, pass_fds=(said.fileno(),), start_new_session=True, **options
            )
        except OSError as error:
            # The submission removed its folder when it was imported.
            return _failed("crash", f"its process cannot be started: {error}")
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout_s)
            ended, seconds = process.returncode is not None, time.monotonic() - started
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        data = os.pread(said.fileno(), MESSAGE_BYTES, 0)
        start = max(0, os.fstat(log.fileno()).st_size - LOG_BYTES)
        printed = os.pread(log.fileno(), LOG_BYTES, start).decode(errors="replace").strip()
    if not ended:
        return _failed(
            "timeout", f"killed at the limit of {timeout_s:g} s, start and compilation included", seconds, printed
        )
    if not data:
        ending = ": ".join([f"exit code {process.returncode}", *printed.splitlines()[-1:]])
        return _failed("crash", ending, seconds, printed)
    try:
        message = Message.model_validate_json(data)
    except ValueError as error:
        key, found = first_error(error)
        message = Message(error=f"no valid message from the process: {dotted(key)}{found}")
    if message.error:
        return _failed("error", message.error, seconds, printed)
    return Outcome("pass", "", seconds, printed), message


def _failed(status: str, reason: str, seconds: float = 0.0, printed: str = "") -> tuple[Outcome, Message]:
    reason = one_line(reason)
    return Outcome(status, reason, seconds, printed), Message(error=reason)


def one_line(text: str) -> str:
    """Returns the text as one printable line of at most 300 characters, as line protocols and terminals need it."""
    return printable(" ".join(text.split()))[:300]
