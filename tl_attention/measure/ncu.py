"""NVIDIA's ncu: where it is, what it knows, and one process under it, with a limit."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tl_attention.errors import InputError
from tl_attention.measure.counters import METRICS, Launch, known_of, parse

# What the launches are counted as: `method` of a record.
METHOD = "ncu, kernel replay, one launch after a warm-up, clocks and caches as they are"
PLACES = "the PATH, CUDA_HOME and /usr/local/cuda"
ASK_TIMEOUT_S = 60.0
FORBIDDEN = "ERR_NVGPUCTRPERM"
_VERSION = re.compile(r"Version (\d[\d.]*)")


class Ncu:
    """The first ncu of PLACES. Raises InputError where there is none."""

    def __init__(self) -> None:
        homes = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
        found = shutil.which("ncu") or shutil.which(
            "ncu", path=os.pathsep.join(f"{home}/bin" for home in homes if home)
        )
        if found is None:
            raise InputError(
                f"profile: no ncu on {PLACES}, expected NVIDIA's Nsight Compute, which counts what a GPU does"
            )
        self.path = found

    def version(self) -> str:
        """As `2025.3.1.0`; unknown where it does not say."""
        said = _VERSION.search(self._asked("--version"))
        return said[1] if said else "unknown"

    def known_metrics(self) -> list[str]:
        """Those of METRICS that it has for the GPU here: one that it does not know would end it."""
        return known_of(METRICS, self._asked("--query-metrics"))

    def profile(self, command: Sequence[str], metrics: Sequence[str], timeout_s: float) -> list[Launch]:
        """The launches between cudaProfilerStart and cudaProfilerStop of a command. Raises InputError: none were counted.

        At the limit ncu, the command and what these started are killed.
        """
        options = ["--profile-from-start", "off", "--clock-control", "none", "--cache-control", "none"]
        options += ["--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(metrics)]
        code, output, errors = _run([self.path, *options, *command], timeout_s)
        if FORBIDDEN in output + errors:
            raise InputError(
                f"ncu: this user may not read the GPU's counters ({FORBIDDEN}), expected a driver with "
                "NVreg_RestrictProfilingToAdminUsers=0, or CAP_SYS_ADMIN"
            )
        launches = parse(output)
        if code or not launches:
            raise InputError(f"ncu: exit code {code}, {len(launches)} launches counted: {_reason(output, errors)}")
        return launches

    def _asked(self, option: str) -> str:
        try:
            code, output, _ = _run([self.path, option], ASK_TIMEOUT_S)
        except InputError:
            return ""
        return output if code == 0 else ""


def _run(command: Sequence[str], timeout_s: float) -> tuple[int, str, str]:
    """(exit code, stdout, stderr). Raises InputError at the limit, and for what cannot be started."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
            )
        except OSError as error:
            raise InputError(f"{command[0]}: cannot be started: {error.strerror}") from None
        try:
            code = process.wait(timeout_s)
        except BaseException as error:
            # The leader is not yet waited for, so the number is still the group's.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise InputError(f"{Path(command[0]).name}: no answer within {timeout_s:.0f} s, killed") from None
            raise
        return code, _text(output), _text(errors)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _reason(output: str, errors: str) -> str:
    """ncu's words are in its output; a traceback's last line says what happened to the command."""
    lines = output.splitlines()
    own = [line for line in lines if line.startswith("==ERROR==")][:1]
    own = own or [line for line in lines if line.startswith("==WARNING==")][-1:]
    return "; ".join([*own, *errors.strip().splitlines()[-1:]])[:300] or "it said nothing"
