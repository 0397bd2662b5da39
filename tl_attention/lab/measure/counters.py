"""This module runs one process under NVIDIA's ncu, with a limit, and reads a launch's counters, under ncu's names."""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from tl_attention.errors import InputError
from tl_attention.lab.measure import traffic
from tl_attention.lab.measure.traffic import Tiling
from tl_attention.problem.shape import AttentionShape

# Some of ncu's metrics.
DURATION = "gpu__time_duration.sum"
L2_HIT_RATE = "lts__t_sector_hit_rate.pct"
DRAM_READ = "dram__bytes_read.sum"
SECTORS_READ = "lts__t_sectors_srcunit_tex_op_read.sum"
SECTORS_WRITTEN = "lts__t_sectors_srcunit_tex_op_write.sum"
SECTORS_MISSED = "lts__t_sectors_srcunit_tex_lookup_miss.sum"
ARRIVED = "l1tex__m_xbar2l1tex_read_bytes.sum"
TENSOR_PIPE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
INSTRUCTIONS = "smsp__inst_executed.sum"
CYCLES, FEWEST_CYCLES, MOST_CYCLES = (f"sm__cycles_active.{of}" for of in ("avg", "min", "max"))
SECTOR_BYTES = 32


@dataclass(frozen=True)
class Counter:
    """A counter is one of ncu's metrics, under its name in tables."""

    what: str
    metric: str
    unit: Literal["", "%", "ns", "byte", "sector"] = ""
    digits: int = 0  # of a plain number, which has no unit
    # How many bytes a problem moves, for bytes and sectors; None where the kernel's tiles are not known.
    theory: Callable[[AttentionShape, Tiling | None], int | None] = lambda shape, tiling: None
    words: str = ""  # what ncu and theory count


def _inputs(shape: AttentionShape, tiling: Tiling | None) -> int:
    return traffic.input_bytes(shape)


def _outputs(shape: AttentionShape, tiling: Tiling | None) -> int:
    return traffic.output_bytes(shape)


COUNTERS = (
    Counter("duration", DURATION, "ns"),
    Counter("compute throughput", "sm__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
    Counter("SM busy", "sm__instruction_throughput.avg.pct_of_peak_sustained_active", "%"),
    Counter("tensor pipe busy", TENSOR_PIPE, "%"),
    Counter("L1 throughput", "l1tex__throughput.avg.pct_of_peak_sustained_active", "%"),
    Counter("L2 throughput", "lts__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
    Counter("DRAM throughput", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "%"),
    Counter("L1 hit rate", "l1tex__t_sector_hit_rate.pct", "%"),
    Counter("L2 hit rate", L2_HIT_RATE, "%"),
    Counter("DRAM read", DRAM_READ, "byte", theory=_inputs, words="Q, K and V once"),
    Counter("DRAM written", "dram__bytes_write.sum", "byte", theory=_outputs, words="the output once"),
    Counter(
        "read from L2",
        SECTORS_READ,
        "sector",
        theory=lambda shape, tiling: None if tiling is None else traffic.l2_bytes(shape, tiling),
        words="sectors that L2 reads for the SMs; Q of each tile, K and V of each cluster. It is less where one read serves "
        "neighbouring SMs: many of cp.async's, few of TMA's",
    ),
    Counter(
        "arrived in SMs",
        ARRIVED,
        "byte",
        theory=lambda shape, tiling: None if tiling is None else traffic.sm_bytes(shape, tiling),
        words="what the crossbar hands to the SMs; a load that a cluster shares once for each of its tiles",
    ),
    Counter(
        "missed in L2",
        SECTORS_MISSED,
        "sector",
        theory=_inputs,
        words="sectors of the SMs that L2 did not have where they asked; Q, K and V once. The other half may have had them",
    ),
    Counter(
        "between L2 halves",
        "lts__t_sectors_srcunit_ltcfabric.sum",
        "sector",
        words="sectors that one half of L2 asks the other for",
    ),
    Counter("written to L2", SECTORS_WRITTEN, "sector", theory=_outputs, words="the output once; spills too"),
    Counter("instructions", INSTRUCTIONS),
    Counter("active cycles, mean", CYCLES),
    Counter("active cycles, fewest", FEWEST_CYCLES),
    Counter("active cycles, most", MOST_CYCLES),
    Counter("active warps", "sm__warps_active.avg.per_cycle_active", digits=2),
    Counter("registers", "launch__registers_per_thread"),
)
STALLS = (
    *("barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard"),
    *("math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "short_scoreboard"),
    *("sleeping", "tex_throttle", "wait"),
)
# A warp that issues is in no stall.
SELECTED = "selected"


def stalled(reason: str) -> str:
    """Returns ncu's name of the metric for how many cycles a stall of this reason held a warp, on average.

    `average_warps_issue_stalled_*_per_issue_active` is this over that of `selected`; ncu prints it with two decimals,
    which is a fifth of a percent of all stalls.
    """
    return f"smsp__average_warp_latency_issue_stalled_{reason}.ratio"


METRICS = (*(counter.metric for counter in COUNTERS), *map(stalled, (*STALLS, SELECTED)))
# The names that ncu has for the units that it would scale if it were not told otherwise.
UNITS = {"ns": ("ns", "nsecond"), "byte": ("byte",)}
_FIRST_HEADING, _KERNEL = "ID", "Kernel Name"


@dataclass(frozen=True)
class CountedLaunch:
    """A launch is one launch of a kernel that ncu counted."""

    kernel: str  # as ncu prints it
    metrics: dict[str, float]  # of METRICS


def parse(text: str) -> list[CountedLaunch]:
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
    return [CountedLaunch(of_launch[_KERNEL], _numbers(of_launch)) for of_launch in values]


def _check_units(units: dict[str, str]) -> None:
    for counter in COUNTERS:
        if (unit := units.get(counter.metric, counter.unit)) not in UNITS.get(counter.unit, (unit,)):
            raise InputError(f"ncu: {counter.metric} is in {unit[:20]!r}, expected {counter.unit}")


def _numbers(of_launch: dict[str, str]) -> dict[str, float]:
    found = {}
    for metric in METRICS:
        try:
            found[metric] = float(of_launch.get(metric, "").replace(",", ""))
        except ValueError:
            continue
    return found


def countable(metrics: Iterable[str], query: str) -> list[str]:
    """Returns the metrics that `query`, the output of `ncu --query-metrics`, lists; all if it lists none of them.

    What a launch is (`launch__`) stays too: ncu has it in another list.
    """
    listed = {line.split()[0] for line in query.splitlines() if line.strip()}
    found = [metric for metric in metrics if metric.partition(".")[0] in listed]
    return [metric for metric in metrics if metric in found or metric.startswith("launch__")] if found else [*metrics]


def split_by_job(launches: Sequence[CountedLaunch], marker: str, jobs: int) -> list[list[CountedLaunch]]:
    """Splits launches into a list for each job, which begins behind a kernel whose name contains `marker`.

    Raises InputError unless there are so many jobs, and each has a launch.
    """
    found: list[list[CountedLaunch]] = []
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
    """An `Ncu` runs the first ncu on the PATH, in CUDA_HOME or in /usr/local/cuda. Raises InputError without one."""

    def __init__(self) -> None:
        homes = filter(None, (os.environ.get("CUDA_HOME"), "/usr/local/cuda"))
        folders = (os.environ.get("PATH", os.defpath), *(f"{home}/bin" for home in homes))
        found = shutil.which("ncu", path=os.pathsep.join(folders))
        if found is None:
            raise InputError(f"no ncu on {PLACES}, expected NVIDIA's Nsight Compute, which counts what a GPU does")
        self.path = found

    def version(self) -> str:
        """Returns ncu's version, such as `2025.3.1.0`, or `unknown` where ncu does not say."""
        said = _VERSION.search(self._asked("--version"))
        return said[1] if said else "unknown"

    def known_metrics(self) -> list[str]:
        """Lists those of METRICS that ncu can count on this GPU, all if ncu lists none of them.

        A metric that ncu does not know would end it.
        """
        return countable(METRICS, self._asked("--query-metrics"))

    def profile(self, command: Sequence[str], metrics: Sequence[str], timeout_s: float) -> list[CountedLaunch]:
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
    """Runs a command for `timeout_s` at most, and returns (exit code, stdout, stderr)."""
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
    """Returns why a run of ncu failed: ncu's error or warning in its output, and a traceback's last line on stderr."""
    lines = output.splitlines()
    own = [line for line in lines if line.startswith("==ERROR==")][:1]
    own = own or [line for line in lines if line.startswith("==WARNING==")][-1:]
    return "; ".join([*own, *errors.strip().splitlines()[-1:]])[:300] or "it said nothing"
