"""The counters that are read of a launch, under ncu's names, and the CSV in which ncu gives them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tl_attention.errors import InputError

DURATION = "gpu__time_duration.sum"
DRAM_READ, DRAM_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
# Sectors of 32 bytes that L2 reads for the SMs: a load that a cluster shares, once.
SECTORS_READ = "lts__t_sectors_srcunit_tex_op_read.sum"
SECTORS_WRITTEN = "lts__t_sectors_srcunit_tex_op_write.sum"
SECTORS_MISSED = "lts__t_sectors_srcunit_tex_lookup_miss.sum"
# Those that one half of L2 asks the other for.
SECTORS_OF_FABRIC = "lts__t_sectors_srcunit_ltcfabric.sum"
SECTOR_BYTES = 32
# What comes out of the crossbar: a load that a cluster shares, once for each of its SMs.
ARRIVED = "l1tex__m_xbar2l1tex_read_bytes.sum"
COMPUTE, SM_BUSY = (
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__instruction_throughput.avg.pct_of_peak_sustained_active",
)
TENSOR_PIPE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
L1_THROUGHPUT = "l1tex__throughput.avg.pct_of_peak_sustained_active"
L2_THROUGHPUT = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
DRAM_THROUGHPUT = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
L1_HITS, L2_HITS = "l1tex__t_sector_hit_rate.pct", "lts__t_sector_hit_rate.pct"
INSTRUCTIONS = "smsp__inst_executed.sum"
CYCLES = "sm__cycles_active.avg"
FEWEST_CYCLES, MOST_CYCLES = "sm__cycles_active.min", "sm__cycles_active.max"
WARPS = "sm__warps_active.avg.per_cycle_active"
REGISTERS = "launch__registers_per_thread"

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
# What a unit may be called; the first is the one of records.
UNITS = {"ns": ("ns", "nsecond"), "byte": ("byte",)}


def stalled(reason: str) -> str:
    """The counter of a stall: cycles for which a warp, on average, was held by it."""
    return _STALLED.format(reason)


METRICS = (
    *(DURATION, COMPUTE, SM_BUSY, TENSOR_PIPE, L1_THROUGHPUT, L2_THROUGHPUT, DRAM_THROUGHPUT, L1_HITS, L2_HITS),
    *(DRAM_READ, DRAM_WRITTEN, SECTORS_READ, SECTORS_WRITTEN, SECTORS_MISSED, SECTORS_OF_FABRIC, ARRIVED),
    *(INSTRUCTIONS, CYCLES, FEWEST_CYCLES, MOST_CYCLES, WARPS, REGISTERS),
    *(stalled(reason) for reason in (*STALLS, SELECTED)),
)
# Whose unit is checked: ncu scales times and bytes where it is not told otherwise.
_UNIT_OF = {DURATION: "ns", DRAM_READ: "byte", DRAM_WRITTEN: "byte", ARRIVED: "byte"}
_FIRST_HEADING, _KERNEL = "ID", "Kernel Name"


@dataclass(frozen=True)
class Launch:
    """One launch: the kernel's name as ncu prints it, and the counters of METRICS that it has."""

    kernel: str
    metrics: dict[str, float]

    @property
    def duration_ns(self) -> float:
        """0 where it was not counted."""
        return self.metrics.get(DURATION, 0.0)


def parse(text: str) -> list[Launch]:
    """The launches in what `ncu --csv --page raw` printed, in order; [] where it profiled none.

    Before the table stand ncu's own lines and the program's. A counter without a number is left out. Raises InputError for
    a table of another form, or in other units.
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
    """Those of the metrics that `ncu --query-metrics` lists; all where it lists none. What a launch is (`launch__`) it has
    in another list."""
    listed = {line.split()[0] for line in query.splitlines() if line.strip()}
    found = [metric for metric in metrics if metric.partition(".")[0] in listed]
    return [metric for metric in metrics if metric in found or metric.startswith("launch__")] if found else [*metrics]


def of_jobs(launches: Sequence[Launch], marker: str, jobs: int) -> list[list[Launch]]:
    """The launches of each job: a kernel whose name has `marker` stands before each, and is none of them.

    Raises InputError unless each of so many jobs has one.
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
