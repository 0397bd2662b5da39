"""The parent's end of a submission's process: a plain subprocess that is started, heard, limited in time and killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tl_attention.leaderboard.messages import MAX_BYTES, Ended

POLL_S = 0.02
LOG_BYTES = 4000


class SubmissionProcess:
    """worker.py in `folder`, in a session of its own, without standard input; what it prints goes to a log.

    The log is a file without a name, and messages keep their bounds on the socket (SOCK_SEQPACKET): the submission
    can neither swap what is read here for something that blocks, nor let half a message wait. The limit starts with
    the process. As a context manager it kills the whole process group at the end.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by __exit__)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._hung_up = False
        self._paused_s = self._ended = 0.0
        self._started = time.monotonic()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(folder / "worker.py"), json.dumps({**plan, "channel": theirs.fileno()})],
                cwd=folder,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
            )

    def receive(self) -> bytes:
        """The next message. Raises Ended: the limit was reached, or the process died, or told more than it may."""
        while True:
            # Asked before the socket is: what it told before it left is still heard.
            exit_status = self._exit_status()
            left = self._timeout_s - self.seconds
            if left <= 0:
                reason = f"killed at the limit of {self._timeout_s:g} s, start and compilation included"
                raise Ended("timeout", reason)
            message = self._hear(0.0 if exit_status else min(left, POLL_S))
            if message:
                return message
            if exit_status:
                raise Ended("crash", ": ".join([exit_status, *self.log.splitlines()[-1:]]))

    def proceed(self) -> None:
        """Let the process go on after its first message. One that has gone is found by `receive`."""
        with suppress(OSError):
            self._channel.send(b"1", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What the parent does meanwhile does not count against the limit."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._paused_s += time.monotonic() - began

    @property
    def seconds(self) -> float:
        """Wall time since the start, until `end` if that was called, pauses left out."""
        return (self._ended or time.monotonic()) - self._started - self._paused_s

    @property
    def log(self) -> str:
        """The end of what the process and its children printed."""
        size = os.fstat(self._log.fileno()).st_size
        data = os.pread(self._log.fileno(), LOG_BYTES, max(0, size - LOG_BYTES))
        return data.decode("utf-8", errors="replace").strip()

    def end(self) -> None:
        """Kill the process group: what it left behind, a compiler for instance, would disturb the next test."""
        if self._ended:
            return
        # The leader is not yet waited for, so the number is still the group's.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._ended = time.monotonic()

    def __enter__(self) -> SubmissionProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
        self._channel.close()
        self._log.close()

    def _hear(self, wait_s: float) -> bytes | None:
        """One message, or None if none came in time."""
        if self._hung_up:
            time.sleep(wait_s)
            return None
        self._channel.settimeout(wait_s)
        try:
            data, _, flags, _ = self._channel.recvmsg(MAX_BYTES)
        except (TimeoutError, BlockingIOError):
            return None
        except ConnectionError:
            # It left without reading `proceed`. The socket says so once, and before what was told until then.
            return self._hear(wait_s)
        if flags & socket.MSG_TRUNC:
            raise Ended("error", f"no valid message from the process: over {MAX_BYTES:,} bytes")
        # Empty where nobody holds the other end; the process may live on.
        self._hung_up = not data
        return data

    def _exit_status(self) -> str:
        """How the process ended, "" while it runs. It stays a zombie, so that nobody else gets its number."""
        found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return ""
        if found.si_code == os.CLD_EXITED:
            return f"exit code {found.si_status}"
        try:
            return f"killed by {signal.Signals(found.si_status).name}"
        except ValueError:
            # Of the real-time signals only the first and the last have names.
            return f"killed by signal {found.si_status}"
