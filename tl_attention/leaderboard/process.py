"""A submission's process: started with a plan, limited in time, killed with its group, and heard at its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tl_attention.errors import printable
from tl_attention.leaderboard.results import Outcome
from tl_attention.leaderboard.stop_rule import MAX_REPEATS
from tl_attention.schedule.key_errors import first_error
from tl_attention.schedule.key_words import dotted

LOG_BYTES = 4000
MESSAGE_BYTES = 65_536


class Message(BaseModel):
    """What a submission's process says of itself. The submission can forge it, so nothing here is a verdict."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    error: Annotated[str, Field(max_length=300)]
    samples_ms: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(max_length=MAX_REPEATS)] = ()
    elapsed_s: Annotated[float, Field(ge=0)] = 0.0


def run(folder: Path, plan: Mapping[str, Any], timeout_s: float) -> tuple[Outcome, Message]:
    """Run worker.py of the folder in a session of its own, and kill its process group at the end, whatever the end is.

    The status "pass" says that the process did what it was asked; with any other the message has an error. Log and
    message are files without names: the submission cannot swap them for a pipe, nor keep the reader waiting.
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
            reason = one_line(f"its process cannot be started: {error}")
            return Outcome("crash", reason, 0.0), Message(error=reason)
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout_s)
            ended, seconds = process.returncode is not None, time.monotonic() - started
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        data = os.pread(said.fileno(), MESSAGE_BYTES + 1, 0)
        start = max(0, os.fstat(log.fileno()).st_size - LOG_BYTES)
        printed = os.pread(log.fileno(), LOG_BYTES, start).decode(errors="replace").strip()
    if not ended:
        reason = f"killed at the limit of {timeout_s:g} s, start and compilation included"
        return Outcome("timeout", reason, seconds, printed), Message(error=reason)
    if not data:
        reason = one_line(": ".join([f"exit code {process.returncode}", *printed.splitlines()[-1:]]))
        return Outcome("crash", reason, seconds, printed), Message(error=reason)
    message = read_message(data)
    return Outcome("error" if message.error else "pass", message.error, seconds, printed), message


def one_line(text: str) -> str:
    """The text as one printable line of at most 300 characters, as line protocols and terminals need it."""
    return printable(" ".join(text.split()))[:300]


def read_message(data: bytes) -> Message:
    """The message that a process left, or one with the error that there is no valid message."""
    try:
        if len(data) > MESSAGE_BYTES:
            raise ValueError(f"over {MESSAGE_BYTES:,} bytes")
        message = Message.model_validate_json(data)
        return message.model_copy(update={"error": one_line(message.error)})
    except ValueError as error:
        key, found = first_error(error)
        return Message(error=one_line(f"no valid message from the process: {dotted(key)}{found}"))
