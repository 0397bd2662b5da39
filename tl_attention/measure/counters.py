"""This module runs one process under NVIDIA's ncu, with a limit, and reads a launch's counters, under ncu's names."""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tl_attention.errors import InputError

DURATION = "gpu__time_duration.sum"
DRAM_READ, DRAM_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
# Sectors of 32 bytes that L2 reads for the SMs: a load that a cluster shares counts once.
SECTORS_READ = "lts__t_sectors_srcunit_tex_op_read.sum"
SECTORS_WRITTEN = "lts__t_sectors_srcunit_tex_op_write.sum"
SECTORS_MISSED = "lts__t_sectors_srcunit_tex_lookup_miss.sum"
# Sectors that one half of L2 asks the other for.
SECTORS_OF_FABRIC = "lts__t_sectors_srcunit_ltcfabric.sum"
SECTOR_BYTES = 32
# Bytes that come out of the crossbar: a load that a cluster shares counts once for each of its SMs.
ARRIVED = "l1tex__m_xbar2l1tex_read_bytes.sum"
# Metrics by their names in tables. COUNTS also say how many digits are shown.
PERCENT = {
    "compute throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "SM busy": "sm__instruction_throughput.avg.pct_of_peak_sustained_active",
    "tensor pipe busy": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "L1 throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "L2 throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "L1 hit rate": "l1tex__t_sector_hit_rate.pct",
    "L2 hit rate": "lts__t_sector_hit_rate.pct",
}
COUNTS = {
    "instructions": ("smsp__inst_executed.sum", 0),
    "active cycles, mean": ("sm__cycles_active.avg", 0),
    "active cycles, fewest": ("sm__cycles_active.min", 0),
    "active cycles, most": ("sm__cycles_active.max", 0),
    "active warps": ("sm__warps_active.avg.per_cycle_active", 2),
    "registers": ("launch__registers_per_thread", 0),
}
STALLS = (
    *("barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard"),
    *("math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "short_scoreboard"),
    *("sleeping", "tex_throttle", "wait"),
)
# A warp that issues is in no stall.
SELECTED = "selected"
# `average_warps_issue_stalled_*_per_issue_active` is this over that of `selected`; ncu prints it with two decimals, which
# is a fifth of a percent of all stalls.
_STALLED = "smsp__average_warp_latency_issue_stalled_{}.ratio"
# The names that a unit may have; records have the first.
UNITS = {"ns": ("ns", "nsecond"), "byte": ("byte",)}


def stalled(reason: str) -> str:
    """Returns the name of a stall's counter: the cycles for which the stall held a warp, on average."""
    return _STALLED.format(reason)


METRICS = (
    *(DURATION, *PERCENT.values()),
    *(DRAM_READ, DRAM_WRITTEN, SECTORS_READ, SECTORS_WRITTEN, SECTORS_MISSED, SECTORS_OF_FABRIC, ARRIVED),
    *(metric for metric, _ in COUNTS.values()),
    *(stalled(reason) for reason in (*STALLS, SELECTED)),
)
# The units of these metrics are checked: ncu scales times and bytes where it is not told otherwise.
_UNIT_OF = {DURATION: "ns", DRAM_READ: "byte", DRAM_WRITTEN: "byte", ARRIVED: "byte"}
_FIRST_HEADING, _KERNEL = "ID", "Kernel Name"


@dataclass(frozen=True)
class Launch:
    """A launch has the kernel's name, as ncu prints it, and the counters of METRICS that ncu counted."""

    kernel: str
    metrics: dict[str, float]

    @property
    def duration_ns(self) -> float:
        """Returns the duration, 0 where it was not counted."""
        return self.metrics.get(DURATION, 0.0)


def parse(text: str) -> list[Launch]:
    """Returns the launches in what `ncu --csv --page raw` printed, in order; [] where ncu profiled none.

    ncu's own lines and the program's stand before the table. A counter without a number is left out. Raises InputError
    for a table of another form, or in other units.
    """
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith(f'"{_FIRST_HEADING}",')), None)
    if start is None:
        return []
    headings, *rows = csv.reader(lines[start:])
    if _KERNEL not in headings:
        raise InputError(f"ncu: its table has no column {_KERNEL!r}, expected that of --csv --page raw")
    launches = [dict(zip(headings, row)) for row in rows if len(row) == len(headings)]
    if not launches or launches[0][_FIRST_HEADING]:
        raise InputError("ncu: its table has no row of units, expected that of --csv --page raw")
    units, *values = launches
    _check_units(units)
    return [Launch(of_launch[_KERNEL], _numbers(of_launch)) for of_launch in values]


def _check_units(units: dict[str, str]) -> None:
    for metric, unit in _UNIT_OF.items():
        if units.get(metric, unit) not in UNITS[unit]:
            raise InputError(f"ncu: {metric} is in {units[metric][:20]!r}, expected {unit}")


def _numbers(of_launch: dict[str, str]) -> dict[str, float]:
    found = {}
    for metric in METRICS:
        try:
            found[metric] = float(of_launch.get(metric, "").replace(",", ""))
        except ValueError:
            continue
    return found


def known_of(metrics: Iterable[str], query: str) -> list[str]:
    """Returns those of the metrics that `ncu --query-metrics` lists, all of them where it lists none.

    What a launch is (`launch__`) stays too: ncu has it in another list.
    """
    listed = {line.split()[0] for line in query.splitlines() if line.strip()}
    found = [metric for metric in metrics if metric.partition(".")[0] in listed]
    return [metric for metric in metrics if metric in found or metric.startswith("launch__")] if found else [*metrics]


def of_jobs(launches: Sequence[Launch], marker: str, jobs: int) -> list[list[Launch]]:
    """Returns the launches of each job: a kernel whose name has `marker` stands before each job, and belongs to none.

    Raises InputError unless there are so many jobs, and each has a launch.
    """
    found: list[list[Launch]] = []
    for launch in launches:
        if marker in launch.kernel:
            found.append([])
        elif found:
            found[-1].append(launch)
        else:
            raise InputError(f"ncu: {launch.kernel[:60]} is its first launch, expected {marker} before each kernel")
    if len(found) != jobs or not all(found):
        counts = ", ".join(str(len(of_job)) for of_job in found) or "none"
        raise InputError(
            f"ncu: it profiled {len(found)} kernels (launches: {counts}), expected {jobs}, and one of each"
        )
    return found


# How launches are counted: the `method` of a record.
METHOD = "ncu, kernel replay, one launch after a warm-up, clocks and caches as they are"
PLACES = "the PATH, CUDA_HOME and /usr/local/cuda"
ASK_TIMEOUT_S = 60.0
FORBIDDEN = "ERR_NVGPUCTRPERM"
_VERSION = re.compile(r"Version (\d[\d.]*)")


class Ncu:
    """An `Ncu` is the first ncu of PLACES. Raises InputError where there is none."""

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
        """Returns the version, such as `2025.3.1.0`, or `unknown` where ncu does not say."""
        said = _VERSION.search(self._asked("--version"))
        return said[1] if said else "unknown"

    def known_metrics(self) -> list[str]:
        """Returns those of METRICS that ncu has for the GPU here: a metric that ncu does not know would end it."""
        return known_of(METRICS, self._asked("--query-metrics"))

    def profile(self, command: Sequence[str], metrics: Sequence[str], timeout_s: float) -> list[Launch]:
        """Runs a command under ncu and returns its launches between cudaProfilerStart and cudaProfilerStop.

        At the limit ncu, the command and what these started are killed. Raises InputError where ncu fails, or counts no
        launch.
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
    """Runs a command and returns (exit code, stdout, stderr).

    Raises InputError at the limit, and for a command that cannot be started.
    """
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
    """Says why a run failed.

    ncu's own words are in its output; a traceback's last line says what happened to the command.
    """
    lines = output.splitlines()
    own = [line for line in lines if line.startswith("==ERROR==")][:1]
    own = own or [line for line in lines if line.startswith("==WARNING==")][-1:]
    return "; ".join([*own, *errors.strip().splitlines()[-1:]])[:300] or "it said nothing"
